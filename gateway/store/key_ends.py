"""What ends a key or one of its secrets: revocation, for good; deletion, which can be taken back; rotation."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.deletion import delete_row, require_live, undelete_row
from gateway.store.errors import AlreadyExistsError, PreconditionFailedError
from gateway.store.keys import key_record, require_another_administrator
from gateway.store.models import ApiKeyRow, ApiKeySecretRow
from gateway.store.paths import key_at, team_at
from gateway.store.records import ApiKey, KeySecret, ResourcePath, etag_of


@dataclass(frozen=True, slots=True)
class Rotation:
    """The new secret, and how long the old one works on. `discards_newest`: see `rotate_key`."""

    secret: KeySecret
    grace: timedelta
    discards_newest: bool = False


async def revoke_key(
    database: Database, change: Change, path: ResourcePath, reason: str, *, aborts_inflight: bool = False
) -> ApiKey:
    """The key is revoked, for good. A key that was revoked before keeps its time and reason.

    `aborts_inflight` is told to every gateway: what the key has running there ends; it can be asked for later, too.
    Raises NotFoundError, StoreConflictError, RequestIdReusedError, LastPlatformKeyError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        is_told = row.revoked_at is not None and (row.aborts_inflight or not aborts_inflight)
        if await tx.find_replayed() is not None or is_told:
            return key_record(row, path)
        tx.require_etag(path.name, etag_of(row.revision))
        await require_another_administrator(tx, row)
        before = _revocation(row)
        if row.revoked_at is None:
            row.revoked_at, row.revoke_reason = tx.now, reason
        row.aborts_inflight = aborts_inflight
        row.revision, row.updated_at = tx.revision, tx.now
        await tx.record(Changed("apiKeys.revoke", path.name, row.id, before, _revocation(row)))
        return key_record(row, path)


async def delete_key(database: Database, change: Change, path: ResourcePath) -> ApiKey:
    """The key is refused from now on, and can be undeleted until its `purge_at`.

    Raises NotFoundError, StoreConflictError, RequestIdReusedError, LastPlatformKeyError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return key_record(row, path)
        tx.require_etag(path.name, etag_of(row.revision))
        changed = delete_row(tx, row, path, "apiKeys.delete")
        await require_another_administrator(tx, row)
        await tx.record(changed)
        return key_record(row, path)


async def undelete_key(database: Database, change: Change, path: ResourcePath) -> ApiKey:
    """The key is as it was before its deletion; a revoked one stays revoked.

    Raises NotFoundError, AlreadyExistsError, PreconditionFailedError (its team is deleted), StoreConflictError,
    RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return key_record(row, path)
        tx.require_etag(path.name, etag_of(row.revision))
        if row.revoked_at is not None and row.deleted_at is None:
            raise AlreadyExistsError(
                path.name, "is revoked, not deleted, and that cannot be taken back: make another key"
            )
        if path.team is not None:
            require_live(await team_at(tx.session, path), ResourcePath(path.organization, path.team))
        await tx.record(undelete_row(tx, row, path, "apiKeys.undelete"))
        return key_record(row, path)


async def rotate_key(database: Database, change: Change, path: ResourcePath, rotation: Rotation) -> ApiKey:
    """The key has a second secret, and the first one works until the grace time is over.

    Two secrets live at most, and nothing here knows which of them is in use: while two do, a further rotation is
    refused, unless it `discards_newest`, because the answer that held it got lost; the older one then keeps its end. A
    retry changes nothing, and its new secret is not this key's. Raises NotFoundError, PreconditionFailedError (two
    secrets live, the key is revoked or deleted), StoreConflictError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await key_at(tx.session, path)
        if await tx.find_replayed() is not None:
            return key_record(row, path)
        tx.require_etag(path.name, etag_of(row.revision))
        require_live(row, path)
        if row.revoked_at is not None:
            raise PreconditionFailedError(path.name, "is revoked: make another key")
        live = [secret for secret in row.secrets if secret.not_after is None or secret.not_after > tx.now]
        before = _secrets_document(live)
        row.secrets = _rotated(tx, path, live, rotation)
        row.revision, row.updated_at = tx.revision, tx.now
        await tx.record(Changed("apiKeys.rotate", path.name, row.id, before, _secrets_document(row.secrets)))
        return key_record(row, path)


def _rotated(
    tx: ChangeTransaction, path: ResourcePath, live: list[ApiKeySecretRow], rotation: Rotation
) -> list[ApiKeySecretRow]:
    """The secrets that the key has afterwards, oldest first."""
    if len(live) > 1:
        if not rotation.discards_newest:
            raise PreconditionFailedError(
                path.name,
                f"has two secrets, of which the older one ends at {_time_text(live[0].not_after)}: wait, or discard the"
                " newest one (discard_newest) if nobody has it",
            )
        live = live[:1]
    elif live:
        end = tx.now + rotation.grace
        live[0].not_after = end if live[0].not_after is None else min(end, live[0].not_after)
    kept = [secret for secret in live if secret.not_after is None or secret.not_after > tx.now]
    fresh = ApiKeySecretRow(
        hmac=rotation.secret.digest, pepper_version=rotation.secret.pepper_version, not_after=None, created_at=tx.now
    )
    return [*kept, fresh]


def _revocation(row: ApiKeyRow) -> dict[str, object]:
    return {
        "revoked_at": None if row.revoked_at is None else str(row.revoked_at),
        "revoke_reason": row.revoke_reason,
        "aborts_inflight": row.aborts_inflight,
    }


def _secrets_document(secrets: list[ApiKeySecretRow]) -> dict[str, object]:
    """When each was made and ends; nothing of the secret."""
    return {"secrets": [{"created_at": str(one.created_at), "not_after": _text(one.not_after)} for one in secrets]}


def _time_text(moment: datetime | None) -> str:
    """As the command line writes times."""
    return "no time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def _text(moment: object) -> str | None:
    return None if moment is None else str(moment)
