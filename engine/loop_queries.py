"""Questions about the requests, answered on the engine thread between two steps. Nothing that is decided hangs on them.

The order of service is worked out for everybody at once: at most twice a second, and less often where that takes long,
so that the engine spends at most a hundredth of its time on answers, however many ask.
"""

from collections import abc
from itertools import islice

from engine.core.queue_position import Explanation, QueueOrder, RequestInfo, info_of
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos
from engine.errors import UnknownRequestError
from engine.loop_messages import Answer, Explain, Query, ReadQueue, ReadRequests, Refused, RequestPage

ORDER_EVERY_NS = 500_000_000
MAX_PART_OF_TIME = 0.01


class Queries:
    """Answers to the commands that only ask. Belongs to the engine thread."""

    def __init__(self, scheduler: Scheduler, clock: abc.Callable[[], Nanos]) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._order: QueueOrder | None = None
        self._order_until = Nanos(0)

    @property
    def num_waiting(self) -> int:
        """How many wait to come in now."""
        return len(self._scheduler.lifecycle.policy.waiting)

    def answer(self, query: Query) -> Answer | Refused:
        """What the query asks for, as of now, or of half a second ago where it is the order."""
        match query:
            case ReadQueue():
                return self._queue_order()
            case ReadRequests(_, after, limit):
                return self._page(after, limit)
            case Explain(_, generation_id):
                return self._explanation(generation_id)

    def _queue_order(self) -> QueueOrder:
        now = self._clock()
        if self._order is None or now >= self._order_until:
            self._order = self._scheduler.queue_order(now)
            took_ns = self._clock() - now
            self._order_until = Nanos(now + max(ORDER_EVERY_NS, round(took_ns / MAX_PART_OF_TIME)))
        return self._order

    def _page(self, after: int, limit: int) -> RequestPage:
        now = self._clock()
        # In order of arrival, as requests are added at the end.
        later = (seq for seq in self._scheduler.lifecycle.by_generation.values() if seq.arrival_index > after)
        requests: list[RequestInfo] = [info_of(seq, now) for seq in islice(later, limit + 1)]
        return RequestPage(tuple(requests[:limit]), is_last=len(requests) <= limit)

    def _explanation(self, generation_id: str) -> Explanation | Refused:
        seq = self._scheduler.lifecycle.by_generation.get(generation_id)
        if seq is None:
            return Refused(UnknownRequestError(generation_id))
        return self._scheduler.explain(seq, self._queue_order(), self._clock())
