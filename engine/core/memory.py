"""Who gets blocks when they are short (rule R5 of docs/fairness.md), apart from who gets tokens.

reservation  a head that does not fit keeps its need from those behind it in the order, for this plan
claim        one such head at a time also takes blocks from sequences that give way, all that it needs or none, and
             keeps what is free from everyone until it comes in; it ends after a plan that began with enough free
             blocks and did not use them
growth       a running sequence that finds no block waits for this plan while one resident gives way

Nothing that was preempted in a plan comes back in it, and after a preemption only the owner of the claim is admitted.
Holding and waiting lives here, whose blocks are taken in `victims`; who is fair to whom is up to the policy.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.config import AdmissionReserve, SchedulerConfig
from engine.core.guard import GuardedPreemption
from engine.core.lifecycle import Lifecycle
from engine.core.light import holds_little
from engine.core.plan import CopyDirection
from engine.core.preemption import Preemptions
from engine.core.reserve import peak_num_blocks
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import PauseReason, SequenceStatus
from engine.core.victims import Seizure, Victims, is_stuck


@dataclass(slots=True)
class Claim:
    """The one head that blocks are kept for. `was_ready`: the plan being made began with all of them free."""

    seq: Sequence
    num_blocks: int
    was_ready: bool = False


class Memory:
    """Hands out the device blocks of one plan after the other."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, preemption: GuardedPreemption) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self.preemptions = Preemptions(config, lifecycle)
        self._victims = Victims(config, lifecycle, self.preemptions, preemption)
        self._claim: Claim | None = None
        self._num_reserved = 0
        self._num_lacking_by_others: int | None = None  # of residents, known from the first question in a plan on
        self._num_known_lacking: int | None = None  # likewise, for their known tokens; until a table changes
        self._has_grown = False

    @property
    def claimant(self) -> Sequence | None:
        """Whom blocks are kept for."""
        return None if self._claim is None else self._claim.seq

    @property
    def num_unclaimed(self) -> int:
        """Free blocks that running sequences may take."""
        return self._blocks.num_free - (0 if self._claim is None else self._claim.num_blocks)

    @property
    def num_spare(self) -> int:
        """Free blocks that nobody reserved."""
        return self.num_unclaimed - self._num_reserved

    def begin(self, step: Step) -> None:
        """A plan begins. A claim ends whose owner is gone, is held, or yields."""
        self._num_reserved = 0
        self._num_lacking_by_others = self._num_known_lacking = None
        self._has_grown = False
        claim = self._claim
        if claim is None:
            return
        seq = claim.seq
        is_head = seq.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED) and seq.hold_reason is None
        if not is_head or seq.flow in step.terms.yielding:
            self._claim = None
        else:
            claim.num_blocks = self.num_needed(seq)
            claim.was_ready = self._blocks.num_free >= claim.num_blocks

    def end(self) -> None:
        """The plan is made. A claim ends that could have been used and was not."""
        if self._claim is not None and self._claim.was_ready:
            self._claim = None

    def num_needed(self, seq: Sequence) -> int:
        """Blocks that a head lacks for all its known tokens; a swapped one has some of them, others find some."""
        return self._blocks.num_missing(seq)

    def can_admit(self, step: Step, seq: Sequence) -> bool:
        """True if a head may come in now: its blocks are free, and beside it what has been promised to others."""
        num_needed = self.num_needed(seq)
        if self._claim is not None and self._claim.seq is seq:
            return self._blocks.num_free >= num_needed
        return not step.has_preempted and self._has_room(step, seq, self.num_spare)

    def use(self, seq: Sequence) -> None:
        """`seq` has come in; a claim of its own is used."""
        self._num_known_lacking = None
        if self._claim is not None and self._claim.seq is seq:
            self._claim = None
        if self._num_lacking_by_others is not None:
            self._num_lacking_by_others += self._num_lacking([seq])

    def reserve(self, seq: Sequence) -> None:
        """A head that found no room keeps its need from those behind it, if it could ever come in beside its own."""
        if not self._is_hopeless(seq) and not (self._claim is not None and self._claim.seq is seq):
            self._num_reserved += self.num_needed(seq)

    def claim(self, step: Step, heads: abc.Iterable[Sequence]) -> None:
        """The first of `heads`, in the order of the pass, that finds no room behind the others and can get it has a
        claim. Heads behind one that comes in are not looked at."""
        num_reserved = 0
        for seq in heads:
            if self._claim is not None or self._has_room(step, seq, self.num_spare - num_reserved):
                return
            if self._try_claim(step, seq, is_behind=self._num_reserved > 0):
                return
            num_reserved += 0 if self._is_hopeless(seq) else self.num_needed(seq)

    def _has_room(self, step: Step, seq: Sequence, num_spare: int) -> bool:
        """True if `num_spare` blocks hold the known tokens of `seq` and what is kept for the growth of others.

        A flow that has hardly anything of its share of the pool need not leave them more than their known tokens.
        """
        num_needed = self.num_needed(seq)
        if num_needed > num_spare:
            return False
        if num_needed + self._num_growth(step, seq) <= num_spare or not self._can_anyone_grow(step):
            return True
        return num_needed + self._num_promised(step) <= num_spare and self.is_light(step, seq)

    def _try_claim(self, step: Step, seq: Sequence, *, is_behind: bool) -> bool:
        """True if `seq` has opened a claim: free blocks, those on their way, and victims' together are enough.

        The growth that others were promised and what heads before it reserved do not stand in the way of a claim, but
        the known tokens of others do. `is_behind`: a class before its own reserved some.
        """
        is_link_free = self.preemptions.is_link_free(CopyDirection.OUT, step.now)
        if not is_link_free or self._is_hopeless(seq):
            return False
        num_needed = self.num_needed(seq)
        num_missing = num_needed - self._blocks.num_free - self._blocks.num_fenced + self._num_promised(step)
        if num_missing <= 0 and not (is_behind or self.is_light(step, seq)):
            return False  # only the growth of others is in its way
        seizures = self._victims.of_claim(step, seq, num_missing) if num_missing > 0 else []
        if seizures is None:
            return False
        self._claim = Claim(seq, num_needed)
        for seizure in seizures:
            self._seize(step, seizure, seq)
        return True

    def has_block(self, step: Step, seq: Sequence, *, is_entitled: bool) -> bool:
        """True if a running sequence that needs another block may take one; one that is entitled to it makes room."""
        if not is_entitled:
            return self.num_spare > 0
        if self.num_unclaimed > 0:
            return True
        if self._has_grown or self._blocks.num_fenced or self._blocks.num_free > 0:
            return False  # what is claimed is used or free again after a plan: nothing need be lost for it
        self._has_grown = True
        self._make_room(step, seq)
        return self.num_unclaimed > 0 and seq.row is not None

    def num_takeable(self, *, is_entitled: bool) -> int:
        """Free blocks that running sequences may take, whether they are entitled to what is reserved, or not."""
        return self.num_unclaimed if is_entitled else self.num_spare

    def grow(self, step: Step, seq: Sequence, num_tokens: int) -> None:
        """The table of `seq` holds `num_tokens` tokens. The caller has checked that the blocks are free."""
        if num_tokens > self._blocks.capacity(seq.block_table):
            self._num_known_lacking = None
            step.num_old_blocks.setdefault(seq, len(seq.block_table.device))
            self._blocks.grow(seq, num_tokens)

    def grow_by_one(self, step: Step, seqs: abc.Sequence[Sequence]) -> None:
        """Each of `seqs`, all of them different, has a block more. The caller has checked that so many are free."""
        self._num_known_lacking = None
        for seq in seqs:
            step.num_old_blocks.setdefault(seq, len(seq.block_table.device))
        self._blocks.grow_by_one(seqs)

    def give_way(self, step: Step, victim: Sequence) -> None:
        """All blocks of `victim` are free, whatever it loses."""
        self._note(step, victim)
        self.preemptions.recompute(victim, PauseReason.KV_PRESSURE, step.now)

    def _make_room(self, step: Step, claimant: Sequence) -> None:
        """One resident gives way for running work, whatever its residency; it may be the claimant itself."""
        victim = self._victims.of_growth(step, claimant)
        if victim is None:
            return
        num_moved = self.preemptions.num_moved(victim, self._blocks.num_blocks(self._config.growth_reserve_tokens))
        swaps = self.preemptions.can_swap(victim, num_moved) and self.preemptions.prefers_swap(victim, num_moved)
        self._seize(step, Seizure(victim, num_moved, swaps, is_capped=not is_stuck(victim)), claimant)

    def _seize(self, step: Step, seizure: Seizure, claimant: Sequence) -> None:
        victim = seizure.victim
        generation_id = "" if claimant is victim else claimant.request.generation_id
        victim.num_seizures += seizure.is_capped
        self._note(step, victim)
        reason = victim.hold_reason
        if reason is None or not is_stuck(victim):
            reason = PauseReason.FAIRNESS if victim.flow in step.terms.yielding else PauseReason.KV_PRESSURE
        if seizure.swaps:
            self.preemptions.swap_out(victim, seizure.num_blocks, reason, step.now, generation_id)
        else:
            self.preemptions.recompute(victim, reason, step.now, generation_id)

    def _note(self, step: Step, victim: Sequence) -> None:
        self._num_known_lacking = None
        # A held sequence was not getting any further, so taking its blocks cannot start a back and forth.
        step.has_preempted = step.has_preempted or not is_stuck(victim)

    def _can_anyone_grow(self, step: Step) -> bool:
        yielding, lifecycle = step.terms.yielding, self._lifecycle
        can_grow = any(seq.flow not in yielding for seq in (*lifecycle.running, *lifecycle.paused))
        return can_grow or bool(self._blocks.in_flight)

    def _growing(self, step: Step) -> list[Sequence]:
        """Residents that go on in this plan whoever comes in: those that do not yield."""
        yielding, residents = step.terms.yielding, [*self._lifecycle.running, *self._lifecycle.paused]
        return [seq for seq in residents if seq.flow not in yielding] if yielding else residents

    def is_light(self, step: Step, seq: Sequence) -> bool:
        """True if the flow of a head stays within its share of the pool with it, or within half if it has some blocks.

        A flow that is alone is never light: its growth is its own.
        """
        if self._config.admission_reserve is not AdmissionReserve.GROWTH:
            return False
        shares = self._victims.shares(step, seq.flow)
        is_alone = len(shares.weights) < 2
        return not is_alone and holds_little(seq.flow.num_device_blocks, self.num_needed(seq), shares.of(seq.flow))

    def _is_hopeless(self, seq: Sequence) -> bool:
        """True if `seq` would not fit beside the blocks of its own flow even if all others were gone."""
        idle = [other for other in self._victims.idle(seq.flow) if other.flow is seq.flow]
        num_idle = self._blocks.pool.num_freed([block_id for other in idle for block_id in other.block_table.device])
        num_own = seq.flow.num_device_blocks - num_idle
        return num_own + self._blocks.num_missing(seq) > self._config.num_device_blocks

    def _num_promised(self, step: Step) -> int:
        """Blocks that residents still need for their known tokens, but for those that yield."""
        if self._num_known_lacking is None:
            size = self._config.block_size
            lacking = [-(-seq.num_tokens // size) - len(seq.block_table.device) for seq in self._growing(step)]
            self._num_known_lacking = sum(lacking)
        return self._num_known_lacking

    def _num_growth(self, step: Step, head: Sequence) -> int:
        """Blocks that must stay free beside the known tokens of `head`."""
        if self._config.admission_reserve is AdmissionReserve.PEAK:
            residents = [*self._lifecycle.running, *self._lifecycle.paused, head]
            return peak_num_blocks(residents, self._blocks) - self._num_lacked(head)
        if self._num_lacking_by_others is None:
            is_promised = self._config.admission_reserve is AdmissionReserve.WHOLE
            residents = [*self._lifecycle.running, *self._lifecycle.paused] if is_promised else self._growing(step)
            self._num_lacking_by_others = self._num_lacking(residents)
        return self._num_lacking_by_others + self._num_lacking([head]) - self._num_lacked(head)

    def _num_lacked(self, head: Sequence) -> int:
        """Blocks for its known tokens that are not in its table, whether it finds some or not."""
        return self._blocks.num_blocks(head.num_tokens) - len(head.block_table.device)

    def _num_lacking(self, seqs: abc.Iterable[Sequence]) -> int:
        """Blocks that `seqs` still need for their known tokens and the growth that is reserved for them."""
        size, num_more = self._config.block_size, self._config.growth_reserve_tokens
        if self._config.admission_reserve is AdmissionReserve.WHOLE:
            num_more = self._config.max_request_tokens
        num_blocks = 0
        for seq in seqs:  # all residents, once per plan: calls would cost more than the arithmetic
            num_tokens, num_most = seq.num_tokens + num_more, seq.max_num_tokens
            num_blocks -= -(num_tokens if num_tokens < num_most else num_most) // size + len(seq.block_table.device)
        return num_blocks
