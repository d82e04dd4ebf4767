"""Statements on API keys. Secrets arrive as keyed hashes; nothing here has seen one. Keys are revoked, not deleted."""

from collections import abc
from ipaddress import ip_network
from uuid import UUID

from sqlalchemy import exists, func, select, update
from sqlalchemy.orm import selectinload
from uuid_utils.compat import uuid7

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.enums import KeyScope
from gateway.store.errors import AlreadyExistsError, InvalidValueError, LastPlatformKeyError
from gateway.store.models import ApiKeyRow, ApiKeySecretRow, TeamRow
from gateway.store.paths import key_at, keys_with_paths, organization_at, team_at
from gateway.store.priority_classes import require_classes
from gateway.store.records import ANY, ApiKey, ApiKeySettings, Edit, KeySecret, Page, ResourcePath, etag_of


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
            return _record(
                await tx.session.get_one(ApiKeyRow, replayed, options=[selectinload(ApiKeyRow.secrets)]), path
            )
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
        return _record(row, path)


async def get_key(database: Database, path: ResourcePath) -> ApiKey:
    """Raises NotFoundError."""
    async with database.session() as session:
        return _record(await key_at(session, path), path)


async def list_keys(database: Database, parent: ResourcePath, page: Page) -> list[ApiKey]:
    """One page of the keys of a team, of all teams (`-`) of one or of all organizations; or of the platform's keys.

    The latter are below no organization: `parent` has none. Raises NotFoundError for a parent that does not exist.
    """
    query = keys_with_paths().order_by(ApiKeyRow.id).limit(page.size)
    is_platform = parent.organization is None
    query = query.where(ApiKeyRow.team_id.is_(None) if is_platform else ApiKeyRow.team_id.is_not(None))
    if page.after is not None:
        query = query.where(ApiKeyRow.id > page.after)
    async with database.session() as session:
        if parent.organization not in (ANY, None):
            query = query.where(ApiKeyRow.org_id == (await organization_at(session, parent)).id)
        if parent.team not in (ANY, None):
            query = query.where(ApiKeyRow.team_id.in_(select(TeamRow.id).where(TeamRow.slug == parent.team)))
            if parent.organization != ANY:
                await team_at(session, parent)
        found = await session.execute(query)
        return [_record(row, ResourcePath(organization, team)) for row, organization, team in found]


async def update_key(database: Database, change: Change, path: ResourcePath, edit: Edit[ApiKeySettings]) -> ApiKey:
    """The key has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, InvalidValueError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        current = _record(row, path)
        if await tx.find_replayed() is not None:
            return current
        tx.require_etag(path.name, current.etag)
        settings = edit(current.settings)
        if settings == current.settings:
            return current
        if settings.class_grants != current.settings.class_grants:
            team = None if path.team is None else await team_at(tx.session, path)
            await _require_grants(tx, team, settings)
        _write(row, settings, tx)
        before, after = document_of(current.settings), document_of(settings)
        await tx.record(Changed("apiKeys.update", path.name, row.id, before, after))
        return _record(row, path)


async def revoke_key(database: Database, change: Change, path: ResourcePath, reason: str) -> ApiKey:
    """The key is revoked, for good. A key that was revoked before keeps its time and reason.

    Raises NotFoundError, StoreConflictError, RequestIdReusedError, LastPlatformKeyError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        if await tx.find_replayed() is not None or row.revoked_at is not None:
            return _record(row, path)
        if row.team_id is None:
            await _require_another_platform_key(tx, row)
        tx.require_etag(path.name, etag_of(row.revision))
        row.revoked_at, row.revoke_reason = tx.now, reason
        row.revision, row.updated_at = tx.revision, tx.now
        after = {"revoked_at": str(tx.now), "revoke_reason": reason}
        await tx.record(Changed("apiKeys.revoke", path.name, row.id, dict.fromkeys(after), after))
        return _record(row, path)


async def touch_last_used(database: Database, key_ids: abc.Collection[UUID]) -> None:
    """The keys were used now. Not a change of policy: no revision, no audit event. Meant for a batch a minute."""
    # Locked in one order, so that two gateways' batches cannot wait for each other in a ring.
    rows = select(ApiKeyRow.id).where(ApiKeyRow.id.in_(key_ids)).order_by(ApiKeyRow.id).with_for_update(key_share=True)
    async with database.session() as session:
        await session.execute(
            update(ApiKeyRow).where(ApiKeyRow.id.in_(rows.scalar_subquery())).values(last_used_at=func.now())
        )


async def _require_another_platform_key(tx: ChangeTransaction, row: ApiKeyRow) -> None:
    """Somebody can still administrate when the key is gone: changes come one at a time, so two cannot take turns."""
    others = select(ApiKeyRow.id).where(
        ApiKeyRow.team_id.is_(None),
        ApiKeyRow.id != row.id,
        ApiKeyRow.revoked_at.is_(None),
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


def _write(row: ApiKeyRow, settings: ApiKeySettings, tx: ChangeTransaction) -> None:
    row.display_name, row.scopes = settings.display_name, list(settings.scopes)
    row.model_grants, row.class_grants = list(settings.model_grants), list(settings.class_grants)
    row.ip_cidrs = [str(network) for network in settings.ip_cidrs]
    row.expires_at = settings.expires_at
    row.revision, row.updated_at = tx.revision, tx.now


def _record(row: ApiKeyRow, parent: ResourcePath) -> ApiKey:
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
        secrets=tuple(KeySecret(secret.hmac, secret.pepper_version, secret.not_after) for secret in row.secrets),
        revoked_at=row.revoked_at,
        revoke_reason=row.revoke_reason,
        last_used_at=row.last_used_at,
        etag=etag_of(row.revision),
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
