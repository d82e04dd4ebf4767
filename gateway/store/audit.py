"""Statements on audit events: how a change's event is made, and how events are read and the whole chain is checked.

The newest hash and revision also stand in `policy_revision`, so that cutting off the end is seen too. Whoever can write
both tables can cut the end off and set those back, or make the whole chain anew: no database can tell on its owner, and
only an export that is kept elsewhere does. What the chain is, is in `audit_chain`. Knows no noun.

An event that somebody has made larger than the service writes them is read with a note in place of what is too large,
so that it is found, by name, like any other that was changed, and the rest can be read.
"""

import json
from collections import abc
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Unpack

from sqlalchemy import ColumnElement, Row, Select, Text, case, cast, func, literal, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute

from gateway.store.audit_chain import (
    FIRST_HASH,
    ChainBroken,
    ChainCheck,
    ChainedEvent,
    ChainIntact,
    Document,
    EventContent,
    canonical,
    hash_of_text,
)
from gateway.store.db import Database
from gateway.store.errors import InvalidValueError
from gateway.store.journal_models import AuditEventRow
from gateway.store.listing import Field, Fields, Kind, paged
from gateway.store.models import PolicyRevisionRow
from gateway.store.records import Page

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["FIRST_HASH", "ChainBroken", "ChainIntact", "Document", "chained", "document_of", "verify_chain"]

_BATCH_ROWS = 1000
_BATCH_BYTES = 2**20
MAX_EVENT_CHARS = 2 * 2**20
# Postgres spells a document with more spaces than the canonical form has, and never twice as long.
_MAX_SHOWN_BYTES = 2 * MAX_EVENT_CHARS
_MAX_SHOWN_CHARS = 4096
FIELDS: Fields = {
    "id": Field(AuditEventRow.id, Kind.NUMBER, lambda event: event.id),
    "actor": Field(AuditEventRow.actor, Kind.TEXT),
    "action": Field(AuditEventRow.action, Kind.TEXT),
    "resource": Field(AuditEventRow.resource, Kind.TEXT),
    "request_id": Field(AuditEventRow.correlation_id, Kind.TEXT),
    "event_time": Field(AuditEventRow.event_time, Kind.TIME, lambda event: event.content["event_time"]),
    "revision": Field(AuditEventRow.revision, Kind.NUMBER, lambda event: event.content["revision"]),
}


@dataclass(frozen=True, slots=True)
class ChainEnd:
    """The newest event's id, and its hash and revision as they stand outside the chain; FIRST_HASH before the first."""

    event_id: int
    head: bytes
    revision: int


def document_of(settings: "DataclassInstance") -> Document:
    """A frozen dataclass as JSON values; times, networks and ids as text."""
    document: dict[str, object] = json.loads(json.dumps(asdict(settings), default=str))
    return document


def chained(previous_hash: bytes, **content: Unpack[EventContent]) -> AuditEventRow:
    """The row of the event that follows the one with `previous_hash`. Raises InvalidValueError if it is too large."""
    text = canonical(content)
    if len(text) > MAX_EVENT_CHARS:
        raise InvalidValueError("", f"the change takes more than {MAX_EVENT_CHARS} characters to record")
    return AuditEventRow(**content, previous_hash=previous_hash, hash=hash_of_text(previous_hash, text))


async def list_audit_events(database: Database, page: Page) -> list[ChainedEvent]:
    """One page of the events. Raises InvalidValueError for a field that there is not."""
    query = paged(select(*_shown_columns()), page, FIELDS, AuditEventRow.id)
    async with database.session() as session:
        return [_event(row) for row in await session.execute(query)]


async def chain_end(database: Database) -> ChainEnd:
    """The end of the chain as it is now. Raises DatabaseUnavailableError."""
    newest = select(func.max(AuditEventRow.id)).scalar_subquery()
    async with database.session() as session:
        columns = (PolicyRevisionRow.audit_head, PolicyRevisionRow.revision, newest)
        head, revision, event_id = (await session.execute(select(*columns))).one()
    return ChainEnd(event_id or 0, head, revision)


async def read_chain(database: Database, end: ChainEnd) -> abc.AsyncIterator[list[ChainedEvent]]:
    """The events from the first one up to `end`, in batches. Whoever reads slowly keeps no transaction open."""
    last_id = 0
    while True:
        async with database.session() as session:
            rows = (await session.execute(_batch(last_id, end.event_id))).all()
        if not rows:
            return
        last_id = rows[-1].id
        yield [_event(row) for row in rows]


async def verify_chain(database: Database) -> ChainIntact | ChainBroken:
    """The state of the chain at one moment: changes made while it is read are not part of it."""
    check, end = ChainCheck(), await chain_end(database)
    async for batch in read_chain(database, end):
        for event in batch:
            check.add(event)
    return check.end(end.head, end.revision)


def _batch(last_id: int, end_id: int) -> Select[Any]:
    """The events behind `last_id`: the first, and more while they are not too large together."""
    row = AuditEventRow
    size = _shown_size(row.before) + _shown_size(row.after)
    ahead = select(row.id, size.label("size")).where(row.id > last_id, row.id <= end_id)
    few = ahead.order_by(row.id).limit(_BATCH_ROWS).subquery()
    total = func.sum(few.c.size).over(order_by=few.c.id) - few.c.size
    placed = select(few.c.id, total.label("ahead_of_it")).subquery()
    query = select(*_shown_columns()).join(placed, placed.c.id == row.id)
    return query.where(placed.c.ahead_of_it < _BATCH_BYTES).order_by(row.id)


def _shown_columns() -> tuple[ColumnElement[Any], ...]:
    """An event's, none of them larger than the service writes them; then its hash tells that it was changed."""
    row = AuditEventRow
    texts = (row.actor, row.correlation_id, row.action, row.resource)
    return (
        *(column.expression for column in (row.id, row.event_time, row.revision, row.previous_hash, row.hash)),
        *(func.left(column, _MAX_SHOWN_CHARS).label(column.key) for column in texts),
        *(_shown_document(column).label(column.key) for column in (row.before, row.after)),
    )


def _shown_document(column: InstrumentedAttribute[Any]) -> ColumnElement[Any]:
    size = func.octet_length(cast(column, Text))
    note = func.jsonb_build_object(literal("too_large_bytes", Text), size)
    return type_coerce(case((size > _MAX_SHOWN_BYTES, note), else_=column), JSONB(none_as_null=True))


def _shown_size(column: InstrumentedAttribute[Any]) -> ColumnElement[int]:
    return func.least(func.coalesce(func.octet_length(cast(column, Text)), 0), _MAX_SHOWN_BYTES)


def _event(row: Row[Any]) -> ChainedEvent:
    content: EventContent = {
        "event_time": row.event_time,
        "revision": row.revision,
        "actor": row.actor,
        "correlation_id": row.correlation_id,
        "action": row.action,
        "resource": row.resource,
        "before": row.before,
        "after": row.after,
    }
    return ChainedEvent(row.id, content, row.previous_hash, row.hash)
