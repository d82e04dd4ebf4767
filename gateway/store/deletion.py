"""Deletion that can be taken back: what it means for a row of an organization, a team or a key, and its end.

A deleted row refuses requests and changes, keeps its name, and is removed with everything below it at `purge_at`.
"""

import asyncio
from datetime import timedelta
from uuid import UUID

import structlog
from sqlalchemy import ColumnElement, case, delete, exists, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.audit import Document
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.errors import AlreadyExistsError, NotFoundError, PreconditionFailedError
from gateway.store.identity_purge import delete_bindings_of, delete_issuers_of, forget_deleted_identities
from gateway.store.models import ApiKeyRow, OrganizationRow, QuotaPolicyRow, TeamRow
from gateway.store.outage import DATABASE_ERRORS, Outage
from gateway.store.records import Organization, ResourcePath, Team

RETENTION = timedelta(days=30)
PURGER = "purge"
PURGE_INTERVAL_S = 3600.0
DELETED = "DELETED"
MAX_PURGED = 1000  # of each noun in one transaction, whose locks others wait for
Deletable = OrganizationRow | TeamRow | ApiKeyRow

log = structlog.get_logger()


def delete_row(tx: ChangeTransaction, row: Deletable, path: ResourcePath, action: str) -> Changed:
    """The row is deleted from now on. Raises NotFoundError if it was before (AIP-164)."""
    if row.deleted_at is not None:
        raise NotFoundError(path.name)
    row.deleted_at, row.purge_at = tx.now, tx.now + RETENTION
    row.revision, row.updated_at = tx.revision, tx.now
    return Changed(action, path.name, row.id, _document(None, None), _document(row.deleted_at, row.purge_at))


def undelete_row(tx: ChangeTransaction, row: Deletable, path: ResourcePath, action: str) -> Changed:
    """The row is as it was. Raises AlreadyExistsError if it is not deleted, NotFoundError if it is due to be purged."""
    if row.deleted_at is None:
        raise AlreadyExistsError(path.name, "is not deleted")
    if row.purge_at is not None and row.purge_at <= tx.now:
        raise NotFoundError(path.name)
    before = _document(row.deleted_at, row.purge_at)
    row.deleted_at = row.purge_at = None
    row.revision, row.updated_at = tx.revision, tx.now
    return Changed(action, path.name, row.id, before, _document(None, None))


def require_live(row: Deletable, path: ResourcePath) -> None:
    """Raises PreconditionFailedError if the row is deleted: nothing can be changed about it, or made below it."""
    if row.deleted_at is not None:
        raise PreconditionFailedError(path.name, "is deleted: undelete it first")


def state_column(table: type[OrganizationRow | TeamRow]) -> ColumnElement[str]:
    """ACTIVE, SUSPENDED or DELETED, as lists are filtered by it."""
    return case((table.deleted_at.is_not(None), DELETED), else_=table.state)


def state_of(record: Organization | Team) -> str:
    """The same of a record."""
    return DELETED if record.deleted_at is not None else record.settings.state.value


async def purge(database: Database) -> int:
    """Whatever is due to be purged is gone, with what is below it. Returns how many organizations, teams and keys.

    Raises DatabaseUnavailableError.
    """
    async with database.session() as session:
        await forget_deleted_identities(session, RETENTION)
    async with database.session() as session:
        if not await _is_anything_due(session):
            return 0
    async with open_change(database, Change(PURGER)) as tx:
        changes = [await _purge_key(tx, *found) for found in await _due_keys(tx)]
        changes += [await _purge_team(tx, *found) for found in await _due_teams(tx)]
        changes += [await _purge_organization(tx, row) for row in await _due_organizations(tx)]
        if changes:
            await tx.record(*changes)
    log.info("purged", num_resources=len(changes))
    return len(changes)


class Purger:
    """Purges what is due, again and again. Each gateway has one; whoever comes second finds nothing."""

    def __init__(self, database: Database, interval_s: float = PURGE_INTERVAL_S) -> None:
        self._database = database
        self._interval_s = interval_s

    async def run(self) -> None:
        """Until cancelled, whatever the database does."""
        outage = Outage("nothing is purged")
        while True:
            try:
                await purge(self._database)
                outage.end()
            except DATABASE_ERRORS as error:
                outage.note(error)
            await asyncio.sleep(self._interval_s)


async def _is_anything_due(session: AsyncSession) -> bool:
    due = (exists().where(table.purge_at <= func.now()) for table in (ApiKeyRow, TeamRow, OrganizationRow))
    return bool(await session.scalar(select(or_(*due))))


async def _due_keys(tx: ChangeTransaction) -> list[tuple[ApiKeyRow, str | None, str | None]]:
    """Those that are due, and those of teams that are."""
    team_is_due = ApiKeyRow.team_id.in_(select(TeamRow.id).where(_is_due_team(tx)))
    found = await tx.session.execute(
        select(ApiKeyRow, OrganizationRow.slug, TeamRow.slug)
        .outerjoin(OrganizationRow, OrganizationRow.id == ApiKeyRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == ApiKeyRow.team_id)
        .where(or_(ApiKeyRow.purge_at <= tx.now, team_is_due))
        .order_by(ApiKeyRow.id)
        .limit(MAX_PURGED)
    )
    return [(row, organization, team) for row, organization, team in found]


async def _due_teams(tx: ChangeTransaction) -> list[tuple[TeamRow, str]]:
    """Those that are due and have no key left."""
    has_key = exists().where(ApiKeyRow.team_id == TeamRow.id)
    found = await tx.session.execute(
        select(TeamRow, OrganizationRow.slug)
        .join(OrganizationRow, OrganizationRow.id == TeamRow.org_id)
        .where(_is_due_team(tx), ~has_key)
        .order_by(TeamRow.id)
        .limit(MAX_PURGED)
    )
    return [(row, organization) for row, organization in found]


async def _due_organizations(tx: ChangeTransaction) -> list[OrganizationRow]:
    has_team = exists().where(TeamRow.org_id == OrganizationRow.id)
    query = select(OrganizationRow).where(OrganizationRow.purge_at <= tx.now, ~has_team)
    return list(await tx.session.scalars(query.order_by(OrganizationRow.id).limit(MAX_PURGED)))


def _is_due_team(tx: ChangeTransaction) -> ColumnElement[bool]:
    organization_is_due = TeamRow.org_id.in_(select(OrganizationRow.id).where(OrganizationRow.purge_at <= tx.now))
    return or_(TeamRow.purge_at <= tx.now, organization_is_due)


async def _purge_key(tx: ChangeTransaction, row: ApiKeyRow, organization: str | None, team: str | None) -> Changed:
    await delete_bindings_of(tx, row)
    await tx.session.execute(delete(QuotaPolicyRow).where(QuotaPolicyRow.key_id == row.id))
    await tx.session.execute(delete(ApiKeyRow).where(ApiKeyRow.id == row.id))
    return _purged("apiKeys.purge", ResourcePath(organization, team, row.public_id), row.id)


async def _purge_team(tx: ChangeTransaction, row: TeamRow, organization: str) -> Changed:
    await tx.session.execute(delete(QuotaPolicyRow).where(QuotaPolicyRow.team_id == row.id))
    await tx.session.execute(delete(TeamRow).where(TeamRow.id == row.id))
    return _purged("teams.purge", ResourcePath(organization, row.slug), row.id)


async def _purge_organization(tx: ChangeTransaction, row: OrganizationRow) -> Changed:
    await delete_issuers_of(tx, row)
    await tx.session.execute(delete(QuotaPolicyRow).where(QuotaPolicyRow.org_id == row.id))
    await tx.session.execute(delete(OrganizationRow).where(OrganizationRow.id == row.id))
    return _purged("organizations.purge", ResourcePath(row.slug), row.id)


def _purged(action: str, path: ResourcePath, row_id: UUID) -> Changed:
    return Changed(action, path.name, row_id, {"uid": str(row_id)}, None)


def _document(deleted_at: object, purge_at: object) -> Document:
    return {
        "deleted_at": None if deleted_at is None else str(deleted_at),
        "purge_at": None if purge_at is None else str(purge_at),
    }
