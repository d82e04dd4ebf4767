"""Who gets blocks when they are short (fair-sharing rule R5), apart from who gets tokens.

reservation  a head that does not fit keeps its need from those behind it in the order, for this plan
claim        one such head at a time also takes blocks from sequences that give way, all that it needs or none, and
             keeps what is free from everyone until it comes in; it ends after a plan that began with enough free
             blocks and did not use them
growth       a running sequence that finds no block waits for this plan while one resident gives way

Nothing that was granted tokens in a plan is a victim in it, nothing preempted in it comes back in it, and after a
preemption only the owner of the claim is admitted. `min_resident_steps`, `max_preemptions` and the recomputation of
lost work protect against heads only. Holding and waiting lives here; who is fair to whom is up to the policy.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.config import AdmissionReserve, SchedulerConfig
from engine.core.guard import GuardedPreemption
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection
from engine.core.policy import Concession
from engine.core.preemption import Preemptions
from engine.core.reserve import peak_num_blocks
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import PauseReason, SequenceStatus


@dataclass(slots=True)
class Claim:
    """The one head that blocks are kept for. `was_ready`: the plan being made began with all of them free."""

    seq: Sequence
    num_blocks: int
    was_ready: bool = False


@dataclass(frozen=True, slots=True)
class Seizure:
    """A victim that was chosen for a claim, and how much of it."""

    victim: Sequence
    num_blocks: int
    swaps: bool
    is_capped: bool


class Memory:
    """Hands out the device blocks of one plan after the other."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, preemption: GuardedPreemption) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self.preemptions = Preemptions(config, lifecycle)
        self._policy = preemption
        self._claim: Claim | None = None
        self._num_reserved = 0
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
        """Blocks that a head lacks for all its known tokens; a swapped one has some of them."""
        return self._blocks.num_blocks(seq.num_tokens) - len(seq.block_table.device)

    def can_admit(self, step: Step, seq: Sequence) -> bool:
        """True if a head may come in now: its blocks are free, and beside it what has been promised to others."""
        num_needed = self.num_needed(seq)
        if self._claim is not None and self._claim.seq is seq:
            return self._blocks.num_free >= num_needed
        if step.has_preempted or num_needed > self.num_spare:
            return False
        return num_needed + self._num_growth(seq) <= self.num_spare or not self._can_anyone_grow()

    def use(self, seq: Sequence) -> None:
        """`seq` has come in; a claim of its own is used."""
        if self._claim is not None and self._claim.seq is seq:
            self._claim = None

    def reserve(self, seq: Sequence) -> None:
        """A head that found no room keeps its need from those behind it, if it could ever come in beside its own."""
        if not self._is_hopeless(seq) and not (self._claim is not None and self._claim.seq is seq):
            self._num_reserved += self.num_needed(seq)

    def has_free(self, seq: Sequence) -> bool:
        """True if a head would find enough free blocks that nobody claims, whatever was promised to others."""
        return self.num_needed(seq) <= self.num_unclaimed

    def enter(self, step: Step, seq: Sequence) -> bool:
        """True if a head whose flow has no blocks may use what is kept for the growth of others."""
        return (
            self._config.admission_reserve is AdmissionReserve.GROWTH
            and not step.has_preempted
            and not seq.flow.num_device_blocks
            and self.num_needed(seq) + self._num_promised(step) <= self.num_spare
        )

    def try_claim(self, step: Step, seq: Sequence) -> bool:
        """True if `seq` has opened a claim: free blocks, those on their way, and victims' together are enough.

        The growth that others were promised does not stand in the way of a claim, but their known tokens do.
        """
        is_link_free = self.preemptions.is_link_free(CopyDirection.OUT, step.now)
        if self._claim is not None or not is_link_free or self._is_hopeless(seq):
            return False
        num_needed = self.num_needed(seq)
        num_missing = num_needed - self._blocks.num_free - self._blocks.num_fenced + self._num_promised(step)
        if num_missing <= 0:
            return False  # only the growth of others is in its way
        seizures = self._choose(step, seq, num_missing)
        if seizures is None:
            return False
        self._claim = Claim(seq, num_needed)
        for seizure in seizures:
            self._seize(step, seizure)
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

    def give_way(self, step: Step, victim: Sequence) -> None:
        """All blocks of `victim` are free, whatever it loses."""
        self._note(step, victim)
        self.preemptions.recompute(victim, PauseReason.KV_PRESSURE, step.now)

    def _make_room(self, step: Step, claimant: Sequence) -> None:
        """One resident gives way for running work, whatever its residency; it may be the claimant itself."""
        offered = [*self._lifecycle.held[::-1][:1]] or list(
            self._policy.victims(self._residents(), claimant, self._lifecycle.policy.standing, step.now)
        )[:1]
        for victim in offered:
            num_moved = self.preemptions.num_moved(victim, self._blocks.num_blocks(self._config.growth_reserve_tokens))
            swaps = self.preemptions.can_swap(victim, num_moved) and self.preemptions.prefers_swap(victim, num_moved)
            victim.num_seizures += victim.hold_reason is None
            self._seize(step, Seizure(victim, num_moved, swaps, is_capped=False))

    def _choose(self, step: Step, claimant: Sequence, num_missing: int) -> list[Seizure] | None:
        """Victims whose blocks are enough, or None. The last one may keep what is not needed."""
        chosen: list[Seizure] = []
        num_host_free = self._blocks.host_pool.num_free
        for victim, concession in self._candidates(step, claimant):
            seizure = self._seizure(victim, concession, num_missing, num_host_free)
            if seizure is None:
                continue
            chosen.append(seizure)
            num_missing -= seizure.num_blocks
            num_host_free -= seizure.num_blocks if seizure.swaps else 0
            if num_missing <= 0:
                return chosen
        return None

    def _seizure(
        self, victim: Sequence, concession: Concession, num_missing: int, num_host_free: int
    ) -> Seizure | None:
        num_moved = self.preemptions.num_moved(victim, num_missing)
        can_swap = self.preemptions.can_swap(victim, num_moved) and num_moved <= num_host_free
        if concession is Concession.SWAP:
            return Seizure(victim, num_moved, swaps=True, is_capped=True) if can_swap else None
        if can_swap and self.preemptions.prefers_swap(victim, num_moved):
            return Seizure(victim, num_moved, swaps=True, is_capped=False)
        if self._blocks.num_movable(victim.block_table) < len(victim.block_table.device):
            return None  # dropping shared blocks frees nothing
        return Seizure(victim, len(victim.block_table.device), swaps=False, is_capped=False)

    def _candidates(self, step: Step, claimant: Sequence) -> abc.Iterator[tuple[Sequence, Concession]]:
        """Those that are not getting any further, whom nobody needs to ask, then those that concede, as the preemption
        policy ranks them."""
        for victim in self._idle():
            if victim is not claimant:
                yield victim, Concession.ANYTHING
        if self._config.admission_reserve is not AdmissionReserve.GROWTH:
            return  # those that came in were promised all that they may need
        concessions: dict[Sequence, Concession] = {}
        for victim in self._residents():
            if victim is not claimant and victim.status is not SequenceStatus.SWAPPED:
                concession = self._concession(step, victim, claimant)
                if concession is not Concession.NOTHING:
                    concessions[victim] = concession
        if concessions:
            standing = self._lifecycle.policy.standing
            for victim in self._policy.victims(tuple(concessions), claimant, standing, step.now):
                yield victim, concessions[victim]

    def _concession(self, step: Step, victim: Sequence, claimant: Sequence) -> Concession:
        concession = self._lifecycle.policy.concede(victim, claimant)
        if concession in (Concession.NOTHING, Concession.ROW):
            return Concession.NOTHING
        is_yielding = victim.flow in step.terms.yielding
        if is_yielding and not step.terms.protects_yielding:
            return concession
        is_fresh = self._lifecycle.num_plans - victim.resident_since < self._config.min_resident_steps
        is_regaining = victim.num_computed_tokens < victim.num_regained_tokens and not is_yielding
        is_capped = concession is Concession.SWAP and victim.num_seizures >= self._config.max_preemptions
        return Concession.NOTHING if is_fresh or is_regaining or is_capped else concession

    def _seize(self, step: Step, seizure: Seizure) -> None:
        victim = seizure.victim
        victim.num_seizures += seizure.is_capped
        self._note(step, victim)
        reason = victim.hold_reason or (
            PauseReason.FAIRNESS if victim.flow in step.terms.yielding else PauseReason.KV_PRESSURE
        )
        if seizure.swaps:
            self.preemptions.swap_out(victim, seizure.num_blocks, reason, step.now)
        else:
            self.preemptions.recompute(victim, reason, step.now)

    def _note(self, step: Step, victim: Sequence) -> None:
        # A held sequence was not getting any further, so taking its blocks cannot start a back and forth.
        step.has_preempted = step.has_preempted or victim.hold_reason is None

    def _residents(self) -> list[Sequence]:
        """The sequences that have blocks, are not held and were not granted tokens in this plan, by arrival."""
        lifecycle = self._lifecycle
        residents = [seq for seq in lifecycle.running if not seq.num_scheduled_tokens]
        residents += lifecycle.paused
        residents += self._kept_by_swapped()
        residents.sort(key=lambda seq: seq.arrival_index)
        return residents

    def _kept_by_swapped(self) -> list[Sequence]:
        return [seq for seq in self._lifecycle.swapped if seq.block_table.device]

    def _idle(self) -> list[Sequence]:
        """Held sequences, then swapped ones with what they have left, the latest arrivals first."""
        return [*reversed(self._lifecycle.held), *reversed(self._kept_by_swapped())]

    def _can_anyone_grow(self) -> bool:
        lifecycle = self._lifecycle
        return bool(lifecycle.running or lifecycle.paused or self._blocks.in_flight)

    def _is_hopeless(self, seq: Sequence) -> bool:
        """True if `seq` would not fit beside the blocks of its own flow even if all others were gone."""
        idle = [other for other in self._idle() if other.flow is seq.flow]
        num_own = seq.flow.num_device_blocks - sum(len(other.block_table.device) for other in idle)
        return num_own + self._blocks.num_blocks(seq.num_tokens) > self._config.num_device_blocks

    def _num_promised(self, step: Step) -> int:
        """Blocks that residents still need for their known tokens, but for those that yield."""
        yielding, num_blocks = step.terms.yielding, self._blocks.num_blocks
        residents = (*self._lifecycle.running, *self._lifecycle.paused)
        return sum(
            num_blocks(seq.num_tokens) - len(seq.block_table.device) for seq in residents if seq.flow not in yielding
        )

    def _num_growth(self, head: Sequence) -> int:
        """Blocks that must stay free beside the known tokens of `head`."""
        lifecycle = self._lifecycle
        residents = [*lifecycle.running, *lifecycle.paused]
        if self._config.admission_reserve is AdmissionReserve.PEAK:
            return peak_num_blocks([*residents, head], self._blocks) - self.num_needed(head)
        return sum(map(self._num_lacking, residents)) + self._num_lacking(head) - self.num_needed(head)

    def _num_lacking(self, seq: Sequence) -> int:
        """Blocks that `seq` still needs for its known tokens and the growth that is reserved for it."""
        num_tokens = seq.max_num_tokens
        if self._config.admission_reserve is not AdmissionReserve.WHOLE:
            num_tokens = min(seq.num_tokens + self._config.growth_reserve_tokens, num_tokens)
        return self._blocks.num_blocks(num_tokens) - len(seq.block_table.device)
