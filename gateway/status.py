"""What the parts of a running gateway report about themselves: the figures behind `evenflow status`.

Plain values. Who collects them is the composition root; who shows them is the admin service.
"""

from collections import abc
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant as the engine sees it. `path` is (organization id, team id); totals count since the engine began.

    num_borrowed_tokens  lent to it while it yielded to others
    wait_s               of its requests together, from arrival to the first step
    served_work          in cost units: a prompt token is one, an output token two, recomputed ones are none
    share                of the work of all tenants since the engine began, 0 to 1
    weight_share         what the weights give it now among those that have work or were served in the last five minutes
    lead                 how far it is ahead of the least served sibling that has work
    num_found_tokens     of its prompts, in the prefix cache: not among num_prefill_tokens
    num_kept_blocks      that it computed, that nobody uses and that the cache keeps
    num_drafted_tokens   guessed ahead and verified, of which num_accepted_tokens were right
    """

    path: tuple[str, ...]
    weight: float
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_swapping: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_borrowed_tokens: int
    num_pauses: int
    num_swaps_out: int
    num_swaps_in: int
    copied_bytes: int
    wait_s: float
    standing: float
    served_work: float
    share: float
    weight_share: float
    lead: float
    num_device_blocks: int
    num_found_tokens: int = 0
    num_kept_blocks: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Of the prefix cache, since the engine began; kept blocks are those that nobody uses now.

    num_found_tokens, num_computed_tokens  of prompts
    """

    is_on: bool = False
    num_found_tokens: int = 0
    num_computed_tokens: int = 0
    num_kept_blocks: int = 0
    num_kept_host_blocks: int = 0
    num_evicted_blocks: int = 0


@dataclass(frozen=True, slots=True)
class DraftStats:
    """Of tokens guessed ahead, since the engine began. `kind` is who guesses: "off", "ngram" or "draft"; `model` is the
    name of the model that does."""

    kind: str = "off"
    model: str = ""
    num_verified: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a step and a copy take, in nanoseconds, by the engine's measurements, or by default until it has some.

    A step: `base_ns`, per prompt token `prefill_token_ns`, per key that it attends to `prefill_key_ns`, per decoding
    sequence `decode_ns`, per key `decode_key_ns`, per block that is copied meanwhile `copied_block_ns`.
    """

    copy_out_block_ns: float
    copy_in_block_ns: float
    copy_launch_ns: float
    base_ns: float
    prefill_token_ns: float
    prefill_key_ns: float
    decode_ns: float
    decode_key_ns: float
    copied_block_ns: float
    are_measured: bool

    def swap_s(self, num_blocks: int) -> float:
        """Out to the host and back in, each in one copy."""
        return (2 * self.copy_launch_ns + num_blocks * (self.copy_out_block_ns + self.copy_in_block_ns)) / 1e9

    def recompute_s(self, num_tokens: int) -> float:
        """By which a prompt of that length lengthens the steps that hold it."""
        num_keys = num_tokens * (num_tokens + 1) / 2
        return (num_tokens * self.prefill_token_ns + num_keys * self.prefill_key_ns) / 1e9


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Those that have not ended, by where they stand."""

    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_swapping: int

    @property
    def has_held_up(self) -> bool:
        """Some of them are not being computed, whatever they wait for."""
        return any((self.num_waiting, self.num_paused, self.num_swapped, self.num_swapping))


@dataclass(frozen=True, slots=True)
class BlockCounts:
    """The KV pools, on the device and on the host, in blocks of `block_size` tokens; fenced are those being copied."""

    num_free_device_blocks: int
    num_fenced_device_blocks: int
    num_device_blocks: int
    num_free_host_blocks: int
    num_host_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class PoliciesInForce:
    """What an engine decides by, with options as they were given.

    preemption_mode  "auto", "swap" or "recompute"
    policy_fault     which policy was replaced by the order of arrival, and why; empty: none
    """

    scheduling_policy: str
    preemption_policy: str
    scheduling_options: abc.Mapping[str, str]
    preemption_options: abc.Mapping[str, str]
    preemption_mode: str
    policy_fault: str


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's figures at one moment. `mean_step_ms` covers its last steps.

    max_num_seqs, max_num_batched_tokens  of one step; 0: the engine, of an older release, did not say
    gap_bound        the most by which siblings differ that are both denied something, in cost units by weight; None:
                     the policy promises nothing
    new_request_wait_ns  what a request that comes now may wait; None: the engine cannot tell
    metrics_address  HOST:PORT of its own page for Prometheus, on its machine; empty: there is none
    num_lost_steps   steps that its device had no memory for
    num_requeues     how often a request of one was sent back to be computed again: among the preemptions
    """

    policies: PoliciesInForce
    requests: RequestCounts
    blocks: BlockCounts
    num_steps: int
    num_preemptions: int
    num_swaps: int
    num_pauses: int
    mean_step_ms: float
    prices: Prices
    tenants: tuple[TenantStats, ...]
    is_draining: bool
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    new_request_wait_ns: int | None = None
    gap_bound: float | None = None
    num_unacknowledged_usage: int = 0
    num_dropped_usage: int = 0
    metrics_address: str = ""
    cache: CacheStats = CacheStats()
    drafts: DraftStats = DraftStats()
    num_lost_steps: int = 0
    num_requeues: int = 0


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One engine of the gateway's list. `stats` is None exactly when it did not answer."""

    address: str
    model: str
    stats: EngineStats | None


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """Usage that waits for the database, the oldest of it for `oldest_s`, and how often it was there already.

    `num_dropped` events will never be in the table; `num_damaged_bytes` of the spool could not be read.
    """

    num_records: int
    num_bytes: int
    oldest_s: float
    num_duplicates: int
    num_dropped: int = 0
    num_damaged_bytes: int = 0


@dataclass(frozen=True, slots=True)
class QuotaReport:
    """Violated limits since the gateway began, by (tenant, level, dimension): those that refused, and shadows.

    num_reservations  requests that hold quota in this process
    left              of the limits of teams and organizations that were used just now, by (`acme/search` or `acme`,
                      level, dimension): what part is left, 0 to 1, of the one with the least
    """

    denials: abc.Mapping[tuple[str, str, str], int]
    shadow_denials: abc.Mapping[tuple[str, str, str], int]
    num_reservations: int = 0
    left: abc.Mapping[tuple[str, str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolReport:
    """Connections to the database, of which there may be `max_connections`."""

    num_in_use: int
    num_idle: int
    max_connections: int


@dataclass(frozen=True, slots=True)
class LeaseReport:
    """What this gateway has had of the quotas that it shares, since it began, in the units of the limits.

    missed    asked for while a request waited        granted  charged to the shared buckets, and held here
    returned  given back unspent                      expired  not spent in time
    overdrawn spent on an emergency share while Postgres was away
    refresh_s the last turn at Postgres
    num_replicas  gateways that share them, this one included, as Postgres last said; 0: it never has
    """

    granted: int
    returned: int
    expired: int
    missed: int
    overdrawn: int
    refresh_s: float
    num_replicas: int = 0


@dataclass(frozen=True, slots=True)
class SystemReport:
    """The whole gateway. `policy_revision` is the one in force here; 0 before the first snapshot was read.

    `staleness_s` is the time since that was known to be the newest one, infinite where nothing was read.
    `metrics_address` is HOST:PORT of the Prometheus endpoint, `http_url` what clients of OpenAI's API take for their
    base URL; each is empty where there is none.
    """

    uptime_s: float
    is_store_reachable: bool
    policy_revision: int
    engines: tuple[EngineReport, ...]
    num_live_requests: int
    metrics_address: str = ""
    http_url: str = ""
    ledger: LedgerReport | None = None
    quota: QuotaReport | None = None
    leases: LeaseReport | None = None
    staleness_s: float = 0.0
    pool: PoolReport | None = None
    num_dropped_spans: int = 0


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """What an engine decides by, or should from now on: an empty name then leaves that policy as it is."""

    scheduling_policy: str = ""
    scheduling_options: abc.Mapping[str, str] = field(default_factory=dict)
    preemption_policy: str = ""
    preemption_options: abc.Mapping[str, str] = field(default_factory=dict)
