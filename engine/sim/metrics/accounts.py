"""What the recorder keeps of each tenant, and of each request that is still open. Only the recorder writes here."""

from array import array
from collections import Counter
from dataclasses import dataclass, field

from engine.sim.metrics.samples import Samples

OUT, IN = 0, 1  # owners in the table of copied blocks


@dataclass(slots=True)
class TenantAccount:
    """One tenant so far. `window_work` was served in [window_start, window_end) and is not in the table of windows
    yet. `num_denied` requests wait, or are paused for the sake of others; while there are any the tenant is
    backlogged, since `backlogged_since`. Where there are none, `backlog_ended_at` is when the last went."""

    index: int
    path: str
    num_goodput: list[int]
    num_requests: int = 0
    num_refused: int = 0
    num_finished: int = 0
    requested_work: float = 0.0
    borrowed_work: float = 0.0
    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    longest_wait_ns: int = 0
    num_denied: int = 0
    window_start: int = 0
    window_end: int = 0
    window_work: float = 0.0
    backlogged_since: int = 0
    backlog_ended_at: int = -1


@dataclass(slots=True)
class OpenRequest:
    """One request between arrival and end. `denied_since` is set while it waits or is paused for the sake of others,
    `gap_since` from a pause to the first token after it."""

    tenant: TenantAccount
    at_ns: int
    is_measured: bool
    denied_since: int | None
    engine: int = 0
    is_admitted: bool = False
    first_token_ns: int | None = None
    gap_since: int | None = None
    longest_gap_ns: int = 0
    num_losses: int = 0


@dataclass(frozen=True, slots=True)
class LatencySamples:
    """Durations in nanoseconds, owned by tenants: to the first token, between tokens on average, to the last token, and
    the largest gap between two tokens."""

    ttft: Samples = field(default_factory=Samples)
    tpot: Samples = field(default_factory=Samples)
    completion: Samples = field(default_factory=Samples)
    max_itl: Samples = field(default_factory=Samples)


@dataclass(slots=True)
class RunCounts:
    """Sums over the whole run."""

    num_requests: int = 0
    first_arrival_ns: int | None = None
    last_arrival_ns: int = 0
    last_finish_ns: int = 0
    num_steps: int = 0
    busy_ns: int = 0
    num_copies: int = 0
    num_preempted_requests: int = 0
    max_preemptions: int = 0
    refused_by_reason: Counter[str] = field(default_factory=Counter)
    finished_by_reason: Counter[str] = field(default_factory=Counter)
    preemptions_by_mode: Counter[str] = field(default_factory=Counter)
    preemptions_by_reason: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class BacklogLog:
    """Closed intervals of backlog that are long enough to matter: at least one window of service each."""

    tenants: "array[int]" = field(default_factory=lambda: array("q"))
    since_ns: "array[int]" = field(default_factory=lambda: array("q"))
    until_ns: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, tenant: int, since_ns: int, until_ns: int) -> None:
        """Of one tenant."""
        self.tenants.append(tenant)
        self.since_ns.append(since_ns)
        self.until_ns.append(until_ns)
