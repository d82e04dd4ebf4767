"""Speculative decoding as the scheduler sees it: how many draft tokens a decode carries, and what became of them.

A *draft* is a guess at a token that follows the known ones. The runner proposes drafts behind a step's result, as many
as the plan allows, and tells their number; a later plan lets the sequence's chunk carry some of them; the runner
verifies these and accepts those that it would have sampled anyway. Their tokens are never known here, only how many.

A draft costs a step the time of a token and is worth the probability that it is accepted. It is planned only where
that raises the tokens per time of the whole step, by the measured prices: with a full batch, or where few drafts of
late were right, none is. So speculation is off by itself where it does not pay, and is tried again now and then. A
draft of which the runner says that it is certain is right, and tells nothing of what guesses are worth.

Source: Leviathan et al. 2023 (acceptance of several drafts, §3.1); Liu et al. 2024 (SmartSpec: by the batch's goodput).
"""

from dataclasses import dataclass

from engine.core.config import SchedulerConfig
from engine.core.drafting import PRIOR_RIGHT, PRIOR_TRIED, Drafting
from engine.core.flow import Flow
from engine.core.lifecycle import Lifecycle
from engine.core.memory import Memory
from engine.core.sequence import Sequence
from engine.core.step import Step

FORGETTING = 0.75  # weight of older drafts after each verification: the end of a copied passage is noticed in six steps
RETURNING = 1 / 64  # of the way back to the prior, in each step that an unlikely draft sits out
MAX_ACCEPTANCE = 0.98
# By how much drafts may lengthen a step in which several flows decode: the others keep four fifths of their pace.
SHARED_TIME = 0.25


@dataclass(slots=True)
class Worth:
    """What a draft must be worth in one step.

    step_ns      what the step takes without drafts; 0 where no price was measured
    num_sampled  tokens that it gives without drafts
    left_ns      by how much drafts of each flow may still lengthen it; None is no limit
    """

    step_ns: float
    num_sampled: int
    left_ns: dict[Flow, float] | None


class Drafts:
    """Adds drafts to one step after the other, with what all others left of it."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, memory: Memory) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._memory = memory

    def grant(self, step: Step) -> None:
        """Decodes carry the drafts that are worth it, one for each in turn, and more may be proposed where they may be.

        Flows that yield get none. Nothing was preempted for a draft, and none takes a block that somebody waits for.
        """
        if len(step.granted) > self._config.max_drafting_seqs:
            return  # the batch is full
        samplers = [seq for seq in step.granted if seq.num_scheduled_tokens == seq.num_uncomputed_tokens]
        yielding = step.terms.yielding
        drafting = [(seq, seq.drafting) for seq in samplers if seq.drafting is not None and seq.flow not in yielding]
        worth = self._worth(step, len(samplers)) if drafting else None
        wanted: dict[Sequence, int] = {}
        for seq, state in drafting:
            assert worth is not None
            num_worthwhile = self._num_worthwhile(seq, 0, worth, self._config.draft_token_ns)
            # A proposal that costs nothing is worth being told of: the sequence returns by it.
            num_useful = num_worthwhile if self._config.draft_token_ns else self._most()
            state.limit = max(0, min(num_useful, seq.num_grantable - 2))
            step.may_propose = step.may_propose or state.limit > 0
            num_wanted = self._num_worthwhile(seq, state.num_certain, worth, 0.0)
            wanted[seq] = min(num_wanted, state.num_proposed, seq.num_grantable - 1)
            if not num_worthwhile and (state.num_proposed or not state.limit):
                _return(state)
        self._hand_out(step, wanted, worth)

    def _hand_out(self, step: Step, wanted: dict[Sequence, int], worth: Worth | None) -> None:
        for number in range(1, max(wanted.values(), default=0) + 1):
            for seq, num_wanted in wanted.items():
                if number <= num_wanted:
                    assert worth is not None
                    if self._has_room(step, seq, number) and self._spend(seq, worth):
                        self._memory.grow(step, seq, seq.num_tokens + number)
                        step.grant_draft(seq)
                    else:
                        wanted[seq] = 0

    def _has_room(self, step: Step, seq: Sequence, number: int) -> bool:
        has_block = seq.num_tokens + number <= self._lifecycle.blocks.capacity(seq.block_table)
        return step.budget > 0 and (has_block or self._memory.num_spare > 0)

    def _spend(self, seq: Sequence, worth: Worth) -> bool:
        """True if the step may be longer by a draft of `seq`: that time is spent."""
        if worth.left_ns is None:
            return True
        token_ns = self._token_ns(seq)
        if worth.left_ns[seq.flow] < token_ns:
            return False
        worth.left_ns[seq.flow] -= token_ns
        return True

    def _worth(self, step: Step, num_sampled: int) -> Worth:
        prices = self._lifecycle.prices
        if not prices.are_measured:
            return Worth(0.0, num_sampled, None)
        costs = prices.step
        chunks = [seq for seq in step.granted if seq.num_uncomputed_tokens > 1]
        step_ns = costs.base_ns + costs.decodes_ns(step.num_decodes, step.num_context)
        step_ns += sum([costs.chunk_ns(seq.num_computed_tokens, seq.num_scheduled_tokens) for seq in chunks])
        target_ns = self._config.target_step_ms * 1e6
        flows = dict.fromkeys(seq.flow for seq in step.granted)
        if len(flows) < 2:
            return Worth(step_ns, num_sampled, dict.fromkeys(flows, target_ns - step_ns) if target_ns else None)
        time_ns = SHARED_TIME * step_ns
        if target_ns:
            time_ns = min(time_ns, target_ns - step_ns)
        weights = step.weights(flows)
        total = sum(weights.values())
        return Worth(step_ns, num_sampled, {flow: time_ns * weight / total for flow, weight in weights.items()})

    def _num_worthwhile(self, seq: Sequence, num_certain: int, worth: Worth, draft_ns: float) -> int:
        """The longest draft, of which so many first tokens are certain, whose last token is right so often that it
        raises the step's tokens per time.

        Step time T and n tokens: one more token of time c and probability p raises n / T exactly if p · T > n · c.
        """
        least = self._config.min_draft_acceptance
        if worth.step_ns > 0:
            least = max(least, worth.num_sampled * (self._token_ns(seq) + draft_ns) / worth.step_ns)
        state = seq.drafting
        assert state is not None, "a sequence without speculation has no drafts"
        acceptance = min(MAX_ACCEPTANCE, state.right / state.tried)
        for num_drafts in range(self._most()):
            if acceptance ** max(0, num_drafts + 1 - num_certain) <= least:
                return num_drafts
        return self._most()

    def _token_ns(self, seq: Sequence) -> float:
        return self._lifecycle.prices.step.decodes_ns(1, seq.num_tokens)

    def _most(self) -> int:
        return self._config.num_draft_tokens


def settle(seq: Sequence, state: Drafting, num_accepted_tokens: int, num_proposed: int, num_certain: int = 0) -> None:
    """The open plan's drafts of `seq` are verified: it emitted so many tokens, all but the last of them drafts.

    The runner has proposed others now, of which the first ones are certain."""
    num_drafts, num_right = state.num_scheduled, min(state.num_scheduled, num_accepted_tokens - 1)
    num_guessed = num_right - min(num_right, state.num_certain)
    state.num_proposed, state.num_scheduled, state.limit = min(num_proposed, state.limit), 0, 0
    has_guessed = num_drafts > state.num_certain or num_right < num_drafts
    state.num_certain = min(num_certain, state.num_proposed)
    if not num_drafts:
        return
    seq.num_computed_tokens += num_right
    state.num_drafted += num_drafts
    state.num_accepted += num_right
    if has_guessed:
        state.right = FORGETTING * state.right + num_guessed
        state.tried = FORGETTING * state.tried + num_guessed + (num_right < num_drafts)
    account = seq.flow.account
    account.num_drafted_tokens += num_drafts
    account.num_accepted_tokens += num_right


def _return(state: Drafting) -> None:
    state.right += RETURNING * (PRIOR_RIGHT - state.right)
    state.tried += RETURNING * (PRIOR_TRIED - state.tried)
