"""From resource paths to rows. Each lookup checks the whole path: another tenant's key is not found, never returned."""

from uuid import UUID

from sqlalchemy import Select, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import selectinload

from gateway.store.errors import NotFoundError
from gateway.store.models import ApiKeyRow, OrganizationRow, TeamRow
from gateway.store.records import ResourcePath


async def organization_at(session: AsyncSession, path: ResourcePath) -> OrganizationRow:
    """The organization that the path begins with. Raises NotFoundError."""
    row = await session.scalar(select(OrganizationRow).where(OrganizationRow.slug == path.organization))
    if row is None:
        raise NotFoundError(ResourcePath(path.organization).name)
    return row


async def team_at(session: AsyncSession, path: ResourcePath) -> TeamRow:
    """The team of the path. Raises NotFoundError."""
    row = await session.scalar(
        select(TeamRow)
        .join(OrganizationRow, OrganizationRow.id == TeamRow.org_id)
        .where(OrganizationRow.slug == path.organization, TeamRow.slug == path.team)
    )
    if row is None:
        raise NotFoundError(ResourcePath(path.organization, path.team).name)
    return row


async def key_at(session: AsyncSession, path: ResourcePath) -> ApiKeyRow:
    """The key of the path, with its secrets. Raises NotFoundError."""
    found = (await session.execute(keys_with_paths().where(ApiKeyRow.public_id == path.api_key))).one_or_none()
    if found is None or (found[1], found[2]) != (path.organization, path.team):
        raise NotFoundError(path.name)
    return found[0]


def teams_with_paths() -> Select[TeamRow, str]:
    """Teams, each with its organization's slug."""
    return select(TeamRow, OrganizationRow.slug).join(OrganizationRow, OrganizationRow.id == TeamRow.org_id)


def keys_with_paths() -> Select[ApiKeyRow, str | None, str | None]:
    """Keys with their secrets, each with the slugs of its organization and team; platform keys have neither."""
    return (
        select(ApiKeyRow, OrganizationRow.slug, TeamRow.slug)
        .outerjoin(OrganizationRow, OrganizationRow.id == ApiKeyRow.org_id)
        .outerjoin(TeamRow, TeamRow.id == ApiKeyRow.team_id)
        .options(selectinload(ApiKeyRow.secrets))
    )


async def ids_at(session: AsyncSession, path: ResourcePath) -> tuple[UUID, UUID | None, UUID | None]:
    """The ids of the organization, team and key that the path names, as far as it goes. Raises NotFoundError."""
    if path.api_key is not None:
        key = await key_at(session, path)
        if key.org_id is None:  # a platform key belongs to no organization, so nothing can hang below it
            raise NotFoundError(path.name)
        return key.org_id, key.team_id, key.id
    if path.team is not None:
        team = await team_at(session, path)
        return team.org_id, team.id, None
    return (await organization_at(session, path)).id, None, None
