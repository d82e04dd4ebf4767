"""Rows of the batch in a plan: who may take one when all are taken, and from whom.

First from those that are paused and keep theirs, then from those that would be served later than the one that asks,
last from one that was served already and concedes it. Whoever loses a row keeps its blocks.
"""

from engine.core.lifecycle import Lifecycle
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.types import PauseReason, SequenceStatus

MAX_ASKED = 16  # sequences per plan


class RowGiver:
    """The rows of one plan after the other. `are_exhausted`: in this plan a head asked in vain.

    `lends_decodes` False: a decode without a grant is not idle, as it takes turns with the prompts.
    """

    def __init__(self, lifecycle: Lifecycle, *, lends_decodes: bool) -> None:
        self._lifecycle = lifecycle
        self._lends_decodes = lends_decodes
        self._has_revoked = False
        self._is_vain_for_residents = False
        self.are_exhausted = False

    def begin(self) -> None:
        """A plan begins."""
        self._has_revoked = self.are_exhausted = self._is_vain_for_residents = False

    def can_take(self, step: Step, seq: Sequence) -> bool:
        """True if `take` would find a row for `seq`."""
        return self._has_row(seq) or self._owner(step, seq) is not None

    def take(self, step: Step, seq: Sequence) -> bool:
        """True if a row is free for `seq`, which has none or a row of its own."""
        if self._has_row(seq):
            return True
        owner = self._owner(step, seq)
        if owner is None:
            return False
        if owner.num_scheduled_tokens:
            step.revoke(owner)
            self._has_revoked = True
        if owner.status is SequenceStatus.RUNNING:
            self._lifecycle.pause(owner, PauseReason.FAIRNESS, step.now)
        self._lifecycle.leave_row(owner)
        return True

    def take_anyway(self, step: Step, seq: Sequence) -> None:
        """`seq` has a row or finds a free one: the latest that runs gives its own, as nothing was granted to it."""
        if not self.take(step, seq):
            owner = self._lifecycle.running[-1]
            self._lifecycle.pause(owner, PauseReason.KV_PRESSURE, step.now)
            self._lifecycle.leave_row(owner)

    def _has_row(self, seq: Sequence) -> bool:
        return seq.row is not None or self._lifecycle.rows.num_free > 0

    def _owner(self, step: Step, seq: Sequence) -> Sequence | None:
        return self._idle_owner(step, seq) or self._conceding_owner(step, seq)

    def _idle_owner(self, step: Step, seq: Sequence) -> Sequence | None:
        """The latest of those that have a row and nothing to do with it in this plan so far.

        Asked in the order of service: a running sequence without a grant is served later than `seq`, or not at all.
        """
        lifecycle, rows = self._lifecycle, self._lifecycle.rows
        if rows.num_rows - rows.num_free > len(lifecycle.running):  # while no plan is open, the others are theirs
            for owner in reversed(lifecycle.paused):
                if owner.row is not None and owner is not seq:
                    return owner
        if len(step.granted) == len(lifecycle.running):
            return None
        for owner in reversed(lifecycle.running):
            is_later = owner.flow is not seq.flow or owner.arrival_index > seq.arrival_index
            lends = self._lends_decodes or owner.num_uncomputed_tokens > 1
            if not owner.num_scheduled_tokens and owner is not seq and is_later and lends:
                return owner
        return None

    def _conceding_owner(self, step: Step, seq: Sequence) -> Sequence | None:
        """One that decodes in this plan and gives up its row; at most one does per plan.

        A plan asks a few, the next one the next few, so that the question costs the same however many rows there are.
        """
        is_head = seq.status is SequenceStatus.WAITING
        if self._has_revoked or (self.are_exhausted if is_head else self._is_vain_for_residents):
            self.are_exhausted = self.are_exhausted or is_head
            return None
        num_decodes = step.num_decodes
        first = self._lifecycle.num_plans * MAX_ASKED % max(1, num_decodes)
        asked = step.granted[first : min(first + MAX_ASKED, num_decodes)]
        asked += step.granted[: min(first, MAX_ASKED - len(asked))]
        decodes = [each for each in asked if each.num_uncomputed_tokens == 1]
        owner = self._lifecycle.policy.first_to_concede(decodes, seq)
        if owner is None and is_head:
            self.are_exhausted = True
        elif owner is None:
            self._is_vain_for_residents = True
        return owner
