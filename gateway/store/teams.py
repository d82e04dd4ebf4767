"""Statements on teams, the tenants. A new one gets a random cache salt and the quota policy `default`."""

import secrets

from sqlalchemy import exists, literal, select
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import delete_row, require_live, state_column, state_of, undelete_row
from gateway.store.enums import State
from gateway.store.errors import AlreadyExistsError, PreconditionFailedError
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import ApiKeyRow, OrganizationRow, TeamRow
from gateway.store.paths import organization_at, team_at, teams_with_paths
from gateway.store.priority_classes import require_classes
from gateway.store.quota_policies import default_policy_row
from gateway.store.records import ANY, CACHE_SALT_BYTES, Edit, Page, ResourcePath, Team, TeamSettings, etag_of

FIELDS: Fields = {
    "name": Field(
        literal("organizations/") + OrganizationRow.slug + "/teams/" + TeamRow.slug,
        Kind.TEXT,
        lambda record: record.path.name,
    ),
    "display_name": Field(TeamRow.display_name, Kind.TEXT, lambda record: record.settings.display_name),
    "state": Field(state_column(TeamRow), Kind.TEXT, state_of),
    "default_priority_class": Field(
        literal("priorityClasses/") + TeamRow.default_class,
        Kind.TEXT,
        lambda record: f"priorityClasses/{record.settings.default_class}",
    ),
    "create_time": Field(TeamRow.created_at, Kind.TIME, lambda record: record.created_at),
    "update_time": Field(TeamRow.updated_at, Kind.TIME, lambda record: record.updated_at),
    "delete_time": Field(TeamRow.deleted_at, Kind.TIME, lambda record: record.deleted_at),
}


async def create_team(database: Database, change: Change, path: ResourcePath, settings: TeamSettings) -> Team:
    """The team exists, with its default quota policy. A retry returns what the first call made.

    Raises NotFoundError (the organization), AlreadyExistsError, PreconditionFailedError (it is deleted),
    InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if (replayed := await tx.find_replayed()) is not None:
            return _record(await tx.session.get_one(TeamRow, replayed), path.organization)
        row, changed = await add_team(tx, path, settings)
        await tx.record(changed)
        return _record(row, path.organization)


async def add_team(tx: ChangeTransaction, path: ResourcePath, settings: TeamSettings) -> tuple[TeamRow, Changed]:
    """The part of a change that makes the team and its policy. Raises as `create_team` does."""
    organization = await organization_at(tx.session, path)
    require_live(organization, ResourcePath(path.organization))
    taken = exists().where(TeamRow.org_id == organization.id, TeamRow.slug == path.team)
    if await tx.session.scalar(select(taken)):
        raise AlreadyExistsError(path.name)
    await _require_classes(tx, settings)
    row = TeamRow(
        id=uuid7(),
        org_id=organization.id,
        slug=path.team,
        cache_salt=secrets.token_bytes(CACHE_SALT_BYTES),
        created_at=tx.now,
    )
    _write(row, settings, tx)
    tx.session.add(row)
    await tx.session.flush()
    tx.session.add(default_policy_row(tx, organization.id, row.id))
    return row, Changed("teams.create", path.name, row.id, None, document_of(settings))


async def get_team(database: Database, path: ResourcePath) -> Team:
    """A deleted one, too. Raises NotFoundError."""
    async with database.session() as session:
        row = await team_at(session, path)
        return _record(row, path.organization)


async def list_teams(database: Database, parent: ResourcePath, page: Page) -> list[Team]:
    """One page of an organization's teams, or (`-`) of all.

    Raises NotFoundError for an unknown organization, InvalidValueError for a field that there is not.
    """
    query = paged(teams_with_paths(), page, FIELDS, TeamRow.id)
    if not page.shows_deleted:
        query = query.where(TeamRow.deleted_at.is_(None))
    async with database.session() as session:
        if parent.organization != ANY:
            organization = await organization_at(session, parent)
            query = query.where(TeamRow.org_id == organization.id)
        return [_record(row, slug) for row, slug in await session.execute(query)]


async def update_team(database: Database, change: Change, path: ResourcePath, edit: Edit[TeamSettings]) -> Team:
    """The team has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, PreconditionFailedError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await team_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row, path.organization)
        tx.require_etag(path.name, etag_of(row.revision))
        changed = await edit_team(tx, row, path, edit)
        if changed is not None:
            await tx.record(changed)
        return _record(row, path.organization)


async def edit_team(
    tx: ChangeTransaction, row: TeamRow, path: ResourcePath, edit: Edit[TeamSettings]
) -> Changed | None:
    """The part of a change that edits the team; None where nothing differs. Raises as `update_team` does."""
    require_live(row, path)
    current = _settings(row)
    settings = edit(current)
    if settings == current:
        return None
    await _require_classes(tx, settings)
    _write(row, settings, tx)
    return Changed("teams.update", path.name, row.id, document_of(current), document_of(settings))


async def delete_team(database: Database, change: Change, path: ResourcePath) -> Team:
    """The team is deleted and can be undeleted until its `purge_at`.

    Raises NotFoundError, PreconditionFailedError (it has keys), StoreConflictError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await team_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row, path.organization)
        tx.require_etag(path.name, etag_of(row.revision))
        changed = delete_row(tx, row, path, "teams.delete")
        live = exists().where(
            ApiKeyRow.team_id == row.id, ApiKeyRow.deleted_at.is_(None), ApiKeyRow.revoked_at.is_(None)
        )
        if await tx.session.scalar(select(live)):
            raise PreconditionFailedError(path.name, "has keys: revoke or delete them first")
        await tx.record(changed)
        return _record(row, path.organization)


async def undelete_team(database: Database, change: Change, path: ResourcePath) -> Team:
    """The team is as it was before its deletion.

    Raises NotFoundError, AlreadyExistsError, PreconditionFailedError (its organization is deleted), StoreConflictError,
    RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await team_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return _record(row, path.organization)
        tx.require_etag(path.name, etag_of(row.revision))
        require_live(await organization_at(tx.session, path), ResourcePath(path.organization))
        await tx.record(undelete_row(tx, row, path, "teams.undelete"))
        return _record(row, path.organization)


async def _require_classes(tx: ChangeTransaction, settings: TeamSettings) -> None:
    await require_classes(tx.session, "default_priority_class", [settings.default_class])
    await require_classes(tx.session, "priority_class_grants", settings.class_grants)


def _settings(row: TeamRow) -> TeamSettings:
    grants = tuple(row.class_grants)
    flags = row.durable_usage, row.shares_prefix_cache, row.speculation_disabled
    return TeamSettings(row.display_name, State(row.state), row.default_class, grants, *flags)


def _write(row: TeamRow, settings: TeamSettings, tx: ChangeTransaction) -> None:
    row.display_name, row.state = settings.display_name, settings.state
    row.default_class, row.class_grants = settings.default_class, list(settings.class_grants)
    row.durable_usage, row.shares_prefix_cache = settings.durable_usage, settings.shares_prefix_cache
    row.speculation_disabled = settings.speculation_disabled
    row.revision, row.updated_at = tx.revision, tx.now


def _record(row: TeamRow, organization: str | None) -> Team:
    return Team(
        id=row.id,
        path=ResourcePath(organization, row.slug),
        settings=_settings(row),
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        deleted_at=row.deleted_at,
        purge_at=row.purge_at,
    )
