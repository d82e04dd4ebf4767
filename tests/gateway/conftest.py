"""The gateway under test, its scripted engine and its database."""

import tempfile
from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway import ledger
from gateway.servicer import relay
from gateway.store.db import Database
from gateway.telemetry import Telemetry
from tests.conftest import fresh_database
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import Tenant, World


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that answer no cancellation are given up soon."""
    monkeypatch.setattr(relay, "CANCEL_PATIENCE_S", 0.1)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    """Every span that has ended."""
    return InMemorySpanExporter()


@pytest_asyncio.fixture
async def database_url(postgres_url: str, serving_template: str) -> abc.AsyncIterator[str]:
    """A fresh database, in which a gateway has nothing to make; gone after the test."""
    async with fresh_database(postgres_url, serving_template) as url:
        yield url


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> abc.AsyncIterator[FakeEngine]:
    """A scripted engine that serves."""
    fake = FakeEngine(tmp_path / "engine.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture
async def second_engine(tmp_path: Path) -> abc.AsyncIterator[FakeEngine]:
    """Another one; the gateway knows it if `options` say so."""
    fake = FakeEngine(tmp_path / "second.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture
async def closed_world(
    engine: FakeEngine, database: Database, database_url: str, spans: InMemorySpanExporter, tmp_path: Path
) -> abc.AsyncIterator[World]:
    """Everything but a running gateway: set `options`, then `open` it."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    world = World(engine, database, database_url, Telemetry(provider), tmp_path / "data")
    yield world
    await world.close()
    provider.shutdown()


@pytest_asyncio.fixture
async def world(closed_world: World) -> World:
    """A running gateway that has found its engine."""
    await closed_world.open()
    await closed_world.serving()
    return closed_world


@pytest_asyncio.fixture
async def second_world(world: World, spans: InMemorySpanExporter, tmp_path: Path) -> abc.AsyncIterator[World]:
    """Another gateway over the same database and engine."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    second = World(world.engine, world.database, world.database_url, Telemetry(provider), tmp_path / "second")
    await second.open()
    await second.serving()
    yield second
    await second.close()
    provider.shutdown()


@pytest_asyncio.fixture
async def tenant(world: World) -> Tenant:
    """A tenant without limits."""
    return await world.tenant()


@pytest_asyncio.fixture
async def proxy(database_url: str) -> abc.AsyncIterator[PostgresProxy]:
    """The gateway's way to Postgres."""
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        door = PostgresProxy(database_url, Path(directory))
        await door.open()
        yield door
        await door.shut()


@pytest_asyncio.fixture
async def proxied(closed_world: World, proxy: PostgresProxy) -> World:
    """A running gateway behind the proxy, while the test itself reaches Postgres directly."""
    closed_world.database_url = proxy.url
    await closed_world.open()
    await closed_world.serving()
    return closed_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_world(
    postgres_url: str, serving_template: str, tmp_path_factory: pytest.TempPathFactory
) -> abc.AsyncIterator[World]:
    """A running gateway with an HTTP door. Tests get it as `shared_world`."""
    folder, provider = tmp_path_factory.mktemp("shared"), TracerProvider()
    fake = FakeEngine(folder / "engine.sock")
    await fake.start()
    with pytest.MonkeyPatch.context() as patch:
        # Whoever reads the ledger's table would wait for it after the test before.
        patch.setattr(ledger, "WRITE_INTERVAL_S", 0.0)
        async with fresh_database(postgres_url, serving_template) as url:
            database = Database(url)
            world = World(fake, database, url, Telemetry(provider), folder / "data")
            world.options["http_listen"] = "127.0.0.1:0"
            await world.open()
            await world.serving()
            yield world
            await world.close()
            await database.close()
    await fake.stop()
    provider.shutdown()


@pytest_asyncio.fixture(loop_scope="module")
async def shared_world(module_world: World) -> World:
    """One gateway for all tests of a module that ask for it: those that leave it as it was, but for tenants and rows.

    Of its engine they change nothing but the script. What one that failed has left running is ended.
    """
    await module_world.renew()
    return module_world


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_tenant(module_world: World) -> Tenant:
    """A tenant of it without limits. Tests get it as `shared_tenant`."""
    return await module_world.tenant()


@pytest.fixture
def shared_tenant(shared_world: World, module_tenant: Tenant) -> Tenant:
    """A tenant without limits for all tests that look at nothing that is the tenant's."""
    return module_tenant


@pytest_asyncio.fixture(loop_scope="module")
async def own_tenant(shared_world: World) -> abc.AsyncIterator[Tenant]:
    """A tenant of it without limits, of this test only."""
    tenant = await shared_world.tenant()
    yield tenant
    await tenant.channel.close()
