"""How a run is measured."""

from collections import abc
from dataclasses import dataclass, field

from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.sim.traffic.row import NANOS_PER_S


@dataclass(frozen=True, slots=True)
class RecorderOptions:
    """What to measure with.

    label               names the run in tables and pictures: the policy, as a rule
    weights             node path ("org" or "org/team") to weight; 1 where absent
    prefill_cost, output_cost   work of one token
    block_bytes         size of a KV block, to turn copies into bytes
    window_ns           width of the windows that service is kept in; it doubles where a run has too many of them
    gap_window_ns       windows of the pairwise work gap between tenants that are both backlogged
    difference_window_ns   T of the windowed service difference
    warm_up_ns          requests that arrive earlier are left out of the percentiles
    goodput_limits_ms   pairs (TTFT, TPOT) that a request must both meet
    max_listed_tenants  so many of those with the most work are listed by name, the others together
    notes               what has to be said beside the result: of the traffic, of the cost line
    """

    label: str = ""
    weights: abc.Mapping[str, float] = field(default_factory=dict)
    prefill_cost: float = PREFILL_COST
    output_cost: float = OUTPUT_COST
    block_bytes: int = 0
    window_ns: int = NANOS_PER_S
    gap_window_ns: int = 30 * NANOS_PER_S
    difference_window_ns: int = 60 * NANOS_PER_S
    warm_up_ns: int = 0
    goodput_limits_ms: tuple[tuple[int, int], ...] = ((500, 30), (2000, 100))
    max_listed_tenants: int = 30
    notes: tuple[str, ...] = ()

    def work_of(self, num_prefill_tokens: float, num_output_tokens: float) -> float:
        """Cost units of so many tokens."""
        return self.prefill_cost * num_prefill_tokens + self.output_cost * num_output_tokens
