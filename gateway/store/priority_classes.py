"""Statements on priority classes: `priority`, `default` and `batch` are there from the first migration on.

A deleted class keeps its row, so that whoever reads what is newer than a revision learns of it; a new class of that
name takes the row over.
"""

from collections import abc
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import any_, func, literal, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.audit import document_of
from gateway.store.changes import Change, Changed, ChangeTransaction, open_change
from gateway.store.db import Database
from gateway.store.errors import AlreadyExistsError, InvalidValueError, NotFoundError, PreconditionFailedError
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import ApiKeyRow, PriorityClassRow, TeamRow
from gateway.store.records import DEFAULT_CLASS, Edit, Page, PriorityClass, PriorityClassSettings, etag_of

MAX_TOTAL_SHARE = 1.0
SHARE_TOLERANCE = 1e-9  # of a sum of shares that are written in decimals
FIELDS: Fields = {
    "name": Field(literal("priorityClasses/") + PriorityClassRow.name, Kind.TEXT, lambda record: record.resource),
    "rank": Field(PriorityClassRow.rank, Kind.NUMBER, lambda record: record.settings.rank),
    "min_share": Field(PriorityClassRow.min_share, Kind.NUMBER, lambda record: record.settings.min_share),
    "preemptible": Field(PriorityClassRow.preemptible, Kind.FLAG, lambda record: record.settings.preemptible),
}


async def require_classes(session: AsyncSession, field: str, names: abc.Iterable[str]) -> None:
    """Raises InvalidValueError, naming the field, unless every class exists."""
    wanted = set(names)
    query = select(PriorityClassRow.name).where(
        PriorityClassRow.name.in_(wanted), PriorityClassRow.deleted_at.is_(None)
    )
    known = set(await session.scalars(query))
    for name in sorted(wanted - known):
        raise InvalidValueError(field, f"there is no priority class {name!r}")


async def create_priority_class(
    database: Database, change: Change, name: str, settings: PriorityClassSettings
) -> PriorityClass:
    """The class exists. A retry returns it as it is now.

    Raises AlreadyExistsError, PreconditionFailedError (the shares of all together), RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if await tx.find_replayed() is not None:
            return _record(await class_at(tx.session, name))
        row, changed = await add_priority_class(tx, name, settings)
        await tx.record(changed)
        return _record(row)


async def add_priority_class(
    tx: ChangeTransaction, name: str, settings: PriorityClassSettings
) -> tuple[PriorityClassRow, Changed]:
    """The part of a change that makes the class. Raises AlreadyExistsError; the caller checks the shares' sum."""
    row = await tx.session.get(PriorityClassRow, name)
    if row is None:
        row = PriorityClassRow(name=name)
        tx.session.add(row)
    elif row.deleted_at is None:
        raise AlreadyExistsError(resource_name(name))
    row.deleted_at = None
    _write(row, settings, tx)
    await require_shares(tx)
    return row, Changed("priorityClasses.create", resource_name(name), class_id(name), None, document_of(settings))


async def get_priority_class(database: Database, name: str) -> PriorityClass:
    """Raises NotFoundError."""
    async with database.session() as session:
        return _record(await class_at(session, name))


async def list_priority_classes(database: Database, page: Page) -> list[PriorityClass]:
    """One page of all classes. Raises InvalidValueError for a field that there is not."""
    query = select(PriorityClassRow).where(PriorityClassRow.deleted_at.is_(None))
    async with database.session() as session:
        return [_record(row) for row in await session.scalars(paged(query, page, FIELDS, PriorityClassRow.name))]


async def update_priority_class(
    database: Database, change: Change, name: str, edit: Edit[PriorityClassSettings]
) -> PriorityClass:
    """The class has the edited settings; where nothing differs, nothing changed.

    Raises NotFoundError, StoreConflictError, PreconditionFailedError (the shares), RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        row = await class_at(tx.session, name)
        if await tx.find_replayed() is not None:
            return _record(row)
        tx.require_etag(resource_name(name), etag_of(row.revision))
        changed = await edit_priority_class(tx, row, edit)
        if changed is not None:
            await tx.record(changed)
        return _record(row)


async def edit_priority_class(
    tx: ChangeTransaction, row: PriorityClassRow, edit: Edit[PriorityClassSettings]
) -> Changed | None:
    """The part of a change that edits the class; None where nothing differs. Raises PreconditionFailedError."""
    current = _settings(row)
    settings = edit(current)
    if settings == current:
        return None
    _write(row, settings, tx)
    await require_shares(tx)
    before, after = document_of(current), document_of(settings)
    return Changed("priorityClasses.update", resource_name(row.name), class_id(row.name), before, after)


async def delete_priority_class(database: Database, change: Change, name: str) -> None:
    """The class is gone; what is queued or running in it goes on.

    Raises NotFoundError, PreconditionFailedError (somebody names it), StoreConflictError, RequestIdReusedError.
    """
    async with open_change(database, change) as tx:
        if await tx.find_replayed() is not None:
            return
        row = await class_at(tx.session, name)
        tx.require_etag(resource_name(name), etag_of(row.revision))
        await _require_unused(tx, name)
        row.deleted_at, row.revision = tx.now, tx.revision
        before = document_of(_settings(row))
        await tx.record(Changed("priorityClasses.delete", resource_name(name), class_id(name), before, None))


async def class_at(session: AsyncSession, name: str) -> PriorityClassRow:
    """Raises NotFoundError."""
    row = await session.get(PriorityClassRow, name)
    if row is None or row.deleted_at is not None:
        raise NotFoundError(resource_name(name))
    return row


async def require_shares(tx: ChangeTransaction) -> None:
    """Raises PreconditionFailedError if the classes together are promised more than there is."""
    await tx.session.flush()
    total = await tx.session.scalar(
        select(func.sum(PriorityClassRow.min_share)).where(PriorityClassRow.deleted_at.is_(None))
    )
    if (total or 0.0) > MAX_TOTAL_SHARE + SHARE_TOLERANCE:
        raise PreconditionFailedError("priorityClasses", f"would be promised {total:.0%} of the engine together")


def resource_name(name: str) -> str:
    return f"priorityClasses/{name}"


def class_id(name: str) -> UUID:
    """What stands for the class where rows are told apart by UUIDs."""
    return uuid5(NAMESPACE_URL, resource_name(name))


async def _require_unused(tx: ChangeTransaction, name: str) -> None:
    """Deleted teams and keys count: they can be undeleted."""
    if name == DEFAULT_CLASS:
        raise PreconditionFailedError(resource_name(name), "is what new teams get, and stays")
    teams = select(func.count()).where(or_(TeamRow.default_class == name, literal(name) == any_(TeamRow.class_grants)))
    keys = select(func.count()).where(literal(name) == any_(ApiKeyRow.class_grants))
    num_teams, num_keys = await tx.session.scalar(teams) or 0, await tx.session.scalar(keys) or 0
    if num_teams or num_keys:
        raise PreconditionFailedError(resource_name(name), f"is granted to {num_teams} teams and {num_keys} keys")


def _write(row: PriorityClassRow, settings: PriorityClassSettings, tx: ChangeTransaction) -> None:
    row.rank, row.min_share, row.preemptible = settings.rank, settings.min_share, settings.preemptible
    row.max_queue_wait_ms, row.revision = settings.max_queue_wait_ms, tx.revision


def _settings(row: PriorityClassRow) -> PriorityClassSettings:
    return PriorityClassSettings(row.rank, row.min_share, row.preemptible, row.max_queue_wait_ms)


def _record(row: PriorityClassRow) -> PriorityClass:
    return PriorityClass(row.name, _settings(row), etag_of(row.revision))
