"""The gateway under test, its scripted engine and its database."""

from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway.servicer import relay
from gateway.store.db import Database
from gateway.telemetry import Telemetry
from tests.conftest import fresh_database
from tests.gateway.fake_engine import FakeEngine
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
