"""Statements on teams, the tenants. A new one gets a random cache salt and the quota policy `default`."""

import secrets

from sqlalchemy import exists, select
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.enums import State
from gateway.store.errors import AlreadyExistsError
from gateway.store.models import TeamRow
from gateway.store.paths import organization_at, team_at, teams_with_paths
from gateway.store.priority_classes import require_classes
from gateway.store.quota_policies import default_policy_row
from gateway.store.records import ANY, Edit, Page, ResourcePath, Team, TeamSettings, etag_of

CACHE_SALT_BYTES = 32


async def create_team(database: Database, change: Change, path: ResourcePath, settings: TeamSettings) -> Team:
    """The team exists, with its default quota policy. A retry returns what the first call made.

    Raises NotFoundError (the organization), AlreadyExistsError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        organization = await organization_at(tx.session, path)
        if (replayed := await tx.find_replayed()) is not None:
            return _record(await tx.session.get_one(TeamRow, replayed), organization.slug)
        taken = exists().where(TeamRow.org_id == organization.id, TeamRow.slug == path.team)
        if await tx.session.scalar(select(taken)):
            raise AlreadyExistsError(path.name)
        await require_classes(tx.session, "default_priority_class", [settings.default_class])
        await require_classes(tx.session, "priority_class_grants", settings.class_grants)
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
        await tx.record(Changed("teams.create", path.name, row.id, None, document_of(settings)))
        return _record(row, organization.slug)


async def get_team(database: Database, path: ResourcePath) -> Team:
    """Raises NotFoundError."""
    async with database.session() as session:
        row = await team_at(session, path)
        return _record(row, path.organization)


async def list_teams(database: Database, parent: ResourcePath, page: Page) -> list[Team]:
    """One page of an organization's teams, or (`-`) of all. Raises NotFoundError for an unknown organization."""
    query = teams_with_paths().order_by(TeamRow.id).limit(page.size)
    if page.after is not None:
        query = query.where(TeamRow.id > page.after)
    async with database.session() as session:
        if parent.organization != ANY:
            organization = await organization_at(session, parent)
            query = query.where(TeamRow.org_id == organization.id)
        return [_record(row, slug) for row, slug in await session.execute(query)]


async def update_team(database: Database, change: Change, path: ResourcePath, edit: Edit[TeamSettings]) -> Team:
    """The team has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await team_at(tx.session, path)
        current = _record(row, path.organization)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(path.name, current.etag)
        settings = edit(current.settings)
        if settings == current.settings:
            return current
        await require_classes(tx.session, "default_priority_class", [settings.default_class])
        await require_classes(tx.session, "priority_class_grants", settings.class_grants)
        _write(row, settings, tx)
        before, after = document_of(current.settings), document_of(settings)
        await tx.record(Changed("teams.update", path.name, row.id, before, after))
        return _record(row, path.organization)


def _write(row: TeamRow, settings: TeamSettings, tx: ChangeTransaction) -> None:
    row.display_name, row.state = settings.display_name, settings.state
    row.default_class, row.class_grants = settings.default_class, list(settings.class_grants)
    row.revision, row.updated_at = tx.revision, tx.now


def _record(row: TeamRow, organization: str | None) -> Team:
    return Team(
        id=row.id,
        path=ResourcePath(organization, row.slug),
        settings=TeamSettings(row.display_name, State(row.state), row.default_class, tuple(row.class_grants)),
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
