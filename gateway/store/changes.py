"""The transaction of one change: rows, the policy revision, the audit event and the notification, all or nothing.

Owns the order of changes. The lock on the one `policy_revision` row lets them through one at a time, so revisions
become visible in the order of their numbers (whoever has read up to n can miss nothing below n), checks made inside a
change still hold when it commits, and the audit chain has one end. Knows no noun.
"""

import json
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import Row, delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.audit import Document, chained
from gateway.store.db import Database
from gateway.store.errors import RequestIdReusedError, StoreConflictError
from gateway.store.journal_models import AdminRequestRow
from gateway.store.models import PolicyRevisionRow

CHANNEL = "evenflow_policy"
REQUEST_RETENTION = timedelta(hours=24)  # AIP-155 asks for 60 minutes or more


@dataclass(frozen=True, slots=True)
class Change:
    """Who changes something, and for which call.

    `request_id` makes a retry return what the first call made; `fingerprint` tells a retry from another request under
    the same id. `etag` is the one that the caller last read, None where it does not care. With `validate_only`
    everything is checked and nothing is kept.
    """

    actor: str
    correlation_id: str = ""
    request_id: UUID | None = None
    fingerprint: bytes = b""
    validate_only: bool = False
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Changed:
    """What was done to which resource; `before` and `after` are its settings."""

    action: str
    resource: str
    resource_id: UUID
    before: Document | None
    after: Document | None


@dataclass(frozen=True, slots=True)
class ChangeTransaction:
    """An open change: the revision it will be, and the moment it happens at, by the database's clock."""

    session: AsyncSession
    change: Change
    revision: int
    now: datetime
    audit_head: bytes

    async def find_replayed(self) -> UUID | None:
        """The resource that this request id made or changed before. Raises RequestIdReusedError."""
        if self.change.request_id is None:
            return None
        row = await self.session.get(AdminRequestRow, (self.change.actor, self.change.request_id))
        if row is None or row.created_at < self.now - REQUEST_RETENTION:
            return None  # what it made may be purged by now
        if row.fingerprint != self.change.fingerprint:
            raise RequestIdReusedError(str(self.change.request_id))
        return row.resource_id

    def require_etag(self, resource: str, current: str) -> None:
        """Raises StoreConflictError if the caller expects an etag and it is not the current one."""
        if self.change.etag is not None and self.change.etag != current:
            raise StoreConflictError(resource, current)

    async def record(self, changed: Changed, *others: Changed) -> None:
        """The changes are in the audit chain, their revision is the newest one, and listeners hear of it at the commit.

        Once per transaction, with all that it changed.
        """
        await self.session.flush()
        head = self.audit_head
        for each in (changed, *others):
            event = chained(
                head,
                event_time=self.now,
                revision=self.revision,
                actor=self.change.actor,
                correlation_id=self.change.correlation_id,
                action=each.action,
                resource=each.resource,
                before=each.before,
                after=each.after,
            )
            self.session.add(event)
            await self.session.flush()  # ids in the order of the chain
            head = event.hash
        await self.session.execute(update(PolicyRevisionRow).values(revision=self.revision, audit_head=head))
        if self.change.request_id is not None:
            await self._remember(self.change.request_id, changed.resource_id)
        notice = json.dumps({"revision": self.revision, "resource_id": str(changed.resource_id)})
        await self.session.execute(select(func.pg_notify(CHANNEL, notice)))

    async def _remember(self, request_id: UUID, resource_id: UUID) -> None:
        outdated = AdminRequestRow.created_at < self.now - REQUEST_RETENTION
        await self.session.execute(delete(AdminRequestRow).where(outdated))
        await self.session.execute(
            insert(AdminRequestRow).values(
                actor=self.change.actor,
                request_id=request_id,
                fingerprint=self.change.fingerprint,
                resource_id=resource_id,
                created_at=self.now,
            )
        )


@asynccontextmanager
async def open_change(database: Database, change: Change) -> abc.AsyncIterator[ChangeTransaction]:
    """The only change in progress. What the block recorded is committed at its end, or undone if `validate_only`.

    A block that records nothing changes nothing: the revision stays. Raises DatabaseUnavailableError.
    """
    async with database.session() as session:
        row = await _lock_revision(session)
        yield ChangeTransaction(session, change, row.revision + 1, row.now, row.audit_head)
        if change.validate_only:
            await session.rollback()


async def _lock_revision(session: AsyncSession) -> Row[int, bytes, datetime]:
    # clock_timestamp, not now: times follow revisions even where a change waited for the lock.
    columns = (PolicyRevisionRow.revision, PolicyRevisionRow.audit_head, func.clock_timestamp().label("now"))
    return (await session.execute(select(*columns).with_for_update())).one()
