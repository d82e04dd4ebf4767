"""Statements on organizations. A new one gets the quota policy `default`: weight 1, no limits."""

from sqlalchemy import exists, select
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, open_change
from gateway.store.db import Database
from gateway.store.enums import State
from gateway.store.errors import AlreadyExistsError
from gateway.store.models import OrganizationRow
from gateway.store.paths import organization_at
from gateway.store.quota_policies import default_policy_row
from gateway.store.records import Edit, Organization, OrganizationSettings, Page, ResourcePath, etag_of


async def create_organization(
    database: Database, change: Change, path: ResourcePath, settings: OrganizationSettings
) -> Organization:
    """The organization exists, with its default quota policy. A retry returns what the first call made.

    Raises AlreadyExistsError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            return _record(await tx.session.get_one(OrganizationRow, replayed))
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
        await tx.record(Changed("organizations.create", path.name, row.id, None, document_of(settings)))
        return _record(row)


async def get_organization(database: Database, path: ResourcePath) -> Organization:
    """Raises NotFoundError."""
    async with database.session() as session:
        return _record(await organization_at(session, path))


async def list_organizations(database: Database, page: Page) -> list[Organization]:
    """One page of all organizations."""
    query = select(OrganizationRow).order_by(OrganizationRow.id).limit(page.size)
    if page.after is not None:
        query = query.where(OrganizationRow.id > page.after)
    async with database.session() as session:
        return [_record(row) for row in await session.scalars(query)]


async def update_organization(
    database: Database, change: Change, path: ResourcePath, edit: Edit[OrganizationSettings]
) -> Organization:
    """The organization has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await organization_at(tx.session, path)
        current = _record(row)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(path.name, current.etag)
        settings = edit(current.settings)
        if settings == current.settings:
            return current
        row.display_name, row.state = settings.display_name, settings.state
        row.revision, row.updated_at = tx.revision, tx.now
        before, after = document_of(current.settings), document_of(settings)
        await tx.record(Changed("organizations.update", path.name, row.id, before, after))
        return _record(row)


def _record(row: OrganizationRow) -> Organization:
    return Organization(
        id=row.id,
        path=ResourcePath(row.slug),
        settings=OrganizationSettings(row.display_name, State(row.state)),
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
