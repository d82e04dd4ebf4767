"""Whose blocks are taken, and how much of them: for a claim of a head, or for the growth of running work.

Victims of a claim are those that are not getting any further (held, or swapped with something left on the device), then
those that concede, in the order of the preemption policy. A beam that is held for its siblings will get on: only its
own flow may take its blocks unasked, so that the siblings find some. `min_resident_steps`, `max_preemptions` and the
recomputation of lost work protect against heads only. Nothing that was granted tokens in a plan is a victim in it.
Takes nothing.
"""

import math
from collections import abc
from dataclasses import dataclass

from engine.core.by_arrival import ARRIVAL
from engine.core.config import AdmissionReserve, SchedulerConfig
from engine.core.flow import Flow
from engine.core.guard import GuardedPreemption
from engine.core.lifecycle import Lifecycle
from engine.core.policy import Concession
from engine.core.preemption import Preemptions
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import BlockId, PauseReason

GOING_ON = (None, PauseReason.SIBLINGS)
OF_BLOCKS = (Concession.SWAP, Concession.ANYTHING)


def is_stuck(seq: Sequence) -> bool:
    """True if it is held for another reason than that its siblings are still to be computed."""
    return seq.hold_reason not in GOING_ON


class PoolShares:
    """Blocks that are each flow's by weight, of the flows in `weights`."""

    def __init__(self, weights: abc.Mapping[Flow, float], num_blocks: int) -> None:
        self.weights = weights
        self._per_weight = num_blocks / math.fsum(weights.values()) if weights else 0.0

    def of(self, flow: Flow) -> float:
        """0 for a flow that is not among them."""
        return self.weights.get(flow, 0.0) * self._per_weight


@dataclass(frozen=True, slots=True)
class Seizure:
    """A victim that was chosen for a claim, and how much of it."""

    victim: Sequence
    num_blocks: int
    swaps: bool
    is_capped: bool


class Victims:
    """Ranks and sizes what may be taken from whom."""

    def __init__(
        self, config: SchedulerConfig, lifecycle: Lifecycle, preemptions: Preemptions, policy: GuardedPreemption
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._preemptions = preemptions
        self._policy = policy
        self._weighed_in: Step | None = None
        self._shares = PoolShares({}, config.num_device_blocks)  # of those that had blocks when the plan first asked

    def of_growth(self, step: Step, claimant: Sequence) -> Sequence | None:
        """A held sequence, else one of a flow above its share of the pool, not preempted too often, else any."""
        held = self._held(claimant.flow)
        if held:
            return held[-1]
        residents = sorted(self._residents(claimant.flow) + self._kept_by_swapped(), key=ARRIVAL)
        shares = self.shares(step, claimant.flow)
        heavy = [
            seq for seq in residents if seq.flow is claimant.flow or seq.flow.num_device_blocks > shares.of(seq.flow)
        ]
        fresh = [seq for seq in heavy if seq.num_seizures < self._config.max_preemptions]
        standing = self._lifecycle.policy.standing
        for offered in (fresh, heavy, residents):
            victim = next(self._policy.victims(offered, claimant, standing, step.now), None) if offered else None
            if victim is not None:
                return victim
        return None

    def of_claim(self, step: Step, claimant: Sequence, num_missing: int) -> list[Seizure] | None:
        """Victims whose blocks are enough, or None. The last one may keep what is not needed."""
        chosen: list[Seizure] = []
        dropped: list[BlockId] = []
        num_host_free = self._blocks.host_pool.num_free
        shares = self.shares(step, claimant.flow)
        num_left: dict[Flow, int] = {}  # blocks of flows that gave some already
        for victim, concession in self._candidates(step, claimant):
            num_held = num_left.get(victim.flow, victim.flow.num_device_blocks)
            if concession is Concession.SWAP and chosen and num_held <= shares.of(victim.flow):
                continue
            seizure = self._seizure(victim, concession, num_missing, num_host_free, dropped)
            if seizure is None:
                continue
            chosen.append(seizure)
            if not seizure.swaps:
                dropped += victim.block_table.device
            num_left[victim.flow] = num_held - seizure.num_blocks
            num_missing -= seizure.num_blocks
            num_host_free -= seizure.num_blocks if seizure.swaps else 0
            if num_missing <= 0:
                return chosen
        return None

    def idle(self, claimant: Flow) -> list[Sequence]:
        """Held sequences, then swapped ones with what they have left, the latest arrivals first."""
        return [*reversed(self._held(claimant)), *reversed(self._kept_by_swapped())]

    def shares(self, step: Step, claimant: Flow) -> PoolShares:
        """Of the flows that have blocks and the one that asks for more."""
        num_blocks = self._config.num_device_blocks
        if step is not self._weighed_in:
            residents = (*self._lifecycle.running, *self._lifecycle.paused)
            weights = step.weights(dict.fromkeys([seq.flow for seq in residents]))
            self._weighed_in, self._shares = step, PoolShares(weights, num_blocks)
        known = self._shares.weights
        if claimant in known:
            return self._shares
        return PoolShares({**known, claimant: step.weight(claimant)}, num_blocks)

    def _seizure(
        self,
        victim: Sequence,
        concession: Concession,
        num_missing: int,
        num_host_free: int,
        dropped: abc.Sequence[BlockId],
    ) -> Seizure | None:
        """`dropped` are the blocks of victims whose tokens will be computed again."""
        num_moved = self._preemptions.num_moved(victim, num_missing)
        can_swap = self._preemptions.can_swap(victim, num_moved) and num_moved <= num_host_free
        if concession is Concession.SWAP:
            return Seizure(victim, num_moved, swaps=True, is_capped=True) if can_swap else None
        if can_swap and self._preemptions.prefers_swap(victim, num_moved):
            return Seizure(victim, num_moved, swaps=True, is_capped=False)
        pool = self._blocks.pool
        num_gained = pool.num_freed([*dropped, *victim.block_table.device]) - pool.num_freed(dropped)
        if not num_gained and victim.beam is None:
            return None  # dropping shared blocks frees nothing; those of beams, their siblings may give up, too
        return Seizure(victim, num_gained, swaps=False, is_capped=False)

    def _candidates(self, step: Step, claimant: Sequence) -> abc.Iterator[tuple[Sequence, Concession]]:
        """Those that are not getting any further, whom nobody needs to ask, then those that concede, as the preemption
        policy ranks them."""
        classes_count = step.terms.class_order is not None
        for victim in self.idle(claimant.flow):
            is_above = (
                classes_count and victim.priority_class.rank < claimant.priority_class.rank and not is_stuck(victim)
            )
            if victim is not claimant and not is_above:
                yield victim, Concession.ANYTHING
        if self._config.admission_reserve is not AdmissionReserve.GROWTH:
            return  # those that came in were promised all that they may need
        concessions = self._concessions(step, claimant)
        if concessions:
            standing = self._lifecycle.policy.standing
            for victim in self._policy.victims(tuple(concessions), claimant, standing, step.now):
                yield victim, concessions[victim]

    def _concessions(self, step: Step, claimant: Sequence) -> dict[Sequence, Concession]:
        """What the residents concede that nothing protects, by arrival."""
        askable = self._askable(step, claimant)
        concessions = self._lifecycle.policy.concessions(askable, claimant) if askable else {}
        return {
            victim: concession
            for victim, concession in concessions.items()
            if concession in OF_BLOCKS and not self._is_protected(step, victim, concession)
        }

    def _askable(self, step: Step, claimant: Sequence) -> list[Sequence]:
        """The residents that may concede something, as far as the policy's terms tell."""
        residents = [seq for seq in self._residents(claimant.flow) if seq is not claimant]
        if not step.terms.concedes_by_share:
            return residents
        name, yielding = claimant.flow.priority_class.name, step.terms.yielding
        shares = self.shares(step, claimant.flow)
        can_give = {
            flow
            for flow in dict.fromkeys([seq.flow for seq in residents])
            if flow in yielding or flow.priority_class.name != name or flow.num_device_blocks > shares.of(flow)
        }
        return [seq for seq in residents if seq.flow in can_give] if can_give else []

    def _is_protected(self, step: Step, victim: Sequence, concession: Concession) -> bool:
        is_yielding = victim.flow in step.terms.yielding
        if is_yielding and not step.terms.protects_yielding:
            return False
        is_fresh = self._lifecycle.num_plans - victim.resident_since < self._config.min_resident_steps
        is_regaining = 0 < victim.num_regained_tokens >= victim.num_computed_tokens and not is_yielding
        is_capped = concession is Concession.SWAP and victim.num_seizures >= self._config.max_preemptions
        return is_fresh or is_regaining or is_capped

    def _residents(self, claimant: Flow) -> list[Sequence]:
        """Those that run or are paused, are not held and were not granted tokens in this plan, by arrival; and what is
        held that only its own flow may take."""
        lifecycle = self._lifecycle
        residents = [seq for seq in lifecycle.running if not seq.num_scheduled_tokens]
        residents += [seq for seq in lifecycle.held if seq.flow is not claimant and not is_stuck(seq)]
        return sorted(residents + lifecycle.paused, key=ARRIVAL)

    def _held(self, claimant: Flow) -> list[Sequence]:
        """Those that nobody needs to ask, by arrival."""
        return [seq for seq in self._lifecycle.held if seq.flow is claimant or is_stuck(seq)]

    def _kept_by_swapped(self) -> list[Sequence]:
        return [seq for seq in self._lifecycle.swapped if seq.block_table.device]
