"""The hourly sums are those of the events, whoever writes them, in whatever order, however often."""

import asyncio
import random
from collections import abc
from uuid import UUID

import pytest
import pytest_asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert

from gateway.store import migrate
from gateway.store.db import Database, DatabaseOptions
from gateway.store.errors import InvalidValueError
from gateway.store.journal_models import UsageEventRow
from gateway.store.usage import UsageEvent, day_of, insert_usage, values_of
from gateway.store.usage_partitions import drop_partitions, ensure_partitions
from tests.ledger.events import make_event, make_uuid7, rollups, stored_ids

LAST_UNIX_MS = 253_402_300_799_999 - 86_400_000
NUM_WRITERS = 8


@pytest_asyncio.fixture
async def wide_database(database_url: str) -> abc.AsyncIterator[Database]:
    """A pool with a connection for every writer."""
    pool = Database(database_url, DatabaseOptions(pool_size=NUM_WRITERS, max_overflow=0))
    yield pool
    await pool.close()


async def num_deadlocks(database: Database) -> int:
    async with database.session() as session:
        await session.execute(text("SELECT pg_stat_force_next_flush()"))
    async with database.session() as session:
        query = text("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return (await session.execute(query)).scalar_one()


def random_events(chance: random.Random, num_events: int) -> list[UsageEvent]:
    """Of few tenants in few hours, so that most of them share their sums."""
    now_ms = 1_790_000_000_000
    return [
        make_event(
            make_uuid7(now_ms + chance.randrange(3 * 3_600_000)),
            team_id=UUID(int=chance.randrange(3)),
            key_id=UUID(int=chance.randrange(4)),
            model=chance.choice(["small", "large"]),
            priority_class=chance.choice(["default", "batch"]),
            input_tokens=chance.randrange(1000),
            output_tokens=chance.randrange(1000),
            billed_tokens=chance.randrange(2000),
            queue_ns=chance.randrange(10**9),
        )
        for _ in range(num_events)
    ]


async def test_sums_are_those_of_the_events_under_writers_that_overlap(wide_database: Database) -> None:
    chance = random.Random(5)
    events = random_events(chance, 1500)

    async def write(seed: int) -> int:
        own = random.Random(seed)
        num_new = 0
        for _ in range(10):
            # Every writer takes from the same events: many are written by several, at the same time.
            num_new += await insert_usage(wide_database, own.sample(events, 200))
        return num_new

    num_new = sum(await asyncio.gather(*(write(seed) for seed in range(NUM_WRITERS))))
    num_new += await insert_usage(wide_database, events)

    kept, counted = await rollups(wide_database)
    assert num_new == len(events) == len(await stored_ids(wide_database))
    assert kept == counted
    assert len(kept) > 10
    assert await num_deadlocks(wide_database) == 0


async def test_a_refused_batch_leaves_the_sums_as_they_were(database: Database) -> None:
    await insert_usage(database, [make_event()])
    before, _ = await rollups(database)
    with pytest.raises(InvalidValueError, match="ck_usage_event_counts"):
        await insert_usage(database, [make_event(), make_event(input_tokens=-1)])

    assert await rollups(database) == (before, before)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(unix_ms=st.integers(0, LAST_UNIX_MS))
async def test_the_hour_is_that_of_the_generations_id(database: Database, unix_ms: int) -> None:
    key_id = make_uuid7(unix_ms)
    await insert_usage(database, [make_event(make_uuid7(unix_ms), key_id=key_id)])
    async with database.session() as session:
        query = text("SELECT extract(epoch FROM hour)::bigint FROM usage_rollup_hour WHERE key_id = :key_id")
        hour_s = (await session.execute(query, {"key_id": key_id})).scalar_one()

    assert hour_s == unix_ms // 3_600_000 * 3600


async def test_rows_that_move_to_their_partition_are_not_summed_again(database: Database) -> None:
    await insert_usage(database, [make_event() for _ in range(5)])
    before, _ = await rollups(database)
    await ensure_partitions(database)

    assert await rollups(database) == (before, before)


async def test_rows_that_another_release_inserts_are_in_the_sums(database: Database) -> None:
    rows = [{**values_of(event), "day": day_of(event.generation_id)} for event in random_events(random.Random(7), 300)]
    async with database.session() as session:
        for _ in range(2):
            await session.execute(insert(UsageEventRow).on_conflict_do_nothing(), rows)

    kept, counted = await rollups(database)
    assert kept == counted
    assert sum(row[6] for row in kept) == 300


async def test_rows_that_were_there_before_the_sums_are_in_them(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url, "0007_grants_and_denials")
    database = Database(empty_database_url)
    await insert_usage(database, random_events(random.Random(1), 300))
    await migrate.upgrade(empty_database_url)
    await insert_usage(database, random_events(random.Random(2), 300))

    kept, counted = await rollups(database)
    assert kept == counted
    await migrate.downgrade(empty_database_url, "0007_grants_and_denials")
    await migrate.upgrade(empty_database_url)
    assert await rollups(database) == (kept, kept)
    await database.close()


async def test_nobody_notices_that_partitions_are_made(wide_database: Database) -> None:
    """The day's partition is taken away and made again, while writers and a reader never stop."""
    recorded: list[int] = []
    may_stop = asyncio.Event()

    async def write() -> None:
        while not may_stop.is_set():
            recorded.append(await insert_usage(wide_database, [make_event() for _ in range(20)]))

    async def read() -> None:
        num_seen = 0
        while not may_stop.is_set():
            num_there = len(await stored_ids(wide_database))
            assert num_there >= num_seen
            num_seen = num_there

    async with asyncio.TaskGroup() as group:
        group.create_task(read())
        for _ in range(NUM_WRITERS - 2):
            group.create_task(write())
        for _ in range(10):
            await ensure_partitions(wide_database, days_ahead=0)
            async with wide_database.session() as session:
                (name,) = await session.scalars(
                    text("SELECT relname FROM pg_class WHERE relname ~ '^usage_event_[0-9]+$' AND relkind = 'r'")
                )
                await session.execute(text(f"ALTER TABLE usage_event DETACH PARTITION {name}"))
                await session.execute(text(f"INSERT INTO usage_event_default SELECT * FROM {name}"))
                await session.execute(text(f"DROP TABLE {name}"))
        may_stop.set()

    kept, counted = await rollups(wide_database)
    assert kept == counted
    assert len(await stored_ids(wide_database)) == sum(recorded)


async def test_old_days_go_and_their_sums_stay(database: Database) -> None:
    await ensure_partitions(database)
    async with database.session() as session:
        now_s = int((await session.execute(text("SELECT extract(epoch FROM now())"))).scalar_one())
    days = {age: make_event(make_uuid7((now_s - age * 86_400) * 1000)) for age in (0, 1, 2, 3)}
    async with database.session() as session:
        day = (await session.execute(text("SELECT current_date - 3"))).scalar_one()
        name = f"usage_event_{day:%Y%m%d}"
        await session.execute(
            text(f"CREATE TABLE {name} PARTITION OF usage_event FOR VALUES FROM ('{day}') TO (date '{day}' + 1)")
        )
    await insert_usage(database, list(days.values()))
    before, _ = await rollups(database)

    assert await drop_partitions(database, retention_days=1) == 1

    kept, counted = await rollups(database)
    assert set(await stored_ids(database)) == {days[0].generation_id, days[1].generation_id}
    assert kept == before
    assert len(counted) < len(kept)
    assert await drop_partitions(database, retention_days=1) == 0
