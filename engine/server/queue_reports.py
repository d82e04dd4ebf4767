"""Tells requests that wait how many are served before them, and how long that may take. asyncio thread only.

One question to the engine thread a second serves them all, and is asked only while somebody who wants to know waits.
Nobody is told the same twice. The wait is estimated by the pace at which requests were lately taken in.
"""

import asyncio
import time
from collections import abc, deque

from engine.core.queue_position import MAX_EXACT, QueueOrder
from engine.core.types import Nanos
from engine.errors import RefusedError
from engine.loop_messages import Outlet, QueuedAt

REPORT_EVERY_S = 1.0
# The pace is that of so many admissions, none of them longer ago.
PACED_ADMISSIONS = 64
PACED_NS = 60_000_000_000


class Pace:
    """How fast requests are taken in. `clock` in nanoseconds."""

    def __init__(self, clock: abc.Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._admitted_at: deque[int] = deque(maxlen=PACED_ADMISSIONS)

    def note(self) -> None:
        """One more was taken in."""
        self._admitted_at.append(self._clock())

    def wait_ns(self, num_before: int) -> int | None:
        """When the one behind `num_before` others is taken in, if the pace stays; None while there is none.

        The time since the last one counts, so that an engine that stands still promises less and less.
        """
        now = self._clock()
        while self._admitted_at and now - self._admitted_at[0] > PACED_NS:
            self._admitted_at.popleft()
        if not self._admitted_at:
            return None
        return (num_before + 1) * (now - self._admitted_at[0]) // len(self._admitted_at)


class QueueReports:
    """Those who wait and want to know. `ask` gets the order from the engine thread, or raises RefusedError."""

    def __init__(self, ask: abc.Callable[[], abc.Awaitable[QueueOrder]]) -> None:
        self.pace = Pace()
        self._ask = ask
        self._told: dict[str, tuple[Outlet, QueuedAt | None]] = {}
        self._task: asyncio.Task[None] | None = None

    def watch(self, generation_id: str, outlet: Outlet) -> None:
        """From now on `outlet` gets QueuedAt when it has changed, until `forget`."""
        self._told[generation_id] = outlet, None
        if self._task is None:
            self._task = asyncio.create_task(self._report_forever(), name="queue reports")

    def forget(self, generation_id: str) -> None:
        """It waits no longer, whether it did or not."""
        if self._told.pop(generation_id, None) is not None and not self._told and self._task is not None:
            self._task.cancel()
            self._task = None

    def placed(self, position: int | None) -> QueuedAt:
        """What is told of a request behind so many others; None: more than can be told."""
        if position is None or position > MAX_EXACT:
            return QueuedAt(MAX_EXACT, is_lower_bound=True, estimated_wait_ns=self.pace.wait_ns(MAX_EXACT))
        return QueuedAt(position, is_lower_bound=False, estimated_wait_ns=self.pace.wait_ns(position))

    def newcomer_wait_ns(self, num_waiting: int) -> int | None:
        """What a request that comes now may wait behind those; None where nobody can tell."""
        return self.pace.wait_ns(num_waiting) if num_waiting else 0

    async def _report_forever(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            try:
                order = await self._ask()
            except RefusedError:  # the engine is ending, and ends every call itself
                continue
            self._report(order)

    def _report(self, order: QueueOrder) -> None:
        place = {generation_id: index for index, generation_id in enumerate(order.generation_ids)}
        for generation_id, (outlet, before) in list(self._told.items()):
            if generation_id not in place and order.num_waiting <= len(place):
                continue  # it came after the order was made, or does not wait any more
            queued = self.placed(place.get(generation_id))
            if before is None or (before.position, before.is_lower_bound) != (queued.position, queued.is_lower_bound):
                self._told[generation_id] = outlet, queued
                outlet.put(queued, Nanos(time.monotonic_ns()))
