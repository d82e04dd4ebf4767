"""The pool: which URLs and servers it takes, and that a lost database is an error in time."""

import asyncio

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from gateway.store.db import Database, DatabaseOptions, normalize_url, require_supported
from gateway.store.errors import (
    DatabaseUnavailableError,
    DatabaseUrlError,
    InvalidValueError,
    StatementTimeoutError,
    UnsupportedServerError,
)
from tests.silent_server import silent_server


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
async def test_each_usual_spelling_of_the_scheme_connects(database_url: str, scheme: str) -> None:
    database = Database(database_url.replace("postgresql", scheme, 1))

    await database.ping()

    await database.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "evenflow",
        "mysql://u:hunter2@h/d",
        "postgresql:/u:hunter2@h/d",
        "postgresql://u:hunter2@h",
        "postgresql://h/",
    ],
)
def test_other_urls_are_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(DatabaseUrlError) as refusal:
        normalize_url(url)

    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("version", [90_600, 130_012, 140_999])
def test_a_server_before_15_is_refused_by_its_version(version: int) -> None:
    with pytest.raises(UnsupportedServerError, match=r"is PostgreSQL \d+; 15 or newer is needed"):
        require_supported(version)


@pytest.mark.parametrize("version", [150_000, 160_004, 180_006])
def test_a_server_from_15_on_is_taken(version: int) -> None:
    require_supported(version)


async def test_ping_refuses_an_old_server(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.store.db.MINIMUM_SERVER_VERSION", 99)

    with pytest.raises(UnsupportedServerError):
        await database.ping()


@pytest.mark.parametrize(
    "url", ["postgresql://nobody@/none?host=/no/such/directory", "postgresql://nobody@127.0.0.1:1/none"]
)
async def test_an_absent_server_is_unavailable(url: str) -> None:
    database = Database(url, DatabaseOptions(connect_timeout_s=2.0))

    with pytest.raises(DatabaseUnavailableError):
        await database.ping()

    await database.close()


async def test_a_server_that_accepts_and_says_nothing_is_unavailable() -> None:
    async with silent_server() as port:
        database = Database(f"postgresql://u@127.0.0.1:{port}/d", DatabaseOptions(connect_timeout_s=0.2))

        with pytest.raises(DatabaseUnavailableError):
            await database.ping()

        await database.close()


@pytest.mark.parametrize(
    ("part", "wrong_part", "reason"),
    [
        ("/evenflow?", "/absent?", 'database "absent" does not exist'),
        ("//evenflow@", "//stranger@", "authentication failed"),
    ],
)
async def test_a_wrong_database_or_role_is_unavailable_and_says_why(
    postgres_url: str, part: str, wrong_part: str, reason: str
) -> None:
    database = Database(postgres_url.replace(part, wrong_part))

    with pytest.raises(DatabaseUnavailableError, match=reason):
        await database.ping()

    await database.close()


async def test_a_slow_statement_is_ended_by_the_server(database_url: str) -> None:
    database = Database(database_url, DatabaseOptions(statement_timeout_s=0.1))

    with pytest.raises(StatementTimeoutError):
        async with database.session() as session:
            await session.execute(text("SELECT pg_sleep(60)"))

    await database.ping()  # the connection, or another one, still works
    await database.close()


async def test_a_lock_that_others_hold_is_waited_for_a_while(database: Database, database_url: str) -> None:
    waiting = Database(database_url, DatabaseOptions(lock_timeout_s=0.1))
    statement = text("SELECT * FROM policy_revision FOR UPDATE")
    async with database.session() as holding:
        await holding.execute(statement)
        with pytest.raises(StatementTimeoutError):
            async with waiting.session() as session:
                await session.execute(statement)

    await waiting.close()


async def test_a_transaction_that_stalls_is_ended_by_the_server(database: Database, database_url: str) -> None:
    stalling = Database(database_url, DatabaseOptions(idle_in_transaction_timeout_s=0.1))

    async def stall() -> None:
        async with stalling.session() as session:
            pid = (await session.execute(text("SELECT pg_backend_pid()"))).scalar_one()
            await until_backend_is_gone(database, pid)
            await session.execute(text("SELECT 1"))

    with pytest.raises(DatabaseUnavailableError):
        await stall()

    await stalling.ping()
    await stalling.close()


async def until_backend_is_gone(database: Database, pid: int) -> None:
    query = text("SELECT count(*) FROM pg_stat_activity WHERE pid = :pid")
    async with asyncio.timeout(30):
        while True:
            async with database.session() as session:
                if (await session.execute(query, {"pid": pid})).scalar_one() == 0:
                    return


async def test_a_full_pool_is_an_error_and_not_a_hang(database_url: str) -> None:
    database = Database(database_url, DatabaseOptions(pool_size=1, max_overflow=0, pool_timeout_s=0.05))
    async with database.session() as held:
        await held.execute(text("SELECT 1"))
        with pytest.raises(DatabaseUnavailableError):
            await database.ping()

    await database.ping()
    await database.close()


async def test_a_connection_that_the_server_cut_is_unavailable_once(database: Database) -> None:
    with pytest.raises(DatabaseUnavailableError):
        async with database.session() as session:
            await session.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    await database.ping()


async def test_a_session_commits_at_its_end_and_rolls_back_on_an_error(database: Database) -> None:
    async def read_rank() -> int:
        async with database.session() as session:
            query = text("SELECT rank FROM priority_class WHERE name = 'batch'")
            return int((await session.execute(query)).scalar_one())

    async def set_rank(rank: int, *, fail: bool) -> None:
        async with database.session() as session:
            await session.execute(text("UPDATE priority_class SET rank = :rank WHERE name = 'batch'"), {"rank": rank})
            if fail:
                raise LookupError("ours")

    await set_rank(300, fail=False)
    with pytest.raises(LookupError):
        await set_rank(400, fail=True)

    assert await read_rank() == 300


@pytest.mark.parametrize("state", ["25006", "42501", "58030", "XX000", "P0001", "F0000", "0A000", "72000"])
async def test_what_is_not_said_of_the_statement_is_unavailability(database: Database, state: str) -> None:
    code = f"DO $$ BEGIN RAISE EXCEPTION 'the disk' USING ERRCODE = '{state}'; END $$"

    with pytest.raises(DatabaseUnavailableError, match="the disk"):
        async with database.session() as session:
            await session.execute(text(code))


async def test_a_bad_statement_of_ours_is_no_outage(database: Database) -> None:
    with pytest.raises(ProgrammingError):
        async with database.session() as session:
            await session.execute(text("SELECT absent FROM nowhere"))


async def test_a_number_out_of_range_is_an_invalid_value(database: Database) -> None:
    with pytest.raises(InvalidValueError):
        async with database.session() as session:
            await session.execute(text("UPDATE priority_class SET rank = :rank"), {"rank": 2**70})


async def test_a_text_with_a_nul_is_an_invalid_value(database: Database) -> None:
    with pytest.raises(InvalidValueError):
        async with database.session() as session:
            await session.execute(text("UPDATE priority_class SET name = :name"), {"name": "nul \0"})
