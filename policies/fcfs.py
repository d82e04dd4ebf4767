"""First come, first served. Preempted requests re-enter ahead of those that never ran. Knows no tenants.

No bound on anyone's share: one tenant's burst delays all, and a head that does not fit leaves memory idle, for nobody
passes it. O(log n) per call.
"""

from collections import abc

from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import Nanos
from policies import snapshots
from policies.waiting import has_run


class Fcfs:
    """Order of arrival, whoever asks."""

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
        return snapshots.dump("fcfs")

    def restore(self, snapshot: bytes) -> None:
        snapshots.load("fcfs", snapshot)
