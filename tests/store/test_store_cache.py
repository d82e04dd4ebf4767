"""The cache stays current by notice and by poll, reads no more than it must, and outlives the database."""

import asyncio
from collections import abc
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from gateway.embedded import EmbeddedPostgres
from gateway.store import cache, migrate
from gateway.store.cache import TenancyCache
from gateway.store.db import Database, DatabaseOptions
from gateway.store.errors import DatabaseUnavailableError
from tests.store.tenants import make_organization


async def test_a_refresh_without_news_keeps_the_snapshot(database: Database) -> None:
    await make_organization(database)
    tenancy = TenancyCache(database)

    assert await tenancy.refresh() is await tenancy.refresh()


async def test_an_older_revision_is_refused(database: Database) -> None:
    now = 0.0
    await make_organization(database)
    tenancy = TenancyCache(database, lambda: now)
    seen = await tenancy.refresh()
    async with database.session() as session:
        await session.execute(text("UPDATE policy_revision SET revision = 0"))

    now = 7.0
    assert await tenancy.refresh() is seen

    assert (tenancy.current, tenancy.staleness_s()) == (seen, 7.0)


class CountingDatabase(Database):
    """Counts transactions, and lets a test hold the first one back."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.num_transactions = 0
        self.started = asyncio.Event()
        self.proceed = asyncio.Event()

    @asynccontextmanager
    async def session(self) -> abc.AsyncIterator[AsyncSession]:
        self.num_transactions += 1
        self.started.set()
        await self.proceed.wait()
        async with super().session() as session:
            yield session


async def test_one_read_serves_everybody_who_asked_before_it_began(database_url: str) -> None:
    database = CountingDatabase(database_url)
    tenancy = TenancyCache(database)
    first = asyncio.create_task(tenancy.refresh())
    await database.started.wait()
    others = [asyncio.create_task(tenancy.refresh()) for _ in range(50)]
    for _ in range(3):  # every task gets to its wait
        await asyncio.sleep(0)

    database.proceed.set()
    await asyncio.gather(first, *others)

    assert database.num_transactions == 2  # the one under way, and one for all who came after it had begun
    await database.close()


async def test_a_cancelled_refresh_does_not_stop_the_next_one(database_url: str) -> None:
    database = CountingDatabase(database_url)
    tenancy = TenancyCache(database)
    tasks = [asyncio.create_task(tenancy.refresh()) for _ in range(4)]
    for task in tasks[:3]:  # each is cancelled in the middle of its read, while the later ones wait for it
        await database.started.wait()
        database.started.clear()
        task.cancel()

    database.proceed.set()

    assert (await tasks[3]).revision == 0
    await database.close()


async def test_the_last_good_snapshot_outlives_the_database(own_directory: Path) -> None:
    now = 10.0
    server = EmbeddedPostgres(own_directory)
    url = await server.start()
    await migrate.upgrade(url)
    database = Database(url, DatabaseOptions(connect_timeout_s=1.0))
    tenancy = TenancyCache(database, lambda: now)
    assert tenancy.staleness_s() == float("inf")
    await make_organization(database)
    seen = await tenancy.refresh()
    await server.stop()

    now = 15.0
    with pytest.raises(DatabaseUnavailableError):
        await tenancy.refresh()
    assert (tenancy.current, tenancy.staleness_s()) == (seen, 5.0)

    await server.start()
    await make_organization(database)
    assert len((await tenancy.refresh()).organizations) == 2
    assert tenancy.staleness_s() == 0.0
    await database.close()
    await server.stop()


async def until(condition: abc.Callable[[], bool]) -> None:
    """Give other tasks their turn until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - a cache has no event for it, and needs none
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(tenancy: TenancyCache) -> abc.AsyncIterator[None]:
    task = asyncio.create_task(tenancy.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_notice_refreshes_at_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "POLL_INTERVAL_S", 3600.0)
    tenancy = TenancyCache(database)
    async with running(tenancy):
        await until(lambda: tenancy.current.revision == 0)
        for revision in range(1, 4):
            await make_organization(database)
            await until(lambda: tenancy.current.revision == revision)  # noqa: B023 - awaited in this iteration


async def test_the_poll_finds_what_no_notice_announced(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "POLL_INTERVAL_S", 0.01)
    tenancy = TenancyCache(database)
    async with running(tenancy):
        await until(lambda: tenancy.current.revision == 0)
        async with database.session() as session:
            await session.execute(text("UPDATE policy_revision SET revision = 5"))
        await until(lambda: tenancy.current.revision == 5)


async def test_the_background_refresh_survives_whatever_the_database_says(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "POLL_INTERVAL_S", 0.01)
    tenancy = TenancyCache(database)
    with structlog.testing.capture_logs() as lines:
        async with running(tenancy):
            await until(lambda: tenancy.current.revision == 0)
            async with database.session() as session:
                await session.execute(text("ALTER TABLE policy_revision RENAME TO gone"))
            num_reads = tenancy._num_reads
            await until(lambda: tenancy._num_reads > num_reads + 5)
            async with database.session() as session:
                await session.execute(text("ALTER TABLE gone RENAME TO policy_revision"))
            await make_organization(database)
            # The snapshot is there a moment before its refresh is over.
            await until(lambda: tenancy.current.revision == 1 and lines[-1]["event"].startswith("over: "))

    events = [line["event"] for line in lines if "policy refresh failed" in line["event"]]
    assert events == ["policy refresh failed", "over: policy refresh failed"]


async def test_the_background_refresh_survives_a_cut_connection(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "POLL_INTERVAL_S", 0.01)
    tenancy = TenancyCache(database)
    async with running(tenancy):
        await until(lambda: tenancy.current.revision == 0)
        async with database.session() as session:
            others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            mine = "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            await session.execute(text(others + mine))
        await make_organization(database)
        await until(lambda: tenancy.current.revision == 1)


@pytest.mark.parametrize("num_turns", range(5))
async def test_the_background_refresh_ends_when_it_is_cancelled_while_a_notice_comes(
    database: Database, num_turns: int
) -> None:
    cache = TenancyCache(database)
    polling = asyncio.create_task(cache._poll())
    while cache.current.revision < 0:  # noqa: ASYNC110 - any revision will do
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    cache._wake.set()
    for _ in range(num_turns):
        await asyncio.sleep(0)

    polling.cancel()

    await asyncio.wait([polling], timeout=1.0)
    assert polling.cancelled()
