"""Usage that the database does not take: it waits, is written once, and keeps no other out."""

from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit
from uuid import uuid4

import grpc
import pytest
import structlog
from sqlalchemy import text
from uuid_utils.compat import uuid7

from gateway import ledger
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.usage import UsageEvent, insert_usage
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import Tenant, World, eventually, refused

FAIL = (
    "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
    " $$ BEGIN RAISE EXCEPTION 'the disk' USING ERRCODE = '{state}'; END $$"
)
ON_USAGE = "CREATE TRIGGER fail BEFORE INSERT ON usage_event FOR EACH ROW EXECUTE FUNCTION fail()"
ON_KEYS = "CREATE TRIGGER fail BEFORE UPDATE ON api_key FOR EACH ROW EXECUTE FUNCTION fail()"


@pytest.mark.parametrize(
    ("breaks", "mends"),
    [
        *(
            ((FAIL.format(state=state), ON_USAGE, ON_KEYS), "DROP FUNCTION fail CASCADE")
            for state in (
                "25006",
                "42501",
                "58030",
                "XX000",
                "P0001",
            )  # read-only, no right, I/O error, corrupt, raised
        ),
        (("ALTER TABLE usage_event RENAME TO gone",), "ALTER TABLE gone RENAME TO usage_event"),
    ],
)
async def test_usage_outlives_whatever_the_database_says_and_is_complained_about_once(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, breaks: tuple[str, ...], mends: str
) -> None:
    num_attempts = 0

    async def count(database: Database, events: list[UsageEvent]) -> int:
        nonlocal num_attempts
        num_attempts += 1
        return await insert_usage(database, events)

    monkeypatch.setattr(ledger, "insert_usage", count)
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    await execute(world.database, *breaks)
    with structlog.testing.capture_logs() as lines:
        answers = [await tenant.generate() for _ in range(3)]
        await world.live._last_used.flush()
        await eventually(lambda: num_attempts >= 5)
        await mend(world.database, mends)
        rows = await world.usage_rows()

    assert {str(row["generation_id"]) for row in rows} == {answer.generation_id for answer in answers}
    assert [line["event"] for line in lines].count("usage waits for the database") == 1
    assert world.is_running


async def mend(database: Database, statement: str) -> None:
    """`statement` has run, though it may meet the insert that is tried all the time in a deadlock, and lose."""
    while True:
        with suppress(DatabaseUnavailableError):
            return await execute(database, statement)


async def test_a_standby_that_only_reads_keeps_the_gateway_running_and_the_usage_waiting(
    closed_world: World, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    name = urlsplit(world.database_url).path.strip("/")
    await execute(world.database, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await world.open()  # its sessions begin after the change, and the partitions cannot be made
    await world.serving()
    tenant = await world.tenant()

    with structlog.testing.capture_logs() as lines:
        assert await tenant.generate()
        await eventually(lambda: any(line["event"] == "usage waits for the database" for line in lines))
    await world.live._last_used.flush()
    is_running = world.is_running
    await execute(world.database, f"ALTER DATABASE {name} RESET default_transaction_read_only")
    await proxy.shut()
    await proxy.open()

    assert is_running
    assert len(await world.usage_rows()) == 1


async def execute(database: Database, *statements: str) -> None:
    for statement in statements:
        async with database.session() as session:
            await session.execute(text(statement))


async def test_no_work_is_taken_that_could_not_be_recorded(closed_world: World, proxy: PostgresProxy) -> None:
    world, closed_world.database_url = closed_world, proxy.url
    world.options["ledger_capacity"] = 2
    await world.open()
    await world.serving()
    tenant = await world.tenant()
    await proxy.shut()
    for num_waiting in (1, 2):
        await tenant.generate()
        await eventually(lambda: world.ledger.num_waiting >= num_waiting)  # noqa: B023  it is called before the next one
        await world.ledger.on_disk()
    assert world.ledger.num_waiting == 2

    refusal = await refused(tenant.generate())
    await proxy.open()
    await world.settled()

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "LEDGER_UNAVAILABLE")
    assert await tenant.generate()


async def test_usage_that_was_written_before_the_connection_broke_is_not_written_twice(
    world: World, tenant: Tenant, monkeypatch
) -> None:
    num_attempts = 0

    async def lose_the_answer(database: Database, events) -> int:
        nonlocal num_attempts
        num_attempts += 1
        num_new = await insert_usage(database, events)
        if num_attempts == 1:
            raise DatabaseUnavailableError("the answer was lost")
        return num_new

    monkeypatch.setattr(ledger, "insert_usage", lose_the_answer)
    await tenant.generate()

    assert len(await world.usage_rows()) == 1
    assert num_attempts == 2


async def test_good_events_are_kept_when_the_database_goes_away_while_a_bad_one_is_sought(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    await tenant.generate()
    (row,) = await world.usage_rows()
    good = UsageEvent(**{name: row[name] for name in UsageEvent.__slots__})
    events = [replace(good, generation_id=uuid7()) for _ in range(4)]
    events[1] = replace(good, generation_id=uuid4())  # no UUIDv7: it has no day
    num_singles = 0

    async def lose_the_connection(database: Database, batch: list[UsageEvent]) -> int:
        nonlocal num_singles
        num_singles += len(batch) == 1
        if len(batch) == 1 and num_singles == 3:
            raise DatabaseUnavailableError("gone in the middle")
        return await insert_usage(database, batch)

    monkeypatch.setattr(ledger, "insert_usage", lose_the_connection)
    monkeypatch.setattr(ledger, "RETRY_S", 0.01)
    for event in events:
        world.ledger.record(event)

    rows = await world.usage_rows()
    assert {row["generation_id"] for row in rows} == {
        good.generation_id, *(event.generation_id for event in events if event is not events[1])
    }  # fmt: skip


async def test_an_event_that_cannot_be_stored_does_not_keep_the_others_out(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    (row,) = await world.usage_rows()
    event = UsageEvent(**{name: row[name] for name in UsageEvent.__slots__})
    world.ledger.record(replace(event, generation_id=uuid4()))  # no UUIDv7: it has no day
    await tenant.generate()

    assert len(await world.usage_rows()) == 2
