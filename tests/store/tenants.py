"""Builders of organizations, teams and keys in a real database."""

from uuid import UUID, uuid4

from gateway import api_key
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.records import (
    ApiKey,
    ApiKeySettings,
    KeySecret,
    Organization,
    OrganizationSettings,
    ResourcePath,
    Team,
    TeamSettings,
)
from gateway.store.teams import create_team

PEPPER = b"pepper"
ADMIN = "apiKeys/administrator"


def make_change(
    request_id: UUID | None = None, fingerprint: bytes = b"", etag: str | None = None, *, validate_only: bool = False
) -> Change:
    return Change(ADMIN, "correlation", request_id, fingerprint, validate_only, etag)


def unique_slug(prefix: str) -> str:
    return f"{prefix}-{uuid4().hex[:12]}"


def make_secret(key: api_key.GeneratedKey | None = None) -> KeySecret:
    return KeySecret(api_key.digest(PEPPER, (key or api_key.generate()).secret), pepper_version=1)


async def make_organization(
    database: Database, slug: str | None = None, settings: OrganizationSettings | None = None
) -> Organization:
    path = ResourcePath(slug or unique_slug("acme"))
    return await create_organization(database, make_change(), path, settings or OrganizationSettings())


async def make_team(
    database: Database, organization: Organization, slug: str | None = None, settings: TeamSettings | None = None
) -> Team:
    path = ResourcePath(organization.path.organization, slug or unique_slug("search"))
    return await create_team(database, make_change(), path, settings or TeamSettings())


async def make_key(database: Database, team: Team, settings: ApiKeySettings | None = None) -> ApiKey:
    key = api_key.generate()
    path = ResourcePath(team.path.organization, team.path.team, key.public_id)
    return await create_key(database, make_change(), path, settings or ApiKeySettings(), make_secret(key))
