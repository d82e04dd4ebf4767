"""The audit chain: each event's hash covers the event and the hash before it.

Owns the canonical form of an event, its hash and the check of the whole chain. The newest hash also stands in
`policy_revision`, so that cutting off the end is seen too. Knows no noun.
"""

import hashlib
import json
from collections import abc
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict, Unpack

from sqlalchemy import Select, select

from gateway.store.db import Database
from gateway.store.journal_models import AuditEventRow
from gateway.store.models import PolicyRevisionRow

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

FIRST_HASH = bytes(32)
_BATCH_ROWS = 1000

Document = abc.Mapping[str, object]
"""A record's settings as JSON values."""


class EventContent(TypedDict):
    """The columns of an audit event that its hash covers."""

    event_time: datetime
    revision: int
    actor: str
    correlation_id: str
    action: str
    resource: str
    before: Document | None
    after: Document | None


@dataclass(frozen=True, slots=True)
class ChainIntact:
    """Every event is as it was written, and none is missing."""

    num_events: int


@dataclass(frozen=True, slots=True)
class ChainBroken:
    """The first event that does not follow from the one before it; None where the newest ones are missing."""

    event_id: int | None


def document_of(settings: "DataclassInstance") -> Document:
    """A frozen dataclass as JSON values; times, networks and ids as text."""
    document: dict[str, object] = json.loads(json.dumps(asdict(settings), default=str))
    return document


def chained(previous_hash: bytes, **content: Unpack[EventContent]) -> AuditEventRow:
    """The row of the event that follows the one with `previous_hash`."""
    return AuditEventRow(**content, previous_hash=previous_hash, hash=_hash(previous_hash, content))


async def verify_chain(database: Database) -> ChainIntact | ChainBroken:
    """The state of the chain at one moment: changes made while it is read are not part of it."""
    expected, num_events, last_id = FIRST_HASH, 0, 0
    async with database.session() as session:
        await session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
        while batch := (await session.scalars(_events_after(last_id))).all():
            for event in batch:
                if event.previous_hash != expected or event.hash != _hash(expected, _content(event)):
                    return ChainBroken(event.id)
                expected, last_id = event.hash, event.id
            num_events += len(batch)
            session.expunge_all()
        head = (await session.execute(select(PolicyRevisionRow.audit_head))).scalar_one()
    return ChainIntact(num_events) if head == expected else ChainBroken(None)


def _events_after(event_id: int) -> Select[AuditEventRow]:
    return select(AuditEventRow).where(AuditEventRow.id > event_id).order_by(AuditEventRow.id).limit(_BATCH_ROWS)


def _content(event: AuditEventRow) -> EventContent:
    return {
        "event_time": event.event_time,
        "revision": event.revision,
        "actor": event.actor,
        "correlation_id": event.correlation_id,
        "action": event.action,
        "resource": event.resource,
        "before": event.before,
        "after": event.after,
    }


def _hash(previous_hash: bytes, content: EventContent) -> bytes:
    document = {**content, "event_time": content["event_time"].astimezone(UTC).isoformat(timespec="microseconds")}
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(previous_hash + canonical.encode()).digest()
