"""The ledger: one row per finished generation, whatever its end. Holds counts and ids, never text.

Owns the table's partitions too: one per day, made ahead, and a default one so that no row is ever refused for want of
a partition. The day comes out of the generation id (UUIDv7), so a row's replay lands where the row is, and conflicts.
"""

from collections import abc
from dataclasses import asdict, dataclass, field
from datetime import date, datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.db import Database
from gateway.store.enums import UsageSource
from gateway.store.errors import InvalidValueError
from gateway.store.journal_models import UsageEventRow

DEFAULT_DAYS_AHEAD = 7
_PARTITIONS_LOCK = 0x65767061  # "evpa": one process at a time makes partitions
_UUID_VERSION = 7
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
    rows = [{**asdict(event), "day": day_of(event.generation_id)} for event in events]
    statement = insert(UsageEventRow).on_conflict_do_nothing().returning(UsageEventRow.generation_id)
    async with database.session() as session:
        return len((await session.scalars(statement, rows)).all())


async def ensure_partitions(database: Database, days_ahead: int = DEFAULT_DAYS_AHEAD) -> int:
    """Today and the `days_ahead` days after it have their partitions. Returns how many were made.

    Rows that meanwhile fell into the default partition move to their day's. Meant for a call a day, and one at start.
    """
    num_made = 0
    async with database.session() as session:
        await session.execute(select(func.pg_advisory_xact_lock(_PARTITIONS_LOCK)))
        today = (await session.execute(select(func.current_date()))).scalar_one()
        for offset in range(days_ahead + 1):
            num_made += await _ensure_partition(session, today + timedelta(days=offset))
    return num_made


def day_of(generation_id: UUID) -> date:
    """The UTC day inside a UUIDv7 (RFC 9562, §5.7). Raises InvalidValueError for another kind of id."""
    if generation_id.version != _UUID_VERSION:
        raise InvalidValueError("generation_id", f"{generation_id} is not a UUIDv7")
    unix_ms = generation_id.int >> 80
    return UNIX_EPOCH + timedelta(milliseconds=unix_ms)


async def _ensure_partition(session: AsyncSession, day: date) -> bool:
    name = f"usage_event_{day:%Y%m%d}"
    if await session.scalar(select(func.to_regclass(name).is_not(None))):
        return False
    # Made beside and then attached, which blocks no reader and no writer of the other days; `PARTITION OF` would lock
    # the whole table, and would fail where the default partition holds a row of the day.
    next_day = day + timedelta(days=1)
    for statement in (
        f"CREATE TABLE {name} (LIKE usage_event INCLUDING ALL)",
        "LOCK TABLE usage_event_default IN ACCESS EXCLUSIVE MODE",
        f"INSERT INTO {name} SELECT * FROM usage_event_default WHERE day = '{day}'",  # noqa: S608 - a date, from above
        f"DELETE FROM usage_event_default WHERE day = '{day}'",  # noqa: S608
        f"ALTER TABLE usage_event ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{next_day}')",
    ):
        await session.execute(text(statement))
    return True
