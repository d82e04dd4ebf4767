"""Strict priority between classes, with ageing and a share kept for each class; order of arrival inside a class.

Ranks come from the operator's classes, lower first, and never from a client. A request's *effective rank* is its
class's rank, less one for each `ageing_ms` that it has waited; time in which it runs does not count. It never gets
beyond the rank next to the best one, so that the class of the best rank stays alone. Those that ran before precede
those that did not, if their effective ranks are equal.

Preemption looks at the raw ranks: a sequence gives way to a claimant whose class is at least one rank better, if its
own class is preemptible and not below its kept share, until that has happened to it as often as the engine's
`max_preemptions` says. One that was brought so far forward by ageing that it would
still be served before the claimant keeps what it has, or the two would take turns at each other's blocks. Equal classes
never preempt each other.

A class that has got less than its `min_share` of the service since it began to want some comes before all others. The
count looks back over `WINDOW` cost units, so that a class saves nothing up, and what it got while it was alone is soon
forgotten.

Bound: a request of rank p is behind older ones and the best class only, once it has waited for
`ageing_ms` · (p - best rank - 1). Without ageing and minimum shares a low class can starve. Where a head does not fit,
those of its class stop behind it; other classes may pass. O(classes + log n) per call; classes are few.
"""

import math
from collections import abc
from dataclasses import dataclass, field

from engine.core.arrival_order import has_run
from engine.core.config import DEFAULT_MAX_PREEMPTIONS
from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import NANOS_PER_MS, Nanos, PriorityClass
from policies import snapshots
from policies.kept_share import KeptShare
from policies.options import at_least

WINDOW = 4_096.0  # cost units that a class may be behind or ahead of its kept share


@dataclass(slots=True, eq=False)
class _Class:
    """`definition` is the newest one seen; `kept` is its kept share when the policy had charged `num_charged` in all.
    Two queues, each with the longest wait first."""

    definition: PriorityClass
    num_charged: float
    kept: KeptShare = field(default_factory=lambda: KeptShare(WINDOW))
    started: Ranking[SequenceView] = field(default_factory=Ranking)
    new: Ranking[SequenceView] = field(default_factory=Ranking)
    unfinished: set[int] = field(default_factory=set)


class Priority:
    """Classes by effective rank, arrivals inside a class.

    ageing_ms  of waiting that are worth one rank, >= 0; 0 is no ageing

    Raises ValueError, naming the option, where it is out of range.
    """

    def __init__(self, *, ageing_ms: float = 10_000.0) -> None:
        at_least(0, ageing_ms=ageing_ms)
        self._ageing_ns = ageing_ms * NANOS_PER_MS
        self._now = Nanos(0)
        self._max_preemptions = DEFAULT_MAX_PREEMPTIONS
        self._num_charged = 0.0
        self._best_rank = 0
        self._classes: dict[str, _Class] = {}  # with unfinished sequences
        # By arrival index: since when, less earlier waits, if it waits now (True); else for how long it has waited.
        self._waits: dict[int, tuple[int, bool]] = {}

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        cls = self._join(seq)
        waited, is_waiting = self._waits.get(seq.arrival_index, (0, False))
        since = waited if is_waiting else now - waited
        self._waits[seq.arrival_index] = (since, True)
        (cls.started if has_run(seq) else cls.new).put(seq, (since, seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        for cls in self._classes.values():  # the class may have changed while the sequence waited
            cls.started.discard(seq)
            cls.new.discard(seq)
        since, is_waiting = self._waits.get(seq.arrival_index, (0, False))
        if reason is LeaveReason.FINISHED:
            self._waits.pop(seq.arrival_index, None)
            self._part(seq)
        elif is_waiting:
            self._waits[seq.arrival_index] = (now - since, False)

    def begin(self, start: PlanStart) -> Terms:
        self._now = start.now
        self._max_preemptions = start.config.max_preemptions
        for cls in self._classes.values():
            head = cls.started.first() or cls.new.first()
            if head is not None:
                cls.definition = head.priority_class
        self._find_best_rank()
        return Terms(class_order=tuple(sorted(self._classes, key=self._class_order)))

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        stopped = {seq.priority_class.name for seq in passed}
        heads = [head for name, cls in self._classes.items() if name not in stopped for head in _heads(cls)]
        return min(heads, key=lambda seq: (self.key(seq), seq.arrival_index), default=None)

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        cls = self._classes.get(seq.priority_class.name)
        is_short = cls is not None and self._is_short(cls)
        since, is_waiting = self._waits.get(seq.arrival_index, (0, False))
        is_new = 0.0 if has_run(seq) else 1.0
        return (0.0 if is_short else 1.0, self._effective_rank(seq), is_new, since if is_waiting else 0)

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        if not victim.priority_class.preemptible or victim.priority_class.rank <= claimant.priority_class.rank:
            return Concession.NOTHING
        if victim.num_preemptions >= self._max_preemptions:
            return Concession.NOTHING
        cls = self._classes.get(victim.priority_class.name)
        is_kept = cls is not None and self._is_short(cls)
        if is_kept or self._effective_rank(victim) <= self._effective_rank(claimant):
            return Concession.NOTHING
        return Concession.ANYTHING

    def charge(self, service: Service) -> None:
        cost = PREFILL_COST * service.num_prefill_tokens + OUTPUT_COST * service.num_output_tokens
        self._num_charged += cost
        cls = self._classes.get(service.flow.priority_class.name)
        if cls is not None:
            cls.definition = service.flow.priority_class
            cls.kept.accrue(cls.definition, self._num_charged - cls.num_charged)
            cls.kept.spend(cost)
            cls.num_charged = self._num_charged

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        return ()

    def snapshot(self) -> bytes:
        return snapshots.dump("priority")

    def restore(self, snapshot: bytes) -> None:
        """Nothing is taken over: a class begins to want when its first request comes."""
        snapshots.load("priority", snapshot)

    def _join(self, seq: SequenceView) -> _Class:
        definition = seq.priority_class
        cls = self._classes.get(definition.name)
        if cls is None:
            cls = self._classes[definition.name] = _Class(definition, self._num_charged)
        cls.definition = definition
        cls.unfinished.add(seq.arrival_index)
        self._find_best_rank()
        return cls

    def _part(self, seq: SequenceView) -> None:
        for name, cls in list(self._classes.items()):
            cls.unfinished.discard(seq.arrival_index)
            if not cls.unfinished:
                del self._classes[name]
        self._find_best_rank()

    def _find_best_rank(self) -> None:
        self._best_rank = min((cls.definition.rank for cls in self._classes.values()), default=0)

    def _effective_rank(self, seq: SequenceView) -> int:
        rank = seq.priority_class.rank
        if not self._ageing_ns or rank <= self._best_rank + 1:
            return rank
        since, is_waiting = self._waits.get(seq.arrival_index, (0, False))
        waited = max(0, self._now - since) if is_waiting else since
        return max(self._best_rank + 1, rank - math.floor(waited / self._ageing_ns))

    def _is_short(self, cls: _Class) -> bool:
        return cls.kept.is_short(cls.definition, self._num_charged - cls.num_charged)

    def _class_order(self, name: str) -> tuple[tuple[float, ...], int, str]:
        """A class is where its first head is, so that passes and admissions follow one order."""
        cls = self._classes[name]
        nobody_waits = ((0.0 if self._is_short(cls) else 1.0, float(cls.definition.rank), 0.0, 0.0), -1)
        return (*min(((self.key(head), head.arrival_index) for head in _heads(cls)), default=nobody_waits), name)


def _heads(cls: _Class) -> abc.Iterator[SequenceView]:
    for queue in (cls.started, cls.new):
        head = queue.first()
        if head is not None:
            yield head
