"""The newest snapshot, kept current: told by LISTEN at once, by a poll within two seconds, by `refresh` on demand.

Owns the only way from the tables to a `TenancySnapshot`. Survives the database's absence: the last good snapshot stays,
and `staleness_s` says how old its confirmation is; what to refuse because of that is the caller's policy.
"""

import asyncio
import contextlib
import time
from collections import abc
from uuid import UUID

import structlog
from sqlalchemy import Select, func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.store.changes import CHANNEL
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.identity_models import JwtIssuerRow, RoleBindingRow
from gateway.store.identity_snapshot import ChangedIdentity
from gateway.store.journal_models import AuditEventRow
from gateway.store.models import (
    ApiKeyRow,
    OrganizationRow,
    PolicyRevisionRow,
    PriorityClassRow,
    QuotaPolicyRow,
    TeamRow,
)
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.quota_parts import with_parts
from gateway.store.snapshot import EMPTY_SNAPSHOT, ChangedRows, TenancySnapshot, advance

POLL_INTERVAL_S = 2.0
# Two polls and a bit: the snapshot's confirmation is older only while the database does not answer.
STORE_LOST_AFTER_S = 5.0
log = structlog.get_logger(__name__)


class TenancyCache:
    """Holds the newest snapshot that this process has read. All of it runs on one event loop.

    `on_change` is told, of each change after the first reading, how many seconds later this process has it.
    """

    def __init__(
        self,
        database: Database,
        clock: abc.Callable[[], float] = time.monotonic,
        on_change: abc.Callable[[float], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._clock = clock
        self._on_change = on_change
        self._snapshot = EMPTY_SNAPSHOT
        self._confirmed_at: float | None = None
        self._lock = asyncio.Lock()
        self._num_reads = 0
        self._failure: Exception | None = None
        self._wake = asyncio.Event()
        self._advanced = asyncio.Event()

    @property
    def current(self) -> TenancySnapshot:
        """The newest snapshot; the empty one, of revision -1, until the first refresh has succeeded."""
        return self._snapshot

    def staleness_s(self) -> float:
        """Seconds since `current` was known to be the newest; infinite before the first refresh."""
        return float("inf") if self._confirmed_at is None else self._clock() - self._confirmed_at

    async def refresh(self) -> TenancySnapshot:
        """`current` holds everything that was committed before the call. Reads one row where nothing has changed.

        One read serves all who called before it began. Raises DatabaseUnavailableError; `current` then stays.
        """
        num_reads_before = self._num_reads
        async with self._lock:
            if self._num_reads > num_reads_before:  # somebody's read began after this call
                if self._failure is not None:
                    raise DatabaseUnavailableError(str(self._failure)) from self._failure
                return self._snapshot
            self._num_reads += 1
            try:
                await self._read()
            except DATABASE_ERRORS as error:
                self._failure = error
                raise
            except BaseException:
                self._num_reads -= 1  # cancelled: it served nobody
                raise
            self._failure = None
            return self._snapshot

    async def newer_than(self, revision: int) -> TenancySnapshot:
        """`current` as soon as its revision is above `revision`."""
        while self._snapshot.revision <= revision:
            await self._advanced.wait()
        return self._snapshot

    async def run(self) -> None:
        """Keeps `current` fresh until cancelled; never ends on its own, whatever the database does."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._poll())
            tasks.create_task(self._listen())

    async def _poll(self) -> None:
        outage = Outage("policy refresh failed")
        while True:
            self._wake.clear()
            try:
                await self.refresh()
                outage.end()
            except DATABASE_ERRORS as error:
                outage.note(error, staleness_s=self.staleness_s())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wake.wait()

    async def _listen(self) -> None:
        """Wakes the poll at each notice. While there is no connection, the poll alone keeps its two seconds."""
        outage = Outage("policy notices are off")
        while True:
            try:
                async with self._database.listener(CHANNEL, self._wake.set) as closed:
                    outage.end()
                    self._wake.set()  # what was announced before this connection was missed
                    await closed.wait()
            except DATABASE_ERRORS as error:
                outage.note(error)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _read(self) -> None:
        asked_at = self._clock()
        async with self._database.session() as session:
            await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            revision = (await session.execute(select(PolicyRevisionRow.revision))).scalar_one()
            if revision < self._snapshot.revision:
                # A restored backup or a lagging replica: what it says was already overruled.
                log.error("policy revision went back", seen=self._snapshot.revision, found=revision)
                return
            if revision > self._snapshot.revision:
                seen = self._snapshot.revision
                changed = await read_changed(session, seen, revision)
                age_s = await read_age_s(session)
                self._snapshot = advance(self._snapshot, changed)
                self._advanced.set()
                self._advanced = asyncio.Event()
                if seen >= 0 and age_s is not None:
                    self._on_change(age_s)
        self._confirmed_at = asked_at


async def read_age_s(session: AsyncSession) -> float | None:
    """How long ago the newest change was made, by the database's clock; None where there was none."""
    age = func.extract("epoch", func.clock_timestamp() - AuditEventRow.event_time)
    found = await session.scalar(select(age).order_by(AuditEventRow.id.desc()).limit(1))
    return None if found is None else float(found)


async def read_changed(session: AsyncSession, seen: int, revision: int) -> ChangedRows:
    """Every row whose own revision or whose policy's is newer than `seen`, each with its policy."""
    policies = select(QuotaPolicyRow).where(QuotaPolicyRow.revision > seen).subquery()
    classes = await session.scalars(select(PriorityClassRow).where(PriorityClassRow.revision > seen))
    organizations = await session.execute(
        select(OrganizationRow, QuotaPolicyRow)
        .join(QuotaPolicyRow, (QuotaPolicyRow.org_id == OrganizationRow.id) & QuotaPolicyRow.team_id.is_(None))
        .where(OrganizationRow.id.in_(_changed_ids(OrganizationRow, seen).union(select(policies.c.org_id))))
        .options(*with_parts())
    )
    teams = await session.execute(
        select(TeamRow, QuotaPolicyRow)
        .join(QuotaPolicyRow, (QuotaPolicyRow.team_id == TeamRow.id) & QuotaPolicyRow.key_id.is_(None))
        .where(TeamRow.id.in_(_changed_ids(TeamRow, seen).union(select(policies.c.team_id))))
        .options(*with_parts())
    )
    keys = await session.execute(
        select(ApiKeyRow, QuotaPolicyRow)
        .outerjoin(QuotaPolicyRow, QuotaPolicyRow.key_id == ApiKeyRow.id)
        .where(ApiKeyRow.id.in_(_changed_ids(ApiKeyRow, seen).union(select(policies.c.key_id))))
        .options(*with_parts(), selectinload(ApiKeyRow.secrets))
    )
    return ChangedRows(
        revision=revision,
        classes=classes.all(),
        organizations=[(row, policy) for row, policy in organizations],
        teams=[(row, policy) for row, policy in teams],
        keys=[(row, policy) for row, policy in keys],
        identity=await _read_changed_identity(session, seen),
    )


async def _read_changed_identity(session: AsyncSession, seen: int) -> ChangedIdentity:
    issuers = await session.scalars(select(JwtIssuerRow).where(JwtIssuerRow.revision > seen))
    bindings = await session.execute(
        select(RoleBindingRow, OrganizationRow.slug, TeamRow.slug)
        .outerjoin(OrganizationRow, OrganizationRow.id == RoleBindingRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == RoleBindingRow.team_id)
        .where(RoleBindingRow.revision > seen)
    )
    return ChangedIdentity(issuers.all(), [(row, organization, team) for row, organization, team in bindings])


def _changed_ids(table: type[OrganizationRow | TeamRow | ApiKeyRow], seen: int) -> Select[UUID]:
    return select(table.id).where(table.revision > seen)
