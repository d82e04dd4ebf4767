"""Statements on organizations. A new one gets the quota policy `default`: weight 1, no limits."""

from sqlalchemy import exists, literal, select
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import delete_row, require_live, state_column, state_of, undelete_row
from gateway.store.enums import State
from gateway.store.errors import AlreadyExistsError, PreconditionFailedError
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import OrganizationRow, TeamRow
from gateway.store.paths import organization_at
from gateway.store.quota_policies import default_policy_row
from gateway.store.records import Edit, Organization, OrganizationSettings, Page, ResourcePath, etag_of

FIELDS: Fields = {
    "name": Field(literal("organizations/") + OrganizationRow.slug, Kind.TEXT, lambda record: record.path.name),
    "display_name": Field(OrganizationRow.display_name, Kind.TEXT, lambda record: record.settings.display_name),
    "state": Field(state_column(OrganizationRow), Kind.TEXT, state_of),
    "create_time": Field(OrganizationRow.created_at, Kind.TIME, lambda record: record.created_at),
    "update_time": Field(OrganizationRow.updated_at, Kind.TIME, lambda record: record.updated_at),
    "delete_time": Field(OrganizationRow.deleted_at, Kind.TIME, lambda record: record.deleted_at),
}


async def create_organization(
    database: Database, change: Change, path: ResourcePath, settings: OrganizationSettings
) -> Organization:
    """The organization exists, with its default quota policy. A retry returns what the first call made.

    Raises AlreadyExistsError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            return _record(await tx.session.get_one(OrganizationRow, replayed))
        row, changed = await add_organization(tx, path, settings)
        await tx.record(changed)
        return _record(row)


async def add_organization(
    tx: ChangeTransaction, path: ResourcePath, settings: OrganizationSettings
) -> tuple[OrganizationRow, Changed]:
    """The part of a change that makes the organization and its policy. Raises AlreadyExistsError."""
    if await tx.session.scalar(select(exists().where(OrganizationRow.slug == path.organization))):
        raise AlreadyExistsError(path.name)
    row = OrganizationRow(
        id=uuid7(),
        slug=path.organization,
        display_name=settings.display_name,
        state=settings.state,
        revision=tx.revision,
        created_at=tx.now,
        updated_at=tx.now,
    )
    tx.session.add(row)
    await tx.session.flush()
    tx.session.add(default_policy_row(tx, row.id, None))
    return row, Changed("organizations.create", path.name, row.id, None, document_of(settings))


async def get_organization(database: Database, path: ResourcePath) -> Organization:
    """A deleted one, too. Raises NotFoundError."""
    async with database.session() as session:
        return _record(await organization_at(session, path))


async def list_organizations(database: Database, page: Page) -> list[Organization]:
    """One page of all organizations. Raises InvalidValueError for a field that there is not."""
    query = select(OrganizationRow)
    if not page.shows_deleted:
        query = query.where(OrganizationRow.deleted_at.is_(None))
    async with database.session() as session:
        return [_record(row) for row in await session.scalars(paged(query, page, FIELDS, OrganizationRow.id))]


async def update_organization(
    database: Database, change: Change, path: ResourcePath, edit: Edit[OrganizationSettings]
) -> Organization:
    """The organization has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, PreconditionFailedError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await organization_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row)
        tx.require_etag(path.name, etag_of(row.revision))
        changed = edit_organization(tx, row, path, edit)
        if changed is not None:
            await tx.record(changed)
        return _record(row)


def edit_organization(
    tx: ChangeTransaction, row: OrganizationRow, path: ResourcePath, edit: Edit[OrganizationSettings]
) -> Changed | None:
    """The part of a change that edits the organization; None where nothing differs. Raises PreconditionFailedError."""
    require_live(row, path)
    current = _settings(row)
    settings = edit(current)
    if settings == current:
        return None
    row.display_name, row.state = settings.display_name, settings.state
    row.revision, row.updated_at = tx.revision, tx.now
    return Changed("organizations.update", path.name, row.id, document_of(current), document_of(settings))


async def delete_organization(database: Database, change: Change, path: ResourcePath) -> Organization:
    """The organization is deleted and can be undeleted until its `purge_at`.

    Raises NotFoundError, PreconditionFailedError (it has teams), StoreConflictError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await organization_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row)
        tx.require_etag(path.name, etag_of(row.revision))
        changed = delete_row(tx, row, path, "organizations.delete")
        if await tx.session.scalar(select(exists().where(TeamRow.org_id == row.id, TeamRow.deleted_at.is_(None)))):
            raise PreconditionFailedError(path.name, "has teams: delete them first")
        await tx.record(changed)
        return _record(row)


async def undelete_organization(database: Database, change: Change, path: ResourcePath) -> Organization:
    """The organization is as it was before its deletion. Raises NotFoundError, AlreadyExistsError, StoreConflictError,
    RequestIdReusedError."""
    async with open_change(database, change) as tx:
        row = await organization_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row)
        tx.require_etag(path.name, etag_of(row.revision))
        await tx.record(undelete_row(tx, row, path, "organizations.undelete"))
        return _record(row)


def _settings(row: OrganizationRow) -> OrganizationSettings:
    return OrganizationSettings(row.display_name, State(row.state))


def _record(row: OrganizationRow) -> Organization:
    return Organization(
        id=row.id,
        path=ResourcePath(row.slug),
        settings=_settings(row),
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        deleted_at=row.deleted_at,
        purge_at=row.purge_at,
    )
