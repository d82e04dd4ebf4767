"""One event loop and one browser for all tests of the console, and a database and a gateway of its own for each.

A browser cannot change its event loop, so that everything here runs on the session's: the parts that other tests of the
gateway have on a loop per test are made anew.
"""

from collections import abc
from functools import partial
from pathlib import Path
from types import CodeType

import pytest
import pytest_asyncio
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from playwright.async_api import Browser, Page, async_playwright

from gateway.console import templating
from gateway.store.db import Database
from gateway.telemetry import Telemetry
from tests.conftest import fresh_database
from tests.gateway.console.browser import Visits
from tests.gateway.console.visitors import Visitors
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.world import Tenant, World
from tests.programs import CHROMIUM, find_program

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


class CompiledTemplates(BytecodeCache):
    """Templates as the first gateway that showed them has compiled them; the others would do it again."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def compiled_templates() -> abc.Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templating, "Environment", partial(Environment, bytecode_cache=CompiledTemplates()))
        yield


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> abc.AsyncIterator[Browser]:
    """The session's browser. `--no-sandbox`: it refuses to run as root otherwise."""
    path = find_program(*CHROMIUM)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path, chromium_sandbox=False)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres_url: str, serving_template: str) -> abc.AsyncIterator[str]:
    async with fresh_database(postgres_url, serving_template) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def database(database_url: str) -> abc.AsyncIterator[Database]:
    pool = Database(database_url)
    yield pool
    await pool.close()


@pytest_asyncio.fixture(loop_scope="session")
async def engine(tmp_path: Path) -> abc.AsyncIterator[FakeEngine]:
    fake = FakeEngine(tmp_path / "engine.sock")
    await fake.start()
    yield fake
    await fake.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def closed_world(
    engine: FakeEngine, database: Database, database_url: str, spans: InMemorySpanExporter, tmp_path: Path
) -> abc.AsyncIterator[World]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    world = World(engine, database, database_url, Telemetry(provider), tmp_path / "data")
    world.options["http_listen"] = "127.0.0.1:0"
    yield world
    await world.close()
    provider.shutdown()


@pytest_asyncio.fixture(loop_scope="session")
async def world(closed_world: World) -> World:
    """A running gateway with a console, which has found its engine."""
    await closed_world.open()
    await closed_world.serving()
    return closed_world


@pytest_asyncio.fixture(loop_scope="session")
async def second_world(world: World, spans: InMemorySpanExporter, tmp_path: Path) -> abc.AsyncIterator[World]:
    """Another gateway with a console, over the same database and engine."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    second = World(world.engine, world.database, world.database_url, Telemetry(provider), tmp_path / "second")
    second.options["http_listen"] = "127.0.0.1:0"
    await second.open()
    await second.serving()
    yield second
    await second.close()
    provider.shutdown()


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(world: World) -> Tenant:
    return await world.tenant()


@pytest_asyncio.fixture(loop_scope="session")
async def visits(chromium: Browser, world: World) -> abc.AsyncIterator[Visits]:
    """Pages of the gateway's HTTP port; whatever they may not do fails the test at its end."""
    opened = Visits(chromium, f"http://{world.live.http_address}")
    yield opened
    await opened.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(visits: Visits) -> Page:
    """A wide one in light colours."""
    return await visits.open()


@pytest_asyncio.fixture(loop_scope="session")
async def visitors(world: World) -> abc.AsyncIterator[Visitors]:
    """Browsers without a browser, for what needs none."""
    made = Visitors(world)
    yield made
    await made.close()
