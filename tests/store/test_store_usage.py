"""The ledger takes each generation once, on the day that its id says."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from uuid_utils.compat import uuid7

from gateway.store.db import Database
from gateway.store.enums import UsageSource
from gateway.store.errors import InvalidValueError
from gateway.store.usage import UsageEvent, day_of, insert_usage
from gateway.store.usage_partitions import ensure_partitions

LAST_UNIX_MS = 253_402_300_799_999 - 86_400_000  # the driver takes the very last day of 9999 for infinity


def make_uuid7(unix_ms: int) -> UUID:
    return UUID(int=(unix_ms << 80) | (7 << 76) | (2 << 62) | uuid4().int & ((1 << 62) - 1))


def make_event(generation_id: UUID | None = None) -> UsageEvent:
    return UsageEvent(
        generation_id=generation_id or uuid7(),
        organization_id=uuid7(),
        team_id=uuid7(),
        key_id=uuid7(),
        model="small",
        priority_class="default",
        input_tokens=10,
        output_tokens=5,
        billed_tokens=15,
        finish_reason="STOP",
        source=UsageSource.ENGINE,
        finished_at=datetime.now(UTC),
        policy_revision=3,
        cached_input_tokens=4,
        labels={"cost-center": "42"},
    )


async def read_rows(database: Database) -> list[tuple[object, ...]]:
    """Generation, partition and input tokens of each row."""
    async with database.session() as session:
        query = text("SELECT generation_id, tableoid::regclass::text, input_tokens FROM usage_event ORDER BY 1")
        return [tuple(row) for row in await session.execute(query)]


async def test_an_event_is_stored_whole(database: Database) -> None:
    event = make_event()

    assert await insert_usage(database, [event]) == 1

    async with database.session() as session:
        row = (await session.execute(text("SELECT * FROM usage_event"))).mappings().one()
    stored = {name: getattr(event, name) for name in event.__slots__}
    assert row == {**stored, "day": day_of(event.generation_id)}


async def test_a_replay_changes_nothing(database: Database) -> None:
    await ensure_partitions(database)
    events = [make_event() for _ in range(5)]
    assert await insert_usage(database, events[:3]) == 3
    before = await read_rows(database)

    assert await insert_usage(database, [replace(event, input_tokens=99) for event in events[:3]]) == 0
    assert await insert_usage(database, events) == 2

    assert [row for row in await read_rows(database) if row in before] == before
    assert len(await read_rows(database)) == 5


async def test_the_same_generation_twice_in_one_batch_counts_once(database: Database) -> None:
    event = make_event()

    assert await insert_usage(database, [event, event]) == 1


async def test_nothing_to_insert_is_no_error(database: Database) -> None:
    assert await insert_usage(database, []) == 0


async def test_a_replay_conflicts_after_its_partition_was_made(database: Database) -> None:
    event = make_event()
    await insert_usage(database, [event])
    assert (await read_rows(database))[0][1] == "usage_event_default"

    assert await ensure_partitions(database, days_ahead=0) == 1

    partition = f"usage_event_{day_of(event.generation_id):%Y%m%d}"
    assert (await read_rows(database))[0][1] == partition
    assert await insert_usage(database, [event]) == 0


async def test_partitions_are_made_once_and_ahead(database: Database) -> None:
    assert await ensure_partitions(database, days_ahead=3) == 4
    assert await ensure_partitions(database, days_ahead=3) == 0
    assert await ensure_partitions(database, days_ahead=4) == 1

    tomorrow = datetime.now(UTC) + timedelta(days=1)
    event = make_event(make_uuid7(int(tomorrow.timestamp() * 1000)))
    await insert_usage(database, [event])

    assert (await read_rows(database))[0][1] == f"usage_event_{tomorrow:%Y%m%d}"


async def test_gateways_that_start_together_make_each_partition_once(database: Database) -> None:
    made = await asyncio.gather(*(ensure_partitions(database, days_ahead=2) for _ in range(5)))

    assert sorted(made) == [0, 0, 0, 0, 3]


async def test_a_day_without_a_partition_is_kept_in_the_default_one(database: Database) -> None:
    await ensure_partitions(database)
    old = make_event(make_uuid7(1_600_000_000_000))

    assert await insert_usage(database, [old]) == 1

    assert (await read_rows(database))[0][1] == "usage_event_default"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(unix_ms=st.integers(0, LAST_UNIX_MS))
async def test_postgres_and_the_gateway_read_the_same_day_out_of_an_id(database: Database, unix_ms: int) -> None:
    # A wrong day would be refused by the CHECK constraint, which computes it by itself.
    assert await insert_usage(database, [make_event(make_uuid7(unix_ms))]) == 1


@pytest.mark.parametrize("unix_ms", [0, 86_399_999, 86_400_000, 1_709_164_800_000 - 1, 1_709_164_800_000, LAST_UNIX_MS])
async def test_days_end_at_midnight_utc(database: Database, unix_ms: int) -> None:
    event = make_event(make_uuid7(unix_ms))

    assert await insert_usage(database, [event]) == 1
    assert day_of(event.generation_id) == (datetime(1970, 1, 1) + timedelta(milliseconds=unix_ms)).date()  # noqa: DTZ001


async def test_a_row_under_another_day_than_its_ids_is_refused(database: Database) -> None:
    await insert_usage(database, [make_event()])

    with pytest.raises(InvalidValueError, match="ck_usage_event_day"):
        async with database.session() as session:
            await session.execute(text("UPDATE usage_event SET day = day + 1"))


async def test_an_id_without_a_time_is_refused(database: Database) -> None:
    with pytest.raises(InvalidValueError, match="not a UUIDv7"):
        await insert_usage(database, [make_event(uuid4())])


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"input_tokens": -1}, "ck_usage_event_counts"),
        ({"cached_input_tokens": 11}, "ck_usage_event_counts"),
        ({"billed_tokens": -1}, "ck_usage_event_counts"),
        ({"queue_ns": -1}, "ck_usage_event_timings"),
        ({"source": "CLIENT"}, "ck_usage_event_source"),
    ],
)
async def test_one_impossible_event_keeps_its_whole_batch_out(
    database: Database, change: dict[str, object], constraint: str
) -> None:
    with pytest.raises(InvalidValueError, match=constraint):
        await insert_usage(database, [make_event(), replace(make_event(), **change)])  # type: ignore[arg-type]  # bad on purpose

    assert await read_rows(database) == []
