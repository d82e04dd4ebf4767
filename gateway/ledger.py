"""Usage on its way to Postgres: one event per request, on disk within moments, then in the table exactly once.

The token path only appends. Whatever has gathered goes to the spool as one group, at most every 50 ms, and from the
spool's head to the table, at most every 200 ms, in one statement that ignores rows that are already there, so that
repeating it after a lost connection or a crash is harmless; then the spool forgets it. While the database is away the
spool grows, up to a bound that the door respects: no work is taken that could not be recorded. A disk that takes
nothing leaves the way to the table; with both away the door is closed at once.
"""

import asyncio
import contextlib
import time
from collections import abc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import structlog

from gateway.spool import Spool
from gateway.status import LedgerReport
from gateway.store.db import Database
from gateway.store.errors import InvalidValueError
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.usage import UUID_VERSION, UsageEvent, day_of, insert_usage
from gateway.store.usage_json import decode_event, encode_event
from gateway.store.usage_partitions import drop_partitions, ensure_partitions

GATHER_S = 0.05
# Between two statements under load. What is on disk is safe, and each costs as much as to record a dozen requests.
WRITE_INTERVAL_S = 0.2
RETRY_S = 0.5
MAX_BATCH = 500
ADOPTION_INTERVAL_S = 10.0
PARTITION_INTERVAL_S = 6 * 3600.0

log = structlog.get_logger()
T = TypeVar("T")


class Ledger:
    """The events that are not in the table yet. `record` never waits and never refuses: ask `has_room` before the work.

    Use as: `open`, then `run` until cancelled, then `flush`, then `close`.
    """

    def __init__(self, database: Database, spool: Spool, capacity: int, retention_days: int | None = None) -> None:
        self.id = spool.id
        self.num_duplicates = self.num_dropped = 0
        self._database = database
        self._spool = spool
        self._capacity = capacity
        self._retention_days = retention_days
        # The spool's only thread: a disk may take its time.
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ledger")
        self._gathered: list[UsageEvent] = []
        self._num_recorded = 0
        self._num_on_disk = 0
        self._last_group_s = -GATHER_S
        self._last_write_s = -WRITE_INTERVAL_S
        self._has_gathered = asyncio.Event()
        self._has_spooled = asyncio.Event()
        self._group_done = asyncio.Event()
        self._has_adopted = asyncio.Event()
        self._grouping, self._writing = asyncio.Lock(), asyncio.Lock()
        self._outage = Outage("usage waits for the database")
        self._disk_outage = Outage("usage cannot be spooled")
        self._is_stuck = False
        self._is_closed = False

    @property
    def num_waiting(self) -> int:
        """Events that the database does not have; for the moment in which they are spooled they count twice."""
        return len(self._gathered) + self._spool.num_records

    @property
    def is_behind(self) -> bool:
        """Whether events wait on disk because the database takes none."""
        return self._outage.is_on

    def has_room(self, num_live: int) -> bool:
        """Whether the events of `num_live` running requests still fit, should the database stay away."""
        return not self._is_stuck and self.num_waiting + num_live <= self._capacity

    def record(self, event: UsageEvent) -> None:
        self._gathered.append(event)
        self._num_recorded += 1
        self._has_gathered.set()

    async def on_disk(self) -> None:
        """Return when everything recorded so far would survive this process."""
        num_recorded = self._num_recorded
        while self._num_on_disk < num_recorded:
            await self._group_done.wait()

    async def adopted(self) -> None:
        """Return when what dead processes left in this machine's spool has been written, or queued before all else."""
        await self._has_adopted.wait()

    async def open(self) -> None:
        """The spool is there. Raises OSError."""
        await self._on_disk_thread(self._spool.open)

    async def run(self) -> None:
        """Spool, write, take over what other processes left, and keep the table's partitions, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for part in (self._spool_forever, self._write_forever, self._adopt_forever, self._keep_partitions):
                group.create_task(part())

    async def flush(self, timeout_s: float) -> None:
        """Everything recorded so far is written, or `timeout_s` has passed; it then waits in the spool for others."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.num_waiting:
                    if not (await self._spool_group() and await self._write_batch()):
                        await asyncio.sleep(RETRY_S)
        if self.num_waiting:
            log.warning("usage stays in the spool: the database is away", num_events=self.num_waiting)

    async def close(self) -> None:
        """Everything recorded is on disk, if the disk takes it, and another process may take it over. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._gathered and not await self._spool_group():
            log.error("usage lost: neither disk nor database took it", num_events=len(self._gathered))
        await self._on_disk_thread(self._spool.close)
        self._disk.shutdown()

    async def report(self) -> LedgerReport:
        """The figures now."""
        num_bytes, oldest_unix_s = await self._on_disk_thread(
            lambda: (self._spool.num_bytes, self._spool.oldest_unix_s)
        )
        age_s = 0.0 if oldest_unix_s is None else max(0.0, time.time() - oldest_unix_s)
        num_damaged_bytes = self._spool.num_damaged_bytes
        return LedgerReport(
            self.num_waiting, num_bytes, age_s, self.num_duplicates, self.num_dropped, num_damaged_bytes
        )

    async def _spool_forever(self) -> None:
        while True:
            await self._has_gathered.wait()
            await asyncio.sleep(max(0.0, self._last_group_s + GATHER_S - time.monotonic()))
            if not await self._spool_group():
                await asyncio.sleep(RETRY_S)

    async def _spool_group(self) -> bool:
        """What has gathered is on disk, or in the table; false if neither would take it."""
        async with self._grouping:
            group = list(self._gathered)
            if not group:
                return True
            try:
                await self._on_disk_thread(lambda: self._spool.append([encode_event(event) for event in group]))
            except OSError as error:
                self._disk_outage.note(error, num_events=len(group))
                self._is_stuck = not await self._insert(group)
                if self._is_stuck:
                    return False
            else:
                self._is_stuck = False
                self._disk_outage.end()
            self._last_group_s = time.monotonic()
            self._note_group(len(group))
            return True

    def _note_group(self, num_events: int) -> None:
        del self._gathered[:num_events]
        if not self._gathered:
            self._has_gathered.clear()
        self._num_on_disk += num_events
        self._group_done.set()
        self._group_done = asyncio.Event()
        self._has_spooled.set()

    async def _write_forever(self) -> None:
        while True:
            await self._has_spooled.wait()
            await asyncio.sleep(self._pause_s())
            if not await self._write_batch():
                await asyncio.sleep(RETRY_S)

    def _pause_s(self) -> float:
        """Until the next statement. None is waited for where a whole batch is there."""
        if self._spool.num_records >= MAX_BATCH:
            return 0.0
        return max(0.0, self._last_write_s + WRITE_INTERVAL_S - time.monotonic())

    async def _write_batch(self) -> bool:
        """The oldest events are in the table and out of the spool; false if the database, or the disk, is away."""
        async with self._writing:
            self._has_spooled.clear()
            self._last_write_s = time.monotonic()
            try:
                head = await self._on_disk_thread(lambda: _decoded(self._spool.head(MAX_BATCH)))
                if head and not await self._insert(head, acknowledge=True):
                    self._has_spooled.set()
                    return False
            except OSError as error:
                self._disk_outage.note(error)
                self._has_spooled.set()
                return False
            if self._spool.num_records:
                self._has_spooled.set()
            return True

    async def _insert(self, events: abc.Sequence[UsageEvent | None], *, acknowledge: bool = False) -> bool:
        """The events are in the table, but for those that it can never hold; false if the database is away."""
        given = [event for event in events if event is not None and not self._is_expired(event)]
        num_dropped = len(events) - len(given)
        try:
            try:
                self.num_duplicates += len(given) - await insert_usage(self._database, given)
            except InvalidValueError as error:
                log.error("usage refused by the database", num_events=len(given), error=str(error))
                num_dropped += await self._insert_singly(given)
        except DATABASE_ERRORS as error:
            self._outage.note(error, num_events=self.num_waiting)
            return False
        self.num_dropped += num_dropped
        if acknowledge:
            await self._on_disk_thread(lambda: self._spool.acknowledge(len(events)))
        self._outage.end()
        return True

    def _is_expired(self, event: UsageEvent) -> bool:
        """Whether its day may be gone already, so that nothing could tell whether it had been written."""
        if self._retention_days is None or event.generation_id.version != UUID_VERSION:
            return False
        is_expired = day_of(event.generation_id) < datetime.now(UTC).date() - timedelta(days=self._retention_days)
        if is_expired:
            log.error("usage event older than the retention dropped", generation_id=str(event.generation_id))
        return is_expired

    async def _insert_singly(self, events: list[UsageEvent]) -> int:
        """One event that cannot be stored must not keep the others out; returns how many such there are."""
        num_dropped = 0
        for event in events:
            try:
                self.num_duplicates += 1 - await insert_usage(self._database, [event])
            except InvalidValueError as error:
                num_dropped += 1
                log.error("usage event dropped", generation_id=str(event.generation_id), error=str(error))
        return num_dropped

    async def _adopt_forever(self) -> None:
        while True:
            try:
                num_events = await self._on_disk_thread(self._spool.adopt)
            except OSError as error:
                log.error("spools of other processes cannot be read", error=str(error))
            else:
                if num_events:
                    log.info("usage of a process that ended is taken over", num_events=num_events)
                    self._has_spooled.set()
            self._has_adopted.set()
            await asyncio.sleep(ADOPTION_INTERVAL_S)

    async def _keep_partitions(self) -> None:
        outage = Outage("partitions not made or dropped")
        while True:
            try:
                await ensure_partitions(self._database)
                if self._retention_days is not None:
                    await drop_partitions(self._database, self._retention_days)
                outage.end()
                await asyncio.sleep(PARTITION_INTERVAL_S)
            except DATABASE_ERRORS as error:
                # Rows go to the default partition meanwhile, and move when this succeeds.
                outage.note(error)
                await asyncio.sleep(RETRY_S)

    async def _on_disk_thread(self, work: abc.Callable[[], T]) -> T:
        # What has begun is finished even if nobody waits for it any more: half a group is no group.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._disk, work))


def _decoded(payloads: list[bytes]) -> list[UsageEvent | None]:
    """None in the place of what is no event; it was whole when it was written, so that only a person can tell why."""
    events: list[UsageEvent | None] = []
    for payload in payloads:
        try:
            events.append(decode_event(payload))
        except ValueError as error:
            log.error("spooled record dropped", error=str(error), num_bytes=len(payload))
            events.append(None)
    return events
