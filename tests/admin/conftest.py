from collections import abc
from pathlib import Path

import pytest_asyncio

from gateway.store.db import Database
from tests.admin.service import AdminService, serve_admin


@pytest_asyncio.fixture
async def service(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[AdminService]:
    """The admin service over a database of its own."""
    async with serve_admin(database, database_url, tmp_path / "data") as running:
        yield running
