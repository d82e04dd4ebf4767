"""Earliest deadline first, as long as deadlines can be met. Source: Liu and Layland 1973; moving the hopeless aside,
so that one late request does not make all others late: Locke 1986 (best-effort scheduling).

A request without a deadline gets one `slo_ms` after its arrival. From the moment at which the uncached prompt alone
takes longer, by the engine's prices, than is left, it is served with best effort: after the others, in order of
arrival, but each admission number `best_effort_every` is kept for these while any of them waits. A running sequence
gives way, by swap, to a waiting one that must start within `urgent_ms`, if it has no hope itself, or has a later
deadline and time enough for its blocks to go and come back.

Bound: on one server, with preemption, every deadline is met if any order meets all of them. A request is admitted at
the latest after `best_effort_every` admissions for each older one that is late, too. Deadlines come from whoever may
set them: a tenant that claims tight ones is served first. A head that does not fit may be passed. O(log n) per call.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.arrival_order import has_run
from engine.core.costs import Prices
from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import NANOS_PER_MS, Nanos
from policies import snapshots
from policies.options import at_least
from policies.waiting import first_except, num_uncached_tokens


@dataclass(slots=True, eq=False)
class _Job:
    """A request's deadline, and whether it is beyond hope."""

    deadline: float
    late: bool = False


class Edf:
    """Requests by deadline, arrivals among equals; hopeless ones by arrival, those that have run first.

    slo_ms             from arrival to the deadline of a request that has none, > 0
    urgent_ms          before its latest start from which a request may preempt, >= 0
    best_effort_every  one admission in so many is kept for hopeless requests, >= 2

    Raises ValueError, naming the option, where a value is out of range.
    """

    def __init__(self, *, slo_ms: float = 10_000.0, urgent_ms: float = 1_000.0, best_effort_every: int = 10) -> None:
        at_least(1, slo_ms=slo_ms)
        at_least(0, urgent_ms=urgent_ms)
        at_least(2, best_effort_every=best_effort_every)
        self._slo_ns = slo_ms * NANOS_PER_MS
        self._urgent_ns = urgent_ms * NANOS_PER_MS
        self._best_effort_every = best_effort_every
        self._now = Nanos(0)
        self._prices = Prices()
        self._jobs: dict[int, _Job] = {}  # by arrival index, until they end
        self._hopeful: Ranking[SequenceView] = Ranking()  # by deadline
        self._latest_start: Ranking[SequenceView] = Ranking()  # the same ones, by when hope ends
        self._hopeless: Ranking[SequenceView] = Ranking()
        self._num_admitted = 0  # since a hopeless one was, while any waited

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        job = self._jobs.setdefault(seq.arrival_index, _Job(self._deadline(seq)))
        if job.late:
            self._despair(seq)
        else:
            self._hopeful.put(seq, (job.deadline, seq.arrival_index))
            self._latest_start.put(seq, (job.deadline - self._restart_ns(seq), seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        if reason is LeaveReason.ADMITTED:
            others_wait = len(self._hopeless) > 0 and seq not in self._hopeless
            self._num_admitted = self._num_admitted + 1 if others_wait else 0
        self._hopeful.discard(seq)
        self._latest_start.discard(seq)
        self._hopeless.discard(seq)
        if reason is LeaveReason.FINISHED:
            self._jobs.pop(seq.arrival_index, None)

    def begin(self, start: PlanStart) -> Terms:
        self._now = start.now
        self._prices = start.prices
        while (seq := self._latest_start.first()) is not None and self._latest_start.rank_of(seq)[0] < start.now:
            self._hopeful.discard(seq)
            self._latest_start.discard(seq)
            self._jobs[seq.arrival_index].late = True
            self._despair(seq)
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        excluded = frozenset(passed)
        hopeful, hopeless = (first_except(queue, excluded) for queue in (self._hopeful, self._hopeless))
        if hopeful is None or (hopeless is not None and self._is_turn_of_hopeless):
            return hopeless
        return hopeful

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        job = self._jobs.get(seq.arrival_index)
        if job is None:  # it ran before this policy took over, or has ended
            return (1.0, self._deadline(seq))
        if job.late:
            return (0.0 if self._is_turn_of_hopeless else 2.0, 0.0 if has_run(seq) else 1.0)
        return (1.0, job.deadline)

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        claimed, held = self._jobs.get(claimant.arrival_index), self._jobs.get(victim.arrival_index)
        if claimed is None or claimed.late or self._slack_ns(claimant, claimed) > self._urgent_ns:
            return Concession.NOTHING
        if held is None or held.late:
            return Concession.SWAP
        can_wait = held.deadline > claimed.deadline and self._slack_ns(victim, held) > self._round_trip_ns(victim)
        return Concession.SWAP if can_wait else Concession.NOTHING

    def charge(self, service: Service) -> None:
        """Deadlines do not move."""

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        return ()

    def snapshot(self) -> bytes:
        return snapshots.dump("edf", num_admitted=self._num_admitted)

    def restore(self, snapshot: bytes) -> None:
        state = snapshots.load("edf", snapshot)
        self._num_admitted = int(snapshots.finite("edf", state.get("num_admitted")))

    @property
    def _is_turn_of_hopeless(self) -> bool:
        return self._num_admitted >= self._best_effort_every - 1

    def _deadline(self, seq: SequenceView) -> float:
        return seq.arrived_at + self._slo_ns if seq.deadline is None else float(seq.deadline)

    def _despair(self, seq: SequenceView) -> None:
        self._hopeless.put(seq, (0.0 if has_run(seq) else 1.0, seq.arrival_index))

    def _restart_ns(self, seq: SequenceView) -> float:
        """From the start of a waiting sequence to its next token, at the least."""
        step = self._prices.step
        num_uncached = num_uncached_tokens(seq)
        return step.base_ns + step.chunk_ns(seq.num_tokens - num_uncached, num_uncached)

    def _slack_ns(self, seq: SequenceView, job: _Job) -> float:
        return job.deadline - self._now - self._restart_ns(seq)

    def _round_trip_ns(self, seq: SequenceView) -> float:
        prices = self._prices
        block_ns = prices.copy_out_block_ns + prices.copy_in_block_ns
        return seq.num_device_blocks * block_ns + 2 * prices.copy_launch_ns
