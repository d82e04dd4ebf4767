"""The ledger's partitions: one per day, made ahead, dropped when the retention says so.

There is a default one besides, so that no row is ever refused for want of a partition. One process at a time changes
them. Hourly sums are not touched: they stay when their events go.
"""

import re
from datetime import date, datetime, timedelta

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.store.db import Database

DEFAULT_DAYS_AHEAD = 7
_PARTITIONS_LOCK = 0x65767061  # "evpa": one process at a time
_PARTITION = re.compile(r"usage_event_(\d{8})")


async def ensure_partitions(database: Database, days_ahead: int = DEFAULT_DAYS_AHEAD) -> int:
    """Today and the `days_ahead` days after it have their partitions. Returns how many were made.

    Rows that meanwhile fell into the default partition move to their day's. Meant for a call a day, and one at start.
    """
    num_made = 0
    async with database.session() as session:
        await session.execute(select(func.pg_advisory_xact_lock(_PARTITIONS_LOCK)))
        today = await _today(session)
        for offset in range(days_ahead + 1):
            num_made += await _ensure_partition(session, today + timedelta(days=offset))
    return num_made


async def drop_partitions(database: Database, retention_days: int) -> int:
    """No event is left of days that are more than `retention_days` ago. Returns how many partitions were dropped."""
    async with database.session() as session:
        await session.execute(select(func.pg_advisory_xact_lock(_PARTITIONS_LOCK)))
        first_kept = await _today(session) - timedelta(days=retention_days)
        old = [name for name, day in await _partitions(session) if day < first_kept]
        for name in old:
            await session.execute(text(f"ALTER TABLE usage_event DETACH PARTITION {name}"))
            await session.execute(text(f"DROP TABLE {name}"))
        await session.execute(text("DELETE FROM usage_event_default WHERE day < :day"), {"day": first_kept})
    return len(old)


async def _partitions(session: AsyncSession) -> list[tuple[str, date]]:
    query = text(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'usage_event'::regclass"
    )
    matches = [_PARTITION.fullmatch(name) for (name,) in await session.execute(query)]
    return sorted((match[0], _day(match[1])) for match in matches if match)


async def _today(session: AsyncSession) -> date:
    today = (await session.execute(select(func.current_date()))).scalar_one()
    assert isinstance(today, date)
    return today


async def _ensure_partition(session: AsyncSession, day: date) -> bool:
    name = f"usage_event_{day:%Y%m%d}"
    if await session.scalar(select(func.to_regclass(name).is_not(None))):
        return False
    # `PARTITION OF` would fail where the default partition holds a row of the day. The whole table is locked, for the
    # moment that it takes: whoever had looked up the partitions already would else read neither the old place of a row
    # that moves nor the new one, or be refused where it writes one.
    next_day = day + timedelta(days=1)
    for statement in (
        f"CREATE TABLE {name} (LIKE usage_event INCLUDING ALL)",
        "LOCK TABLE usage_event IN ACCESS EXCLUSIVE MODE",
        f"INSERT INTO {name} SELECT * FROM usage_event_default WHERE day = '{day}'",  # noqa: S608 - a date, from above
        f"DELETE FROM usage_event_default WHERE day = '{day}'",  # noqa: S608
        f"ALTER TABLE usage_event ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{next_day}')",
    ):
        await session.execute(text(statement))
    return True


def _day(digits: str) -> date:
    return datetime.strptime(digits, "%Y%m%d").date()  # noqa: DTZ007 - a day, as the partition's name has it
