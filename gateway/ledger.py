"""Usage on its way to Postgres: one event per request, in memory until it is written.

The token path only appends. A writer takes what has gathered, at most every 50 ms, and inserts it in one statement that
ignores rows that are already there, so that repeating it after a lost connection is harmless. While the database is
away the queue grows, up to a bound that the door respects: no work is taken that could not be recorded.
"""

import asyncio
import contextlib
from collections import deque

import structlog

from gateway.store.db import Database
from gateway.store.errors import InvalidValueError
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.usage import UsageEvent, ensure_partitions, insert_usage

GATHER_S = 0.05
RETRY_S = 0.5
MAX_BATCH = 500
PARTITION_INTERVAL_S = 6 * 3600.0

log = structlog.get_logger()


class Ledger:
    """The events that are not written yet. `record` never waits and never refuses: ask `has_room` before the work."""

    def __init__(self, database: Database, capacity: int) -> None:
        self._database = database
        self._capacity = capacity
        self._waiting: deque[UsageEvent] = deque()
        self._has_events = asyncio.Event()
        self._writing = asyncio.Lock()
        self._outage = Outage("usage waits for the database")

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def has_room(self, num_live: int) -> bool:
        """Whether the events of `num_live` running requests still fit, should the database stay away."""
        return len(self._waiting) + num_live <= self._capacity

    def record(self, event: UsageEvent) -> None:
        self._waiting.append(event)
        self._has_events.set()

    async def run(self) -> None:
        """Write, and keep the table's partitions ahead of time, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._write_forever())
            group.create_task(self._keep_partitions())

    async def flush(self, timeout_s: float) -> None:
        """Everything recorded so far is written, or `timeout_s` has passed and the log says how much is lost."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._waiting:
                    if not await self._write_batch():
                        await asyncio.sleep(RETRY_S)
        if self._waiting:
            log.error("usage lost: the database is away and the gateway stops", num_events=len(self._waiting))

    async def _write_forever(self) -> None:
        while True:
            await self._has_events.wait()
            await asyncio.sleep(GATHER_S)
            if not await self._write_batch():
                await asyncio.sleep(RETRY_S)

    async def _write_batch(self) -> bool:
        """The oldest events are written and forgotten; false if the database is away."""
        async with self._writing:
            batch = list(self._waiting)[:MAX_BATCH]
            try:
                try:
                    await insert_usage(self._database, batch)
                    self._forget(len(batch))
                except InvalidValueError as error:
                    log.error("usage refused by the database", num_events=len(batch), error=str(error))
                    await self._write_singly(batch)
            except DATABASE_ERRORS as error:
                self._outage.note(error, num_events=len(self._waiting))
                return False
            self._outage.end()
            return True

    async def _write_singly(self, batch: list[UsageEvent]) -> None:
        """One event that cannot be stored must not keep the others out, and is the only one that is dropped."""
        for event in batch:
            try:
                await insert_usage(self._database, [event])
            except InvalidValueError as error:
                log.error("usage event dropped", generation_id=str(event.generation_id), error=str(error))
            self._forget(1)

    def _forget(self, num_events: int) -> None:
        for _ in range(num_events):
            self._waiting.popleft()
        if not self._waiting:
            self._has_events.clear()

    async def _keep_partitions(self) -> None:
        outage = Outage("partitions not made")
        while True:
            try:
                await ensure_partitions(self._database)
                outage.end()
                await asyncio.sleep(PARTITION_INTERVAL_S)
            except DATABASE_ERRORS as error:
                # Rows go to the default partition meanwhile, and move when this succeeds.
                outage.note(error)
                await asyncio.sleep(RETRY_S)
