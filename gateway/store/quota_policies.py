"""Statements on quota policies: weight and limits of one organization, team or key. Each has one policy at most."""

from uuid import UUID

from sqlalchemy import Select, func, literal, select
from sqlalchemy.ext.asyncio import AsyncSession
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import require_live
from gateway.store.errors import AlreadyExistsError, NotFoundError, PreconditionFailedError
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import ApiKeyRow, OrganizationRow, QuotaPolicyRow, TeamRow
from gateway.store.paths import ids_at, key_at, organization_at, team_at
from gateway.store.quota_parts import grants_of, make_empty, ordered, settings_of, with_parts, write_settings
from gateway.store.records import (
    ANY,
    DEFAULT_POLICY,
    Edit,
    Page,
    QuotaPolicy,
    QuotaPolicySettings,
    ResourcePath,
    etag_of,
)

FIELDS: Fields = {
    "mode": Field(
        literal("QUOTA_MODE_") + QuotaPolicyRow.mode, Kind.TEXT, lambda record: f"QUOTA_MODE_{record.settings.mode}"
    ),
    "weight": Field(func.coalesce(QuotaPolicyRow.weight, 0.0), Kind.NUMBER, lambda record: record.settings.weight or 0),
    "strict": Field(QuotaPolicyRow.strict, Kind.FLAG, lambda record: record.settings.strict),
    "create_time": Field(QuotaPolicyRow.created_at, Kind.TIME, lambda record: record.created_at),
    "update_time": Field(QuotaPolicyRow.updated_at, Kind.TIME, lambda record: record.updated_at),
}


async def create_quota_policy(
    database: Database, change: Change, path: ResourcePath, slug: str, settings: QuotaPolicySettings
) -> QuotaPolicy:
    """The organization, team or key at `path` has the policy. A retry returns what the first call made.

    Raises NotFoundError (whom it is for), PreconditionFailedError (they are deleted), AlreadyExistsError (there is a
    policy, whatever its slug), InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        existing = await _find(tx.session, await ids_at(tx.session, path))
        if await tx.find_replayed() is not None and existing is not None:
            return policy_record(existing, path)
        row, changed = await add_quota_policy(tx, path, slug, settings)
        await tx.record(changed)
        return policy_record(row, path)


async def add_quota_policy(
    tx: ChangeTransaction, path: ResourcePath, slug: str, settings: QuotaPolicySettings
) -> tuple[QuotaPolicyRow, Changed]:
    """The part of a change that makes the policy. Raises as `create_quota_policy` does."""
    ids = await ids_at(tx.session, path)
    await _require_live(tx, path)
    existing = await _find(tx.session, ids)
    if existing is not None:
        raise AlreadyExistsError(_name(path, existing.slug))
    row = QuotaPolicyRow(id=uuid7(), slug=slug, created_at=tx.now)
    row.org_id, row.team_id, row.key_id = ids
    make_empty(row)
    _write(row, settings, tx)
    tx.session.add(row)
    return row, Changed("quotaPolicies.create", _name(path, slug), row.id, None, document_of(settings))


async def get_quota_policy(database: Database, path: ResourcePath, slug: str) -> QuotaPolicy:
    """The policy `slug` of the organization, team or key at `path`. Raises NotFoundError."""
    async with database.session() as session:
        return policy_record(await policy_at(session, path, slug), path)


async def list_quota_policies(database: Database, parent: ResourcePath, page: Page) -> list[QuotaPolicy]:
    """One page of the policies at the parent's depth: of organizations, of teams or of keys; a segment may be `-`.

    Those of deleted ones are left out. Raises NotFoundError for a parent that does not exist, InvalidValueError for a
    field that there is not.
    """
    query = paged(_with_paths(), page, FIELDS, QuotaPolicyRow.id)
    for table in (OrganizationRow, TeamRow, ApiKeyRow):
        query = query.where(table.deleted_at.is_(None))
    columns = (
        (parent.organization, OrganizationRow.slug),
        (parent.team, TeamRow.slug),
        (parent.api_key, ApiKeyRow.public_id),
    )
    for segment, column in columns:
        if segment != ANY:  # None: the parent is not that deep, so neither is the policy
            query = query.where(column.is_(None) if segment is None else column == segment)
        else:
            query = query.where(column.is_not(None))
    async with database.session() as session:
        if ANY not in (parent.organization, parent.team, parent.api_key):
            await ids_at(session, parent)
        found = await session.execute(query)
        return [policy_record(row, ResourcePath(organization, team, key)) for row, organization, team, key in found]


async def update_quota_policy(
    database: Database,
    change: Change,
    path: ResourcePath,
    slug: str,
    edit: Edit[QuotaPolicySettings],
) -> QuotaPolicy:
    """The policy has the edited settings, its limits as a whole; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await policy_at(tx.session, path, slug)
        if await tx.find_replayed() is not None:
            return policy_record(row, path)
        tx.require_etag(_name(path, slug), etag_of(row.revision))
        changed = await edit_quota_policy(tx, row, path, edit)
        if changed is not None:
            await tx.record(changed)
        return policy_record(row, path)


async def edit_quota_policy(
    tx: ChangeTransaction, row: QuotaPolicyRow, path: ResourcePath, edit: Edit[QuotaPolicySettings]
) -> Changed | None:
    """The part of a change that edits the policy; None where nothing differs. Raises as `update_quota_policy` does."""
    await _require_live(tx, path)
    current = settings_of(row)
    settings = ordered(edit(current))
    if settings == current:
        return None
    _write(row, settings, tx)
    before, after = document_of(current), document_of(settings)
    return Changed("quotaPolicies.update", _name(path, row.slug), row.id, before, after)


async def delete_quota_policy(database: Database, change: Change, path: ResourcePath, slug: str) -> None:
    """The key has no policy of its own any more.

    Raises NotFoundError, PreconditionFailedError (organizations and teams always have one), StoreConflictError,
    RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if await tx.find_replayed() is not None:
            return
        row = await policy_at(tx.session, path, slug)
        tx.require_etag(_name(path, slug), etag_of(row.revision))
        if path.api_key is None:
            raise PreconditionFailedError(_name(path, slug), "goes with its organization or team; clear its limits")
        before = document_of(settings_of(row))
        await tx.session.delete(row)
        # Whoever reads what is newer than a revision finds the key, and no policy with it.
        key = await key_at(tx.session, path)
        key.revision, key.updated_at = tx.revision, tx.now
        await tx.record(Changed("quotaPolicies.delete", _name(path, slug), row.id, before, None))


def default_policy_row(tx: ChangeTransaction, org_id: UUID, team_id: UUID | None) -> QuotaPolicyRow:
    """The policy that a new organization or team gets: weight 1, no limits."""
    row = QuotaPolicyRow(id=uuid7(), slug=DEFAULT_POLICY, created_at=tx.now, org_id=org_id, team_id=team_id)
    make_empty(row)
    _write(row, QuotaPolicySettings(), tx)
    return row


async def policy_at(session: AsyncSession, path: ResourcePath, slug: str) -> QuotaPolicyRow:
    """The policy `slug` of the node at `path`. Raises NotFoundError."""
    row = await _find(session, await ids_at(session, path))
    if row is None or row.slug != slug:
        raise NotFoundError(_name(path, slug))
    return row


async def _find(session: AsyncSession, ids: tuple[UUID, UUID | None, UUID | None]) -> QuotaPolicyRow | None:
    org_id, team_id, key_id = ids
    return await session.scalar(
        select(QuotaPolicyRow)
        .where(
            QuotaPolicyRow.org_id == org_id,
            QuotaPolicyRow.team_id.is_not_distinct_from(team_id),
            QuotaPolicyRow.key_id.is_not_distinct_from(key_id),
        )
        .options(*with_parts())
    )


async def _require_live(tx: ChangeTransaction, path: ResourcePath) -> None:
    """Raises PreconditionFailedError if what the policy governs is deleted."""
    if path.api_key is not None:
        require_live(await key_at(tx.session, path), path)
    elif path.team is not None:
        require_live(await team_at(tx.session, path), path)
    else:
        require_live(await organization_at(tx.session, path), path)


def _with_paths() -> Select[QuotaPolicyRow, str, str | None, str | None]:
    return (
        select(QuotaPolicyRow, OrganizationRow.slug, TeamRow.slug, ApiKeyRow.public_id)
        .join(OrganizationRow, OrganizationRow.id == QuotaPolicyRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == QuotaPolicyRow.team_id)
        .outerjoin(ApiKeyRow, ApiKeyRow.id == QuotaPolicyRow.key_id)
        .options(*with_parts())
    )


def _write(row: QuotaPolicyRow, settings: QuotaPolicySettings, tx: ChangeTransaction) -> None:
    write_settings(row, settings)
    row.revision, row.updated_at = tx.revision, tx.now


def policy_record(row: QuotaPolicyRow, path: ResourcePath) -> QuotaPolicy:
    """The policy, of a row whose parts are loaded."""
    return QuotaPolicy(
        id=row.id,
        path=path,
        slug=row.slug,
        settings=settings_of(row),
        revision=row.revision,
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        grants=grants_of(row.grants),
    )


def _name(path: ResourcePath, slug: str) -> str:
    return f"{path.name}/quotaPolicies/{slug}"
