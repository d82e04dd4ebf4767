"""What a step computes. The rules of `plan`, and what goes wrong without each:

1. Decodes of running sequences in order of arrival, then the next chunks of running prompts in policy order, then
   sequences that kept their blocks, then admissions in policy order. A misfit ends admission, never running work:
   in one pass over all, a waiting request that does not fit would stop those that could make room for it.
2. Whatever runs may preempt, half-computed prompts too: two of them that fill the pool would wait for each other.
3. Nothing preempted in a plan returns in it, and a plan that preempted admits nobody: else they swap places for ever.
4. A request is admitted when all its known tokens fit, beside what the running ones still need for theirs, with some
   growth for each: a sequence that resumes into a full pool would lose its blocks again at once.
5. A veto of the preemption policy holds while anything runs. When nothing can, the latest arrivals give way to the
   first, which fits alone because `add` refuses what does not: no pair of policies can stop the engine.
6. Ties are broken by arrival.

Held sequences get no tokens whatever the policies say, so they are the first victims and losing them admits others.
So each step computes something as long as any sequence may get tokens. Source of chunked prefill mixed with decode:
Agrawal et al. 2024 (Sarathi-Serve); of recomputation under shortage: Kwon et al. 2023 (PagedAttention), §4.5.
"""

from collections import abc

from engine.core.config import SchedulerConfig
from engine.core.errors import PolicyFaultError
from engine.core.lifecycle import Lifecycle
from engine.core.policy import PreemptionPolicy
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import Nanos, SequenceStatus


class Planner:
    """Fills one step after the other. Changes states only through `lifecycle`."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, preemption: PreemptionPolicy) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._preemption = preemption
        self._turn = max(1, int(config.max_prefill_share * config.max_num_batched_tokens))

    def plan(self, now: Nanos) -> Step:
        """The next step; it grants nothing exactly when no sequence may get tokens."""
        step = Step(now, self._config.max_num_batched_tokens)
        self._decode(step)
        self._prefill(step)
        self._resume(step)
        if not step.granted:
            self._break_deadlock(step)
        if not step.has_preempted:
            self._admit(step)
        self._share_out_rest(step)
        return step

    def _decode(self, step: Step) -> None:
        for seq in tuple(self._lifecycle.running):
            if seq.row is None:
                continue  # gave its blocks to an earlier one
            if seq.num_tokens - seq.num_computed_tokens > 1:
                step.prefills.append(seq)
            elif seq.num_computed_tokens < self._blocks.capacity(seq.block_table):
                step.grant(seq, 1)
            elif self._has_room(step, seq):
                self._advance(step, seq)

    def _prefill(self, step: Step) -> None:
        key = self._lifecycle.policy.key
        step.prefills.sort(key=lambda seq: (key(seq), seq.arrival_index))
        for seq in step.prefills:
            if step.budget and seq.row is not None and self._has_room(step, seq):
                self._advance(step, seq)

    def _resume(self, step: Step) -> None:
        for seq in tuple(self._lifecycle.resuming):
            if not (step.budget and self._lifecycle.rows.num_free):
                return
            if seq.block_table.device and self._has_room(step, seq):
                self._start(step, seq)

    def _break_deadlock(self, step: Step) -> None:
        """The first to arrive that has blocks is granted tokens, whoever must give way."""
        first = next(iter(self._lifecycle.running or self._lifecycle.resuming), None)
        if first is None:
            return
        others = [seq for seq in self._residents() if seq is not first]
        while not self._blocks.has_room(first):
            self._preempt(step, others.pop())
        if first.row is None:
            self._start(step, first)
        else:
            self._advance(step, first)

    def _admit(self, step: Step) -> None:
        seq = self._next_waiting(step)
        num_reserved = 0 if seq is None else sum(map(self._num_lacking, self._residents()))
        while seq is not None and self._make_place(step, seq, num_reserved):
            self._start(step, seq)
            num_reserved += self._num_lacking(seq)
            seq = self._next_waiting(step)

    def _share_out_rest(self, step: Step) -> None:
        """What nobody could use in the first turn goes round among the prompts until budget, blocks or prompts end."""
        wanting = [seq for seq in step.prefills if seq.row is not None]
        while step.budget and wanting:
            wanting = [seq for seq in wanting if self._advance(step, seq)]

    def _advance(self, step: Step, seq: Sequence) -> bool:
        """Grant `seq` one turn's tokens, or as many as it lacks and budget and blocks allow. False if that is none."""
        table = seq.block_table
        start = seq.num_computed_tokens + seq.num_scheduled_tokens
        end = min(start + min(self._turn, step.budget), seq.num_tokens, self._blocks.max_capacity(table))
        if end <= start:
            return False
        if end > self._blocks.capacity(table):
            step.num_old_blocks.setdefault(seq, len(table.device))
            self._blocks.grow(table, end)
        step.grant(seq, end - start)
        return True

    def _start(self, step: Step, seq: Sequence) -> None:
        self._lifecycle.start(seq, step.now)
        step.started.append(seq)
        step.prefills.append(seq)
        self._advance(step, seq)

    def _has_room(self, step: Step, claimant: Sequence) -> bool:
        """True if a block is left for the next token of `claimant`, after preempting for it if need be."""
        if self._blocks.has_room(claimant):
            return True
        for victim in self._victims(step, claimant):
            self._preempt(step, victim)
            if victim is claimant or self._blocks.num_free:
                return victim is not claimant
        return False

    def _victims(self, step: Step, claimant: Sequence) -> abc.Iterator[Sequence]:
        while self._lifecycle.held:
            yield self._lifecycle.held[-1]
        offered = {seq.key: seq for seq in self._residents() if not seq.num_scheduled_tokens}
        standing = self._lifecycle.policy.standing()
        for view in self._preemption.victims(tuple(offered.values()), claimant, standing, step.now):
            victim = offered.pop(view.key, None)
            if victim is None:
                raise PolicyFaultError(f"the preemption policy chose {view.key}, which it was not offered")
            yield victim

    def _preempt(self, step: Step, victim: Sequence) -> None:
        # A held sequence was not getting any further, so taking its blocks cannot start a back and forth.
        step.has_preempted = step.has_preempted or victim.hold_reason is None
        self._lifecycle.preempt(victim, step.now)

    def _residents(self) -> list[Sequence]:
        """The sequences that have blocks and are not held, in order of arrival."""
        residents = [*self._lifecycle.running, *self._lifecycle.resuming]
        return sorted(residents, key=lambda seq: seq.arrival_index)

    def _next_waiting(self, step: Step) -> Sequence | None:
        if not (step.budget and self._lifecycle.rows.num_free):
            return None
        view = self._lifecycle.policy.select(step.now)
        if view is None:
            return None
        seq = self._lifecycle.by_generation.get(view.key.generation_id)
        if seq is None or seq.status is not SequenceStatus.WAITING:
            raise PolicyFaultError(f"the scheduling policy selected {view.key}, which is not waiting")
        return seq

    def _make_place(self, step: Step, seq: Sequence, num_reserved: int) -> bool:
        """True if `seq` may be admitted beside `num_reserved` reserved blocks, taking those of held ones if need be."""
        if not self._config.enable_chunked_prefill and seq.num_tokens > step.budget:
            return False
        held = self._lifecycle.held
        num_missing = num_reserved + self._num_lacking(seq) - self._blocks.num_free
        if num_missing > sum(len(victim.block_table.device) for victim in held):
            return False
        while num_missing > 0:
            num_missing -= len(held[-1].block_table.device)
            self._preempt(step, held[-1])
        return True

    def _num_lacking(self, seq: Sequence) -> int:
        """Blocks that `seq` still needs for its known tokens and the growth reserve."""
        num_tokens = min(seq.num_tokens + self._config.growth_reserve_tokens, seq.max_num_tokens)
        return self._blocks.num_blocks(num_tokens) - len(seq.block_table.device)
