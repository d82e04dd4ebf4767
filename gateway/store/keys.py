"""Statements on API keys. Secrets arrive as keyed hashes; nothing here has seen one. What ends one: `key_ends`."""

from collections import abc
from datetime import datetime
from ipaddress import ip_network
from uuid import UUID

from sqlalchemy import ARRAY, DateTime, Uuid, any_, bindparam, case, exists, func, literal, select, update
from sqlalchemy.orm import selectinload
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import require_live
from gateway.store.enums import KeyScope
from gateway.store.errors import AlreadyExistsError, InvalidValueError, LastPlatformKeyError
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import ApiKeyRow, ApiKeySecretRow, OrganizationRow, TeamRow
from gateway.store.paths import key_at, keys_with_paths, organization_at, team_at
from gateway.store.priority_classes import require_classes
from gateway.store.records import ANY, ApiKey, ApiKeySettings, Edit, KeySecret, Page, ResourcePath, etag_of

_PARENT = case(
    (ApiKeyRow.team_id.is_(None), ""),
    else_=literal("organizations/") + OrganizationRow.slug + "/teams/" + TeamRow.slug + "/",
)
FIELDS: Fields = {
    "name": Field(_PARENT + "apiKeys/" + ApiKeyRow.public_id, Kind.TEXT, lambda record: record.path.name),
    "display_name": Field(ApiKeyRow.display_name, Kind.TEXT, lambda record: record.settings.display_name),
    "scopes": Field(ApiKeyRow.scopes, Kind.TEXTS),
    "model_grants": Field(ApiKeyRow.model_grants, Kind.TEXTS),
    "expire_time": Field(ApiKeyRow.expires_at, Kind.TIME, lambda record: record.settings.expires_at),
    "revoke_time": Field(ApiKeyRow.revoked_at, Kind.TIME, lambda record: record.revoked_at),
    "last_used_time": Field(ApiKeyRow.last_used_at, Kind.TIME, lambda record: record.last_used_at),
    "create_time": Field(ApiKeyRow.created_at, Kind.TIME, lambda record: record.created_at),
    "update_time": Field(ApiKeyRow.updated_at, Kind.TIME, lambda record: record.updated_at),
    "delete_time": Field(ApiKeyRow.deleted_at, Kind.TIME, lambda record: record.deleted_at),
}


async def create_key(
    database: Database, change: Change, path: ResourcePath, settings: ApiKeySettings, secret: KeySecret
) -> ApiKey:
    """The key exists; `path.api_key` is its public id.

    A retry returns the first call's key: its public id is not `path.api_key`, and its secret is not this one.
    Raises NotFoundError (the team), AlreadyExistsError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        team = None if path.team is None else await team_at(tx.session, path)
        if (replayed := await tx.find_replayed()) is not None:
            return key_record(
                await tx.session.get_one(ApiKeyRow, replayed, options=[selectinload(ApiKeyRow.secrets)]), path
            )
        if team is not None:
            require_live(team, ResourcePath(path.organization, path.team))
        if await tx.session.scalar(select(exists().where(ApiKeyRow.public_id == path.api_key))):
            raise AlreadyExistsError(path.name)
        await _require_grants(tx, team, settings)
        row = ApiKeyRow(id=uuid7(), public_id=path.api_key, created_at=tx.now)
        row.org_id, row.team_id = (None, None) if team is None else (team.org_id, team.id)
        row.secrets = [
            ApiKeySecretRow(
                hmac=secret.digest, pepper_version=secret.pepper_version, not_after=secret.not_after, created_at=tx.now
            )
        ]
        _write(row, settings, tx)
        tx.session.add(row)
        await tx.record(Changed("apiKeys.create", path.name, row.id, None, document_of(settings)))
        return key_record(row, path)


async def get_key(database: Database, path: ResourcePath) -> ApiKey:
    """Raises NotFoundError."""
    async with database.session() as session:
        return key_record(await key_at(session, path), path)


async def list_keys(database: Database, parent: ResourcePath, page: Page) -> list[ApiKey]:
    """One page of the keys of a team, of all teams (`-`) of one or of all organizations; or of the platform's keys.

    The latter are below no organization: `parent` has none. Raises NotFoundError for a parent that does not exist.
    """
    query = paged(keys_with_paths(), page, FIELDS, ApiKeyRow.id)
    is_platform = parent.organization is None
    query = query.where(ApiKeyRow.team_id.is_(None) if is_platform else ApiKeyRow.team_id.is_not(None))
    if not page.shows_deleted:
        query = query.where(ApiKeyRow.deleted_at.is_(None))
    async with database.session() as session:
        if parent.organization not in (ANY, None):
            query = query.where(ApiKeyRow.org_id == (await organization_at(session, parent)).id)
        if parent.team not in (ANY, None):
            query = query.where(ApiKeyRow.team_id.in_(select(TeamRow.id).where(TeamRow.slug == parent.team)))
            if parent.organization != ANY:
                await team_at(session, parent)
        found = await session.execute(query)
        return [key_record(row, ResourcePath(organization, team)) for row, organization, team in found]


async def update_key(database: Database, change: Change, path: ResourcePath, edit: Edit[ApiKeySettings]) -> ApiKey:
    """The key has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError, LastPlatformKeyError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        current = key_record(row, path)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(path.name, current.etag)
        require_live(row, path)
        settings = edit(current.settings)
        if settings == current.settings:
            return current
        if settings.class_grants != current.settings.class_grants:
            team = None if path.team is None else await team_at(tx.session, path)
            await _require_grants(tx, team, settings)
        if _is_less(settings, current.settings):
            await require_another_administrator(tx, row)
        _write(row, settings, tx)
        before, after = document_of(current.settings), document_of(settings)
        await tx.record(Changed("apiKeys.update", path.name, row.id, before, after))
        return key_record(row, path)


async def touch_last_used(database: Database, uses: abc.Mapping[UUID, datetime]) -> None:
    """The keys were used at these times, or later by what is known. Meant for a batch a minute.

    Not a change of policy: no revision, no audit event.
    """
    # Locked in one order, so that two gateways' batches cannot wait for each other in a ring.
    rows = select(ApiKeyRow.id).where(ApiKeyRow.id.in_(uses)).order_by(ApiKeyRow.id).with_for_update(key_share=True)
    used = (
        func.unnest(
            bindparam("key_ids", list(uses), ARRAY(Uuid)),
            bindparam("moments", list(uses.values()), ARRAY(DateTime(timezone=True))),
        )
        .table_valued("key_id", "moment")
        .render_derived()
    )
    latest = func.greatest(ApiKeyRow.last_used_at, used.c.moment)  # which leaves out what is null
    async with database.session() as session:
        await session.execute(rows)
        await session.execute(update(ApiKeyRow).where(ApiKeyRow.id == used.c.key_id).values(last_used_at=latest))


async def require_another_administrator(tx: ChangeTransaction, row: ApiKeyRow) -> None:
    """Somebody can still administrate when the key cannot: changes come one at a time, so two cannot take turns.

    A platform key with fewer scopes than all does not count. Raises LastPlatformKeyError.
    """
    if row.team_id is not None or KeyScope.ADMIN not in row.scopes:
        return
    others = select(ApiKeyRow.id).where(
        ApiKeyRow.team_id.is_(None),
        ApiKeyRow.id != row.id,
        literal(KeyScope.ADMIN.value) == any_(ApiKeyRow.scopes),
        ApiKeyRow.revoked_at.is_(None),
        ApiKeyRow.deleted_at.is_(None),
        ApiKeyRow.expires_at.is_(None) | (ApiKeyRow.expires_at > tx.now),
    )
    if not await tx.session.scalar(select(others.exists())):
        raise LastPlatformKeyError(row.public_id)


async def _require_grants(tx: ChangeTransaction, team: TeamRow | None, settings: ApiKeySettings) -> None:
    """A key may ask for no more classes than its team."""
    await require_classes(tx.session, "priority_class_grants", settings.class_grants)
    allowed = set() if team is None else {team.default_class, *team.class_grants}
    for name in settings.class_grants:
        if name not in allowed:
            raise InvalidValueError("priority_class_grants", f"the team has no grant of the class {name!r}")


def _is_less(settings: ApiKeySettings, current: ApiKeySettings) -> bool:
    """Whether an administrator's key could then be used by fewer, for less or not as long."""
    ends_sooner = settings.expires_at is not None and settings.expires_at != current.expires_at
    return KeyScope.ADMIN not in settings.scopes or ends_sooner or settings.ip_cidrs != current.ip_cidrs


def _write(row: ApiKeyRow, settings: ApiKeySettings, tx: ChangeTransaction) -> None:
    row.display_name, row.scopes = settings.display_name, list(settings.scopes)
    row.model_grants, row.class_grants = list(settings.model_grants), list(settings.class_grants)
    row.ip_cidrs = [str(network) for network in settings.ip_cidrs]
    row.expires_at = settings.expires_at
    row.revision, row.updated_at = tx.revision, tx.now


def key_record(row: ApiKeyRow, parent: ResourcePath) -> ApiKey:
    """The row, whose secrets are loaded, as a value. `parent` is its own path or its team's."""
    return ApiKey(
        id=row.id,
        path=ResourcePath(parent.organization, parent.team, row.public_id),
        settings=ApiKeySettings(
            display_name=row.display_name,
            scopes=tuple(KeyScope(scope) for scope in row.scopes),
            model_grants=tuple(row.model_grants),
            class_grants=tuple(row.class_grants),
            ip_cidrs=tuple(ip_network(network) for network in row.ip_cidrs),
            expires_at=row.expires_at,
        ),
        secrets=tuple(
            KeySecret(secret.hmac, secret.pepper_version, secret.not_after, secret.created_at) for secret in row.secrets
        ),
        revoked_at=row.revoked_at,
        revoke_reason=row.revoke_reason,
        last_used_at=row.last_used_at,
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
        deleted_at=row.deleted_at,
        purge_at=row.purge_at,
    )
