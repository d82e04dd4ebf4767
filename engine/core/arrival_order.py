"""First come, first served, as a scheduling policy: `fcfs`, and what the core falls back on when another one fails.

Preempted requests re-enter ahead of those that never ran. Knows no tenants. O(log n) per call.
"""

from collections import abc

from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import Nanos, SequenceStatus

SNAPSHOT = b'{"policy": "fcfs"}'  # there are no counters to carry over


def has_run(seq: SequenceView) -> bool:
    """True for a waiting sequence that was admitted before: it was preempted, or its blocks are on the host."""
    if seq.num_preemptions > 0:
        return True
    return seq.status is SequenceStatus.SWAPPED or seq.status is SequenceStatus.SWAPPING_IN


class ArrivalOrder:
    """Order of arrival, whoever asks. Nobody passes a head that finds no room."""

    def __init__(self) -> None:
        self._waiting: Ranking[SequenceView] = Ranking()

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        self._waiting.put(seq, (*self.key(seq), seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self._waiting.discard(seq)

    def begin(self, start: PlanStart) -> Terms:
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return None if passed else self._waiting.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (0.0 if has_run(seq) else 1.0,)

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        return Concession.NOTHING

    def charge(self, service: Service) -> None:
        """Service does not matter here."""

    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        """Optional, for the simulator: see LeapingPolicy. Service changes nothing here."""
        return len(times)

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        return ()

    def snapshot(self) -> bytes:
        return SNAPSHOT

    def restore(self, snapshot: bytes) -> None:
        if snapshot != SNAPSHOT:
            raise ValueError("this is not a snapshot of fcfs")
