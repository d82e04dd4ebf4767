from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.cli.data_dir import DataDir
from gateway.store.db import Database
from tests.admin.service import AdminService, serve_admin
from tests.conftest import fresh_database


@pytest_asyncio.fixture
async def service(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[AdminService]:
    """The admin service over a database of its own."""
    async with serve_admin(database, database_url, tmp_path / "data") as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_service(
    postgres_url: str, template_url: str, tmp_path_factory: pytest.TempPathFactory
) -> abc.AsyncIterator[AdminService]:
    """One admin service, found through its data directory, for all tests of a module that leave it as it was."""
    data_dir = tmp_path_factory.mktemp("shared") / "data"
    async with fresh_database(postgres_url) as url:
        database = Database(url)
        async with serve_admin(database, url, data_dir) as running:
            with DataDir(data_dir).lock():
                (data_dir / "endpoint").write_text(running.address)
                yield running
        await database.close()
