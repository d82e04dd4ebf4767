"""A scheduling policy that makes tenants take turns: as much preemption as one likes, worth it or not."""

from collections import abc

from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Standing, Terms
from engine.core.ranking import Ranking
from policies.fcfs import Fcfs


class TimeSlices(Fcfs):
    """Each flow in turn has `num_steps` steps in which it gets on; the others yield their rows and blocks to it.

    Computing lost work again is not getting on, so that everything ends however short the turns are.
    """

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self._num_steps = num_steps
        self._num_served = 0
        self._turn: FlowView | None = None
        self._unfinished: dict[FlowView, set[SequenceView]] = {}

    def on_arrive(self, seq: SequenceView, now: int) -> None:
        super().on_arrive(seq, now)
        self._unfinished.setdefault(seq.flow, set()).add(seq)

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: int) -> None:
        super().on_leave(seq, reason, now)
        if reason is LeaveReason.FINISHED:
            self._unfinished[seq.flow].discard(seq)

    def begin(self, start: PlanStart) -> Terms:
        flows = [flow for flow, unfinished in self._unfinished.items() if unfinished]
        if flows and (self._turn not in flows or self._num_served >= self._num_steps):
            last = flows.index(self._turn) if self._turn in flows else -1
            self._turn = flows[(last + 1) % len(flows)]
            self._num_served = 0
        others = frozenset(flow for flow in flows if flow is not self._turn)
        return Terms(yielding=others, protects_yielding=False)

    def charge(self, service: Service) -> None:
        if service.flow is self._turn and service.num_prefill_tokens + service.num_output_tokens:
            self._num_served += 1

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        if passed:
            return None
        ranking: Ranking[SequenceView] = Ranking()
        for unfinished in self._unfinished.values():
            for seq in unfinished:
                if seq in self._waiting:
                    ranking.put(seq, (seq.flow is not self._turn, *self.key(seq), seq.arrival_index))
        return ranking.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (float(seq.flow is not self._turn), *super().key(seq))

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        gives_way = claimant.flow is self._turn and victim.flow is not self._turn
        return Concession.ANYTHING if gives_way else Concession.NOTHING


class Anyone:
    """Victims in reverse order of arrival, whenever they came."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: int
    ) -> abc.Iterator[SequenceView]:
        others = [seq for seq in resident if seq is not claimant]
        return iter(sorted(others, key=lambda seq: seq.arrival_index, reverse=True))
