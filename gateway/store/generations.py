"""Client request ids: each stands for one generation, whichever gateway was asked first. Times are the database's.

A row is written only where a client named its request. While the generation runs, its gateway says so every few
seconds; one that has fallen silent may lose the id to whoever asks next, unless the ledger knows what the generation
used.
"""

from collections import abc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

from sqlalchemy import ColumnElement, Select, bindparam, delete, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.audit import Document
from gateway.store.changes import Change, Changed, open_change
from gateway.store.db import Database
from gateway.store.generation_models import GenerationRequestRow
from gateway.store.journal_models import UsageEventRow
from gateway.store.usage import day_of

REMEMBERED = timedelta(hours=24)  # AIP-155 asks for an hour at least
SILENT_AFTER = timedelta(seconds=30)
PURGE_BATCH = 1000


@dataclass(frozen=True, slots=True)
class RequestKey:
    """What a client calls its request."""

    team_id: UUID
    request_id: UUID


@dataclass(frozen=True, slots=True)
class RequestClaim:
    """The generation that `key` is to stand for, and the gateway that would run it."""

    key: RequestKey
    fingerprint: bytes
    generation_id: UUID
    instance_id: UUID
    gateway: str


@dataclass(frozen=True, slots=True)
class StoredUsage:
    """What the ledger knows of a generation; see `UsageEvent` for the words."""

    generation_id: UUID
    team_id: UUID
    request_id: str
    model: str
    finish_reason: str
    input_tokens: int
    cached_input_tokens: int
    output_tokens: int
    reserved_tokens: int
    billed_tokens: int
    discarded_tokens: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int


@dataclass(frozen=True, slots=True)
class TakenRequest:
    """The id stands for another generation. `usage` is there once the ledger has it.

    `is_silent`: nothing says how it ended, and its gateway has not said for a while that it runs.
    """

    fingerprint: bytes
    generation_id: UUID
    gateway: str
    usage: StoredUsage | None
    is_silent: bool


async def claim_request(database: Database, claim: RequestClaim) -> TakenRequest | None:
    """None: the id stands for the generation of `claim`. Exactly one of several that ask at once gets None.

    Raises DatabaseUnavailableError; then it may stand for it all the same, and `forget_requests` ends that.
    """
    async with database.session() as session:
        while True:
            if await _claim_free(session, claim):
                return None
            taken = await _find(session, claim.key)
            if taken is not None:  # else it was given up in between
                return taken


async def take_over_request(database: Database, claim: RequestClaim, generation_id: UUID) -> bool:
    """The id, which stands for `generation_id`, stands for the generation of `claim` if that one is silent still.

    Raises DatabaseUnavailableError; then it may stand for it all the same, as with `claim_request`.
    """
    row = GenerationRequestRow
    statement = (
        update(row)
        .where(row.team_id == claim.key.team_id, row.request_id == claim.key.request_id)
        .where(row.generation_id == generation_id, _is_silent(), ~_usage_of(generation_id).exists())
        .values(**_values(claim))
        .returning(row.generation_id)
    )
    async with database.session() as session:
        found = await session.execute(statement, execution_options={"synchronize_session": False})
        return found.first() is not None


async def finish_requests(database: Database, claims: abc.Sequence[RequestClaim]) -> None:
    """The generations of `claims` have ended. Raises DatabaseUnavailableError."""
    if not claims:
        return
    row = GenerationRequestRow
    statement = (
        update(row)
        .where(row.team_id == bindparam("team"), row.request_id == bindparam("request"))
        .where(row.generation_id == bindparam("generation"))
        .values(finished_at=func.now())
        .execution_options(synchronize_session=None)
    )
    async with database.session() as session:
        await (await session.connection()).execute(statement, [_names(claim) for claim in claims])


async def forget_requests(database: Database, claims: abc.Sequence[RequestClaim]) -> None:
    """The ids of `claims` are free again, where they stood for those generations. Raises DatabaseUnavailableError."""
    if not claims:
        return
    row = GenerationRequestRow
    statement = delete(row).where(
        row.team_id == bindparam("team"),
        row.request_id == bindparam("request"),
        row.generation_id == bindparam("generation"),
    )
    async with database.session() as session:
        await (await session.connection()).execute(statement, [_names(claim) for claim in claims])


async def keep_requests(database: Database, instance_id: UUID) -> None:
    """What that gateway runs is still running. Raises DatabaseUnavailableError."""
    row = GenerationRequestRow
    statement = update(row).where(row.instance_id == instance_id, row.finished_at.is_(None))
    async with database.session() as session:
        await session.execute(statement.values(seen_at=func.now()), execution_options={"synchronize_session": False})


async def purge_requests(database: Database) -> int:
    """Some that have expired are gone; returns how many. Raises DatabaseUnavailableError."""
    row = GenerationRequestRow
    keys = select(row.team_id, row.request_id).where(_has_expired()).limit(PURGE_BATCH).subquery()
    statement = delete(row).where(row.team_id == keys.c.team_id, row.request_id == keys.c.request_id)
    async with database.session() as session:
        gone = await session.execute(
            statement.returning(row.request_id), execution_options={"synchronize_session": False}
        )
        return len(gone.all())


async def find_usage(database: Database, generation_id: UUID) -> StoredUsage | None:
    """What the ledger knows. Raises DatabaseUnavailableError, and InvalidValueError where the id is no UUIDv7."""
    async with database.session() as session:
        return await _usage(session, generation_id)


async def find_request(database: Database, key: RequestKey) -> TakenRequest | None:
    """What the id stands for. Raises DatabaseUnavailableError."""
    async with database.session() as session:
        return await _find(session, key)


async def record_cancellation(
    database: Database, change: Change, resource: str, stop: abc.Callable[[], abc.Awaitable[Document]]
) -> None:
    """`stop`, which returns what it has ended, has been done and is in the audit chain.

    Raises DatabaseUnavailableError, before or after it.
    """
    async with open_change(database, change) as tx:
        after = await stop()
        resource_id = uuid5(NAMESPACE_URL, resource)
        await tx.record(Changed("generations.cancel", resource, resource_id, None, after))


async def _claim_free(session: AsyncSession, claim: RequestClaim) -> bool:
    row = GenerationRequestRow
    values = _values(claim)
    statement = insert(row).values(team_id=claim.key.team_id, request_id=claim.key.request_id, **values)
    statement = statement.on_conflict_do_update(
        index_elements=[row.team_id, row.request_id], set_=values, where=_has_expired()
    )
    return (await session.execute(statement.returning(row.generation_id))).first() is not None


def _is_silent() -> ColumnElement[bool]:
    row = GenerationRequestRow
    return row.finished_at.is_(None) & (row.seen_at < func.now() - SILENT_AFTER)


def _has_expired() -> ColumnElement[bool]:
    row = GenerationRequestRow
    # One that still runs keeps its id, however long it takes.
    return (row.expires_at < func.now()) & or_(row.finished_at.is_not(None), _is_silent())


async def _find(session: AsyncSession, key: RequestKey) -> TakenRequest | None:
    row = GenerationRequestRow
    statement = select(row.fingerprint, row.generation_id, row.gateway, _is_silent()).where(
        row.team_id == key.team_id, row.request_id == key.request_id
    )
    found = (await session.execute(statement)).first()
    if found is None:
        return None
    fingerprint, generation_id, gateway, is_silent = found
    usage = await _usage(session, generation_id)
    return TakenRequest(fingerprint, generation_id, gateway, usage, is_silent=is_silent and usage is None)


async def _usage(session: AsyncSession, generation_id: UUID) -> StoredUsage | None:
    found = (await session.execute(_usage_of(generation_id))).first()
    return None if found is None else StoredUsage(*found)


def _usage_of(generation_id: UUID) -> Select[Any]:
    columns = [getattr(UsageEventRow, name) for name in StoredUsage.__dataclass_fields__]
    return select(*columns).where(
        UsageEventRow.day == day_of(generation_id), UsageEventRow.generation_id == generation_id
    )


def _values(claim: RequestClaim) -> dict[str, object]:
    return {
        "fingerprint": claim.fingerprint,
        "generation_id": claim.generation_id,
        "instance_id": claim.instance_id,
        "gateway": claim.gateway,
        "seen_at": func.now(),
        "expires_at": func.now() + REMEMBERED,
        "finished_at": None,
    }


def _names(claim: RequestClaim) -> dict[str, object]:
    return {"team": claim.key.team_id, "request": claim.key.request_id, "generation": claim.generation_id}
