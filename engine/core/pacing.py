"""How many tokens a prompt's next chunk may have, beside the token budget: the step's target time, and prefill pacing.

Pacing: while other flows decode, the prompts of a flow take at most its weighted share of the engine's time. Each flow
has an allowance in nanoseconds that grows with the time that others' decodes take and is spent by its chunks, each
counted at the time that it adds to its step; it begins with the time of one step. So a long prompt halves the pace of a
decoder of equal weight at most, a chunk that adds next to nothing costs next to nothing, and a prompt that is alone is
not paced at all. Nor is anybody while the prices were not measured.

Short prompts: one of a light flow comes in whole, however much the step holds, and no other chunk comes in behind it,
unless the step before made way likewise. What arrives waits for the end of the running step anyway, so its first token
is then one long step away, not two; and a long prompt has every other step. Nor is it held for an allowance that it
would only need a moment longer: it may take more than is left, once, and its flow owes the rest.
"""

import math
from dataclasses import dataclass, field

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices, StepCosts
from engine.core.flow import Flow
from engine.core.sequence import Sequence
from engine.core.step import Step

SHARED_STEP = 0.75  # of the longest first chunk, for all chunks of a step: deep in a prompt each token takes longer
SHORT_PROMPT = 0.25  # likewise, for a prompt that others are held up for
ROUNDING_NS = 1.0
MIN_CHUNK = 16  # tokens; smaller chunks pay more for their call than for their tokens


@dataclass(slots=True)
class Allowance:
    """Nanoseconds that a flow may still spend, below 0: that it owes; and how far the decodes' clock stood then."""

    left_ns: float
    topped_up_at_ns: float

    def left_at(self, clock_ns: float, share: float) -> float:
        """What there is by that time on the decodes' clock, of which it gets `share`."""
        return self.left_ns + (clock_ns - self.topped_up_at_ns) * share


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
    _is_shared: bool = False
    _is_short: bool = False
    _was_short: bool = False
    _guest: Sequence | None = None  # whom way was made for last

    def begin(self, step: Step) -> None:
        """The decodes of a pass are granted; what else the step holds is up to the chunks."""
        costs, terms = self.prices.step, step.terms
        if step is not self._step:
            self._step, self._step_decodes_ns, self._step_chunks_ns, self._guest = step, 0.0, 0.0, None
            self._was_short, self._is_short = self._is_short, False
        self._is_paced = terms.paces_prefill and self.prices.are_measured and step.num_decodes > 0
        self._has_looked = False
        decodes_ns = costs.base_ns + costs.decodes_ns(step.num_decodes, step.num_context) if step.num_decodes else 0.0
        self._decode_clock_ns += decodes_ns - self._step_decodes_ns
        self._step_decodes_ns = decodes_ns
        self._is_shared = step.num_flows > 1 and terms.paces_prefill and self.prices.are_measured
        limit_ns = SHARED_STEP * self._full_chunk_ns() if self._is_shared else math.inf
        if self._is_short:
            limit_ns = self._step_chunks_ns
        self._step_limit_ns = min(limit_ns, self._target_ns())

    def repeat_decodes(self, num_decodes: int, num_context: int, num_steps: int) -> None:
        """So many steps began that only decode, each with `num_context` keys and `num_decodes` more than the last."""
        costs, clock_ns = self.prices.step, self._decode_clock_ns
        for num_keys in range(num_context + num_decodes, num_context + (num_steps + 1) * num_decodes, num_decodes):
            clock_ns += costs.base_ns + costs.decodes_ns(num_decodes, num_keys)
        self._decode_clock_ns = clock_ns

    def can_make_way(self, seq: Sequence) -> bool:
        """True if others may be held up for the prompt of `seq`, which waits: it is short, its flow owes nothing."""
        chunk_ns = self.prices.step.chunk_ns(seq.num_computed_tokens, seq.num_uncomputed_tokens)
        return self._is_shared and chunk_ns <= SHORT_PROMPT * self._full_chunk_ns() and not self._owes(seq.flow)

    def make_way(self, seq: Sequence) -> None:
        """`seq`, which is short and whose flow is light, is about to come in: there is room for it, and no more.

        All chunks together never take longer than the first one of a prompt can.
        """
        full_ns, self._guest = self._full_chunk_ns(), seq
        if not self._was_short:
            self._is_short = True
            self._step_limit_ns = min(self._step_limit_ns, self._step_chunks_ns)
        chunk_ns = self.prices.step.chunk_ns(seq.num_computed_tokens, seq.num_uncomputed_tokens)
        self._top_up(seq.flow, chunk_ns)
        wanted_ns = self._step_chunks_ns + chunk_ns + ROUNDING_NS
        self._step_limit_ns = max(self._step_limit_ns, min(wanted_ns, full_ns, self._target_ns()))

    def limit(self, seq: Sequence, num_tokens: int) -> int:
        """Of the next `num_tokens` of `seq`, how many may be computed in this step; 0 is none."""
        start = seq.num_computed_tokens + seq.num_scheduled_tokens
        costs = self.prices.step
        token_ns = costs.chunk_ns(start, 1) + ROUNDING_NS
        least_ns = 0.0
        if not self._step_chunks_ns:
            least_ns = max(token_ns, min(costs.chunk_ns(start, MIN_CHUNK), self._full_chunk_ns()))
        fitting = tokens_within(costs, start, num_tokens, max(self._step_limit_ns - self._step_chunks_ns, least_ns))
        left_ns = None if seq is self._guest else self._top_up(seq.flow, token_ns)
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

    def _full_chunk_ns(self) -> float:
        return self.prices.step.chunk_ns(0, self.config.max_num_batched_tokens)

    def _target_ns(self) -> float:
        """What the step's target leaves for chunks."""
        target_ns = self.config.target_step_ms * 1e6
        return target_ns - self._step_decodes_ns if target_ns else math.inf

    def _owes(self, flow: Flow) -> bool:
        share, allowance = self._share(flow), self._allowances.get(flow)
        return share is not None and allowance is not None and allowance.left_at(self._decode_clock_ns, share) <= 0

    def _share(self, flow: Flow) -> float | None:
        """Of the time that decodes take, what the prompts of a flow get beside them; None if nobody else decodes."""
        if not self._is_paced:
            return None
        if not self._has_looked:
            self._look()
        if len(self._decoding) <= (flow in self._decoding):
            return None
        assert self._step is not None
        weight = self._step.weight(flow)
        return weight / (self._weight_total - (weight if flow in self._decoding else 0.0))

    def _top_up(self, flow: Flow, token_ns: float) -> float | None:
        """What a flow may spend now; None if nobody else decodes. `token_ns` is what its next token takes: that much
        can always be saved up."""
        share = self._share(flow)
        if not self._is_paced:
            return None
        allowance = self._allowances.pop(flow, None)
        if share is None:
            return None
        if allowance is None:
            allowance = Allowance(0.0, self._decode_clock_ns - self._step_decodes_ns)
            if len(self._allowances) >= 2 * self.config.max_num_seqs:
                del self._allowances[next(iter(self._allowances))]
        self._allowances[flow] = allowance
        most_ns = max(self._full_chunk_ns(), token_ns)
        allowance.left_ns = min(most_ns, allowance.left_at(self._decode_clock_ns, share))
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
