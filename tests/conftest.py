"""Postgres for every test that needs one: a server per session, a migrated database of its own per test.

Databases are cut from a template that was migrated once, so that a test pays milliseconds and shares nothing.
"""

import gc
import shutil
import signal
import tempfile
import time
from collections import abc
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
import pytest_asyncio
import structlog

from gateway.embedded import EmbeddedOptions, EmbeddedPostgres
from gateway.store import migrate
from gateway.store.db import Database
from gateway.store.usage_partitions import ensure_partitions
from tests.shared_statements import shared_statements
from tests.triton_interpreter import import_triton

import_triton()  # before any test imports what imports it

MODULE_SERVERS = frozenset({"module_world", "module_service"})
TEMPLATE = "migrated_template"
SERVING_TEMPLATE = "serving_template"
# What only a power cut could tell apart, and what a database per test costs most of.
FAST = {"fsync": "off", "full_page_writes": "off", "max_connections": "200", "autovacuum": "off"}
# A file system in memory: a database is four hundred small files.
MEMORY = Path("/dev/shm")
MEMORY_NAME = "evenflow-tests-"
MIN_FREE_BYTES = 2 << 30
LONGEST_SESSION_S = 86_400


def pytest_configure() -> None:
    """A run that was started in the background ignores Ctrl-C, and every process that it starts would, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _log_plainly()
    gc.disable()  # while everything is imported


def _log_plainly() -> None:
    """structlog's defaults, but for tracebacks: those in colours, with all variables, take a second each."""
    *others, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*others, renderer])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one module that share what takes long to start come first.

    A worker that has run out of tests takes some from the end of another's list, and would start it anew.

    Tests of a server that their module shares run on its event loop, which stands still while others run. So they come
    one after the other, at the module's end, where the server is closed.
    """
    ends = {item.path: place for place, item in enumerate(items)}
    places: dict[pytest.Item, tuple[bool, float]] = {}
    for place, item in enumerate(items):
        is_first = item.get_closest_marker("shared_start") is not None
        shares = not MODULE_SERVERS.isdisjoint(getattr(item, "fixturenames", ()))
        if shares and pytest_asyncio.is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
        places[item] = not is_first, ends[item.path] + 0.5 if shares else place
    items.sort(key=places.__getitem__)


def pytest_collection_finish() -> None:
    """What was imported stays until the end: no collection has to walk it again, which takes a second each time."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """What libraries clean up at the end, they find."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def server_directory(tmp_path_factory: pytest.TempPathFactory) -> abc.Iterator[Path]:
    """Where the session's server keeps its files: in memory, if there is room."""
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < MIN_FREE_BYTES:
        yield tmp_path_factory.mktemp("session")
        return
    for left in MEMORY.glob(f"{MEMORY_NAME}*"):
        with suppress(FileNotFoundError):
            if time.time() - left.stat().st_mtime > LONGEST_SESSION_S:  # it was killed
                shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=MEMORY_NAME, dir=MEMORY, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def own_directory(server_directory: Path) -> abc.Iterator[Path]:
    """The same for a server of the test's own, whose name leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir=server_directory, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_url(server_directory: Path) -> abc.AsyncIterator[str]:
    """The session's server, with a database that holds no tables."""
    server = EmbeddedPostgres(server_directory, EmbeddedOptions(settings=FAST))
    yield await server.start()
    await server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template_url(postgres_url: str) -> abc.AsyncIterator[str]:
    """A migrated database that tests copy and never use."""
    await _execute(postgres_url, f"CREATE DATABASE {TEMPLATE}")
    url = with_database(postgres_url, TEMPLATE)
    await migrate.upgrade(url)
    pool = Database(url)
    await pool.ping()
    await pool.close()
    with shared_statements(pool._engine):
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def serving_template(postgres_url: str, template_url: str) -> str:
    """The name of a template like it, with the partitions that a gateway makes when it starts: a hundred statements."""
    await _execute(postgres_url, f"CREATE DATABASE {SERVING_TEMPLATE} TEMPLATE {TEMPLATE}")
    pool = Database(with_database(postgres_url, SERVING_TEMPLATE))
    await ensure_partitions(pool)
    await pool.close()
    return SERVING_TEMPLATE


@pytest_asyncio.fixture
async def database_url(postgres_url: str, template_url: str) -> abc.AsyncIterator[str]:
    """A fresh, migrated database; gone after the test."""
    async with fresh_database(postgres_url) as url:
        yield url


@pytest_asyncio.fixture
async def empty_database_url(postgres_url: str) -> abc.AsyncIterator[str]:
    """A fresh database without a table; gone after the test."""
    name = f"test_{uuid4().hex}"
    await _execute(postgres_url, f"CREATE DATABASE {name}")
    yield with_database(postgres_url, name)
    await _drop(postgres_url, name)


@pytest_asyncio.fixture
async def database(database_url: str) -> abc.AsyncIterator[Database]:
    """A pool on `database_url`."""
    pool = Database(database_url)
    yield pool
    await pool.close()


@asynccontextmanager
async def fresh_database(postgres_url: str, template: str = TEMPLATE) -> abc.AsyncIterator[str]:
    """A migrated database of its own on the session's server, which has the template; gone at the end."""
    name = f"test_{uuid4().hex}"
    await _execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    yield with_database(postgres_url, name)
    await _drop(postgres_url, name)


def with_database(url: str, name: str) -> str:
    """The URL of another database of the same server."""
    server, _, query = url.partition("?")
    return f"{server.rpartition('/')[0]}/{name}?{query}"


async def _drop(postgres_url: str, name: str) -> None:
    # A cleaner of the server's own may be at work there, which only a superuser can end. The server goes soon anyway.
    with suppress(asyncpg.InsufficientPrivilegeError):
        await _execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)")


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
