"""Directories of embedded servers: made once, copied for each test."""

import shutil
from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.embedded import EmbeddedPostgres
from tests.store.server_directories import copy_tree, execute


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a stopped server that remembers one row; to be copied, not used."""
    data_dir = tmp_path_factory.mktemp("pristine")
    server = EmbeddedPostgres(data_dir)
    await execute(await server.start(), "CREATE TABLE memory AS SELECT 42 AS answer")
    await server.stop()
    return data_dir


@pytest.fixture(scope="session")
def skeleton(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`pristine` without its bulk: all that a look at the directory sees."""
    data_dir = copy_tree(pristine, tmp_path_factory.mktemp("skeleton") / "data")
    for bulky in ("base", "pg_wal"):
        for path in (data_dir / "postgres" / "data" / bulky).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return data_dir


@pytest.fixture
def data_dir(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of `pristine`, in a directory whose name leaves room for that of a socket."""
    return copy_tree(pristine, tmp_path_factory.mktemp("d") / "data")


@pytest_asyncio.fixture
async def server(data_dir: Path) -> abc.AsyncIterator[EmbeddedPostgres]:
    """A server on `data_dir`, not started; stopped after the test."""
    server = EmbeddedPostgres(data_dir)
    yield server
    await server.stop()
