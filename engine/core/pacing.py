"""How many tokens a prompt's next chunk may have, beside the token budget: the step's target time, and prefill pacing.

Pacing: while other flows decode, the prompts of a flow take at most its weighted share of the engine's time. Each flow
has an allowance in nanoseconds that grows with the time that others' decodes take and is spent by its chunks, each
counted at the time that it adds to its step; it begins with the time of one step. So a long prompt halves the pace of a
decoder of equal weight at most, a chunk that adds next to nothing costs next to nothing, and a prompt that is alone is
not paced at all. Nor is anybody while the prices were not measured.
"""

import math
from dataclasses import dataclass, field

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.flow import Flow
from engine.core.sequence import Sequence
from engine.core.step import Step

SHARED_STEP = 0.75  # of the longest first chunk, for all chunks of a step: deep in a prompt each token takes longer
MIN_CHUNK = 16  # tokens; smaller chunks pay more for their call than for their tokens


@dataclass(slots=True)
class Allowance:
    """Nanoseconds that a flow may still spend, and how far the decodes' clock stood when it was last topped up."""

    left_ns: float
    topped_up_at_ns: float


@dataclass(slots=True)
class Pacing:
    """The allowances of flows that had prompts beside decodes of others, of which the latest are remembered."""

    config: SchedulerConfig
    prices: Prices = field(default_factory=Prices)
    _allowances: dict[Flow, Allowance] = field(default_factory=dict)
    _decode_clock_ns: float = 0.0
    _step: Step | None = None
    _step_decodes_ns: float = 0.0
    _decoding: dict[Flow, None] = field(default_factory=dict)
    _weight_total: float = 0.0
    _is_paced: bool = False
    _has_looked: bool = False
    _step_limit_ns: float = math.inf
    _step_chunks_ns: float = 0.0

    def begin(self, step: Step) -> None:
        """The decodes of a pass are granted; what else the step holds is up to the chunks."""
        costs, terms = self.prices.step, step.terms
        if step is not self._step:
            self._step, self._step_decodes_ns, self._step_chunks_ns = step, 0.0, 0.0
        self._is_paced = terms.paces_prefill and self.prices.are_measured and step.num_decodes > 0
        self._has_looked = False
        decodes_ns = costs.base_ns + costs.decodes_ns(step.num_decodes, step.num_context) if step.num_decodes else 0.0
        self._decode_clock_ns += decodes_ns - self._step_decodes_ns
        self._step_decodes_ns = decodes_ns
        target_ns = self.config.target_step_ms * 1e6
        self._step_limit_ns = target_ns - decodes_ns if target_ns else math.inf
        if step.num_flows > 1 and terms.paces_prefill and self.prices.are_measured:
            most_ns = SHARED_STEP * costs.chunk_ns(0, self.config.max_num_batched_tokens)
            self._step_limit_ns = min(self._step_limit_ns, most_ns)

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """Of the next `num_tokens` of `seq`, how many may be computed in this step; 0 is none."""
        start = seq.num_computed_tokens + seq.num_scheduled_tokens
        costs = self.prices.step
        least_ns = 0.0 if self._step_chunks_ns else costs.chunk_ns(start, MIN_CHUNK)
        fitting = tokens_within(costs, start, num_tokens, max(self._step_limit_ns - self._step_chunks_ns, least_ns))
        left_ns = self._left_ns(seq.flow)
        if left_ns is None:
            return fitting
        paced = tokens_within(costs, start, fitting, left_ns)
        return paced if paced >= min(fitting, MIN_CHUNK) else 0

    def spend(self, seq: Sequence, start: int, num_tokens: int) -> None:
        """A chunk was granted."""
        chunk_ns = self.prices.step.chunk_ns(start, num_tokens)
        self._step_chunks_ns += chunk_ns
        allowance = self._allowances.get(seq.flow)
        if allowance is not None:
            allowance.left_ns -= chunk_ns

    def _look(self) -> None:
        """Find out who decodes without yielding: only a step that has a prompt needs to know."""
        assert self._step is not None
        yielding = self._step.terms.yielding
        self._decoding = {flow: None for flow in self._step.flows if flow not in yielding and _decodes(flow)}
        self._weight_total = math.fsum(map(self._step.weight, self._decoding))
        self._has_looked = True

    def _left_ns(self, flow: Flow) -> float | None:
        """None if nobody else decodes."""
        if not self._is_paced:
            return None
        if not self._has_looked:
            self._look()
        assert self._step is not None
        weight = self._step.weight(flow)
        others = self._weight_total - (weight if flow in self._decoding else 0.0)
        if len(self._decoding) <= (flow in self._decoding):
            self._allowances.pop(flow, None)
            return None
        most_ns = self.prices.step.chunk_ns(0, self.config.max_num_batched_tokens)
        allowance = self._allowances.pop(flow, None)
        if allowance is None:
            allowance = Allowance(0.0, self._decode_clock_ns - self._step_decodes_ns)
            if len(self._allowances) >= 2 * self.config.max_num_seqs:
                del self._allowances[next(iter(self._allowances))]
        self._allowances[flow] = allowance
        elapsed_ns = self._decode_clock_ns - allowance.topped_up_at_ns
        allowance.left_ns = min(most_ns, allowance.left_ns + elapsed_ns * weight / others)
        allowance.topped_up_at_ns = self._decode_clock_ns
        return allowance.left_ns


def tokens_within(costs: StepCosts, start: int, num_tokens: int, limit_ns: float) -> int:
    """The longest chunk from `start` on, of at most `num_tokens`, that adds at most `limit_ns` to a step."""
    if costs.chunk_ns(start, num_tokens) <= limit_ns:
        return num_tokens
    if limit_ns <= 0:
        return 0
    linear = costs.prefill_token_ns + costs.prefill_key_ns * (start + 0.5)
    quadratic = costs.prefill_key_ns / 2
    if quadratic <= 0:
        return min(num_tokens, int(limit_ns / linear))
    return min(num_tokens, int((math.sqrt(linear * linear + 4 * quadratic * limit_ns) - linear) / (2 * quadratic)))


def _decodes(flow: Flow) -> bool:
    return flow.nodes[-1].num_planned_output_tokens > 0
