"""First come, first served. Preempted requests re-enter ahead of those that never ran. Knows no tenants."""

from collections import abc

from engine.core.policy import LeaveReason, SequenceView, Service
from engine.core.ranking import Ranking
from engine.core.types import Nanos, TenantId

SNAPSHOT = b"fcfs"  # there are no counters to carry over


class Fcfs:
    """Order of arrival, whoever asks."""

    def __init__(self) -> None:
        self._waiting: Ranking[SequenceView] = Ranking()

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        self._waiting.put(seq, (*self.key(seq), seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self._waiting.discard(seq)

    def select(self, now: Nanos) -> SequenceView | None:
        return self._waiting.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (0.0 if seq.num_preemptions else 1.0,)

    def charge(self, service: Service) -> None:
        """Service does not matter here."""

    def standing(self) -> abc.Mapping[TenantId, float]:
        return {}

    def snapshot(self) -> bytes:
        return SNAPSHOT

    def restore(self, snapshot: bytes) -> None:
        if snapshot != SNAPSHOT:
            raise ValueError("this is not a snapshot of fcfs")
