"""Refusals on their way to Postgres, and their counts for the metrics. Bounded; never on the token path.

A tenant that is refused a thousand times a second must not cost a thousand rows a second more than the store can take:
what does not fit the queue is counted and dropped, and the log says how much.
"""

import asyncio
import time
from collections import Counter, deque
from itertools import islice

import structlog

from gateway.status import QuotaReport
from gateway.store.db import Database
from gateway.store.denials import DenialEvent, forget_denials, insert_denials
from gateway.store.errors import InvalidValueError
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.tenant_labels import MAX_TENANTS, TenantLabels

WRITE_INTERVAL_S = 1.0
MAX_WAITING = 20_000
MAX_BATCH = 1_000
FORGET_INTERVAL_S = 3600.0

CountKey = tuple[str, str, str]
"""(tenant, level, dimension); the level is "key", "team" or "organization"."""

LEVEL_BY_DEPTH = {1: "organization", 2: "team", 3: "key"}

log = structlog.get_logger()


class QuotaCounts:
    """Violated limits since the process began, by tenant, level and dimension. Tenants beyond a number are one."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._tenants = TenantLabels(max_tenants, on_gone=self._forget)
        self.denials: Counter[CountKey] = Counter()
        self.shadow_denials: Counter[CountKey] = Counter()

    def count(self, tenant: str, event: DenialEvent) -> None:
        """Every limit that `event` violated counts once. `tenant` is `acme/search`."""
        tenant = self._tenants.label(tenant)
        counts = self.shadow_denials if event.is_shadow else self.denials
        for node, dimension in zip(event.nodes, event.dimensions, strict=True):
            counts[tenant, level_of(node), dimension.lower()] += 1

    def report(self) -> QuotaReport:
        """The counts as they are now."""
        return QuotaReport(dict(self.denials), dict(self.shadow_denials))

    def _forget(self, tenant: str) -> None:
        for counts in (self.denials, self.shadow_denials):
            for key in [key for key in counts if key[0] == tenant]:
                del counts[key]


class DenialLog:
    """Refusals that are not written yet. `record` never waits and never refuses."""

    def __init__(self, database: Database, max_waiting: int = MAX_WAITING) -> None:
        self._database = database
        self._max_waiting = max_waiting
        self._waiting: deque[DenialEvent] = deque()
        self._num_dropped = 0
        self._forgotten_s = float("-inf")
        self._writing = asyncio.Lock()
        self._outage = Outage("refusals wait for the database")
        self.counts = QuotaCounts()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def record(self, tenant: str, event: DenialEvent) -> None:
        """The event is counted, and will be written if there is room for it."""
        self.counts.count(tenant, event)
        if len(self._waiting) < self._max_waiting:
            self._waiting.append(event)
        else:
            self._num_dropped += 1

    async def run(self) -> None:
        """Write what has gathered, and forget what is old, until cancelled."""
        while True:
            await asyncio.sleep(WRITE_INTERVAL_S)
            await self.flush()

    async def flush(self) -> None:
        """One attempt to write everything; what the database does not take stays."""
        try:
            async with self._writing:
                await self._write()
        except DATABASE_ERRORS as error:
            self._outage.note(error, num_events=len(self._waiting))
            return
        self._outage.end()
        if self._num_dropped:
            log.warning("refusals not recorded", num_events=self._num_dropped)
            self._num_dropped = 0

    async def _write(self) -> None:
        while self._waiting:
            batch = list(islice(self._waiting, MAX_BATCH))
            try:
                await insert_denials(self._database, batch)
            except InvalidValueError as error:  # kept, it would keep all later ones out
                log.error("refusals that cannot be stored", num_events=len(batch), error=str(error))
            for _ in batch:
                self._waiting.popleft()
        if time.monotonic() - self._forgotten_s > FORGET_INTERVAL_S:
            await forget_denials(self._database)
            self._forgotten_s = time.monotonic()


def level_of(node: str) -> str:
    """Of a resource name: which kind of node it is."""
    return LEVEL_BY_DEPTH.get((node.count("/") + 1) // 2, "key")
