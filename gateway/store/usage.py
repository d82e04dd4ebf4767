"""The ledger: one row per finished generation, whatever its end. Holds counts and ids, never text.

The day comes out of the generation id (UUIDv7), so a row's replay lands where the row is, and conflicts. A trigger of
the schema keeps the hourly sums equal to the rows, in the same statement.
"""

import asyncio
import json
from collections import abc
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cache
from uuid import UUID

from sqlalchemy import TextClause, text
from sqlalchemy.dialects import postgresql

from gateway.store.db import Database
from gateway.store.enums import UsageSource
from gateway.store.errors import InvalidValueError
from gateway.store.journal_models import UsageEventRow

UUID_VERSION = 7
MAX_INLINE_ROWS = 20
UNIX_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class UsageEvent:
    """What one generation used; see `Usage` and `Timings` of the protocol for the words. Times in nanoseconds."""

    generation_id: UUID
    organization_id: UUID
    team_id: UUID
    key_id: UUID
    model: str
    priority_class: str
    input_tokens: int
    output_tokens: int
    billed_tokens: int
    finish_reason: str
    source: UsageSource
    finished_at: datetime
    policy_revision: int
    request_id: str = ""
    cached_input_tokens: int = 0
    reserved_tokens: int = 0
    discarded_tokens: int = 0
    recomputed_tokens: int = 0
    num_preemptions: int = 0
    queue_ns: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    preempted_ns: int = 0
    labels: abc.Mapping[str, str] = field(default_factory=dict)


async def insert_usage(database: Database, events: abc.Sequence[UsageEvent]) -> int:
    """Every event is in the ledger, once. Returns how many were not there before.

    Raises DatabaseUnavailableError, InvalidValueError (an id that is not a UUIDv7, a negative count); then none is.
    """
    if not events:
        return 0
    # One parameter whatever the number of rows: the statement is the same each time, and prepared once.
    # To spell hundreds of rows takes longer than other calls should wait.
    is_long = len(events) > MAX_INLINE_ROWS
    parameters = {"rows": await asyncio.to_thread(_rows_json, events) if is_long else _rows_json(events)}
    async with database.session() as session:
        return len((await session.execute(_insertion(), parameters)).all())


def values_of(event: UsageEvent) -> dict[str, object]:
    """The event's fields by name."""
    return {name: getattr(event, name) for name in UsageEvent.__slots__}  # dataclasses.asdict takes ten times as long


def day_of(generation_id: UUID) -> date:
    """The UTC day inside a UUIDv7 (RFC 9562, §5.7). Raises InvalidValueError for another kind of id."""
    if generation_id.version != UUID_VERSION:
        raise InvalidValueError("generation_id", f"{generation_id} is not a UUIDv7")
    unix_ms = generation_id.int >> 80
    return UNIX_EPOCH + timedelta(milliseconds=unix_ms)


def _rows_json(events: abc.Sequence[UsageEvent]) -> str:
    rows = [{**values_of(event), "day": day_of(event.generation_id)} for event in events]
    return json.dumps(rows, default=str)


@cache
def _insertion() -> TextClause:
    columns = UsageEventRow.__table__.columns
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]  # it has no types
    names = ", ".join(column.name for column in columns)
    typed = ", ".join(f"{column.name} {column.type.compile(dialect)}" for column in columns)
    given = f"json_to_recordset(CAST(:rows AS json)) AS given({typed})"
    # In one order, as two writers of the same events would otherwise wait for each other.
    return text(
        f"INSERT INTO usage_event ({names}) SELECT {names} FROM {given}"  # noqa: S608 - names of columns
        " ORDER BY generation_id ON CONFLICT DO NOTHING RETURNING generation_id"
    )
