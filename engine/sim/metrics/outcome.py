"""What a run was like: frozen, of plain numbers and text, so that it can be written as JSON and compared byte by byte.

Times in seconds, work in cost units (prefill_cost * prompt tokens + output_cost * output tokens); None where there was
nothing to measure.
"""

from dataclasses import asdict, dataclass
from typing import Any

DIGITS = 9  # of JSON's numbers: nanoseconds


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of one duration. Nearest rank: each is a value that was seen."""

    num_samples: int
    p50_s: float | None
    p90_s: float | None
    p99_s: float | None
    max_s: float | None
    mean_s: float | None


@dataclass(frozen=True, slots=True)
class Latencies:
    """ttft from the scheduled arrival to the first token; of a request that ended without one it is not known, of one
    that was open at the end its age counts · tpot between tokens, on average · completion to the last token · max_itl
    the largest gap between two tokens of a request, pauses included."""

    ttft: Percentiles
    tpot: Percentiles
    completion: Percentiles
    max_itl: Percentiles


@dataclass(frozen=True, slots=True)
class Goodput:
    """The share of all requests that met both limits; those refused, cancelled or unfinished did not."""

    ttft_limit_ms: int
    tpot_limit_ms: int
    share: float | None


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """One group of tenants, or one tenant.

    share_ratio  work served until the last arrival over the max-min share of it, the smallest of the group
    starvation_age_s  the longest that a request waited, or was paused for the sake of others
    """

    name: str
    num_tenants: int
    num_requests: int
    num_refused: int
    num_finished: int
    requested_work: float
    served_work: float
    borrowed_work: float
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    share_ratio: float | None
    starvation_age_s: float
    latencies: Latencies
    goodput: tuple[Goodput, ...]


@dataclass(frozen=True, slots=True)
class Totals:
    """The whole run. `makespan_s` is from the first arrival to the end of the last request, `busy_s` summed over
    engines. `max_preemptions` and `num_preempted_requests` are of those that lost their blocks (swap or recompute)."""

    num_requests: int
    num_refused: int
    num_unfinished: int
    num_finished_by_reason: dict[str, int]
    num_refused_by_reason: dict[str, int]
    makespan_s: float
    num_steps: int
    busy_s: float
    step: Percentiles
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    work_per_s: float
    num_preemptions_by_mode: dict[str, int]
    num_preemptions_by_reason: dict[str, int]
    num_preempted_requests: int
    max_preemptions: int
    recomputed_share: float
    num_copies: int
    num_blocks_out: int
    num_blocks_in: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, slots=True)
class Fairness:
    """How even it was.

    max_gap, mean_gap   pairwise work gap per weight, in windows in which both are backlogged throughout
    max_gap_over_share  the same over the fair share of those windows
    max_weight_error    largest relative error of a backlogged tenant's work against its weighted part
    max_difference, mean_difference, variance_of_difference   d(t), in work per second
    min_share_ratio, jain   over tenants with demand until the last arrival: served over max-min share
    """

    gap_window_s: float
    num_gap_windows: int
    max_gap: float | None
    mean_gap: float | None
    max_gap_over_share: float | None
    max_weight_error: float | None
    difference_window_s: float
    max_difference: float | None
    mean_difference: float | None
    variance_of_difference: float | None
    min_share_ratio: float | None
    jain: float | None
    starvation_age_s: float


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, one per entry of the timeline's `times_s`."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Timeline:
    """For pictures. A value belongs to the window of `window_s` that ends at its time.

    service  work per second of the listed tenants, then of the others together
    copies   blocks out, blocks in, per window
    gaps     (time, gap) of the windows in which two siblings were backlogged
    ttft     per group of tenants the TTFT at each of `quantiles`
    tenant_ttft  the same of the largest tenants
    """

    window_s: float
    times_s: tuple[float, ...]
    service: tuple[Series, ...]
    copies: tuple[Series, ...]
    gap_times_s: tuple[float, ...]
    gaps: tuple[float, ...]
    quantiles: tuple[float, ...]
    ttft: tuple[Series, ...]
    tenant_ttft: tuple[Series, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run. `groups` are all tenants, the light (< 2 % of the requested work each), the heavy (the three largest
    that are not light) and those in the middle; `tenants` those with the most work, by name."""

    label: str
    totals: Totals
    fairness: Fairness
    groups: tuple[GroupOutcome, ...]
    tenants: tuple[GroupOutcome, ...]
    timeline: Timeline
    notes: tuple[str, ...]

    def group(self, name: str) -> GroupOutcome | None:
        """The group of that name; None where it has no tenants."""
        return next((group for group in self.groups if group.name == name), None)

    def tenant(self, name: str) -> GroupOutcome | None:
        """The tenant of that name, where it is listed."""
        return next((tenant for tenant in self.tenants if tenant.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """Dictionaries, lists, numbers and text; numbers rounded to nanoseconds."""
        rounded: dict[str, Any] = _rounded(asdict(self))
        return rounded


def _rounded(value: Any) -> Any:  # any of what JSON holds
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
