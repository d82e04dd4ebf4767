from collections import abc
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.cli.data_dir import DataDir
from gateway.store.db import Database
from tests.admin import conftest as of_admin
from tests.admin.service import AdminService, serve_admin
from tests.cli.command_line import CommandLine

module_service = of_admin.module_service


@pytest.fixture
def command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """`evenflow` in this process, with a data directory of the test's own and no setting from outside."""
    for name in ("API_KEY", "ADMIN_KEY", "ADDRESS", "MODEL", "CA_CERT", "CLIENT_CERT", "CLIENT_KEY"):
        monkeypatch.delenv(f"EVENFLOW_{name}", raising=False)
    monkeypatch.setenv("EVENFLOW_DATA_DIR", str(tmp_path / "data"))
    return CommandLine()


@pytest_asyncio.fixture
async def service(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[AdminService]:
    """The admin service, found by the command line through its data directory."""
    data_dir = tmp_path / "data"
    async with serve_admin(database, database_url, data_dir) as running:
        with DataDir(data_dir).lock():
            (data_dir / "endpoint").write_text(running.address)
            yield running


@pytest.fixture
def shared_command_line(
    command_line: CommandLine, module_service: AdminService, monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """`command_line`, with the data directory of the service that all tests of the module share."""
    monkeypatch.setenv("EVENFLOW_DATA_DIR", str(module_service.data_dir))
    return command_line
