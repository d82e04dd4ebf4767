"""Keys, peppers, sessions and prompts are in nothing that a run leaves behind, whoever reads it.

What is searched: the logs of every process, every trace, the metrics pages, the console's pages, the files of the data
directory (the ledger's spool among them) but for the three that hold the secrets, and every column of every table.
"""

import asyncio
import base64
import json
import os
import socket
import sys
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx2
import pytest
import pytest_asyncio

from gateway.private_files import ADMIN_KEY_FILE, API_KEY_FILE, PEPPER_FILE
from gateway.store.db import Database
from gateway.telemetry import Telemetry
from tests.e2e.installation import Installation
from tests.gateway.fake_engine import MODEL, FakeCall, FakeEngine
from tests.gateway.world import PEPPER, World
from tests.telemetry.collector import Collector, collecting
from tests.telemetry.secret_run import SHOWN_LENGTH, Place, SecretRun

ROOT = Path(__file__).parents[2]
MAIN = "import asyncio; from gateway import process, settings; asyncio.run(process.serve(settings.load_settings()))"
OWN_FILES = {ADMIN_KEY_FILE, API_KEY_FILE, PEPPER_FILE}
OUTPUT = b"GeneratedSecretOutput"


@dataclass
class Left:
    """What a run left behind, by where."""

    places: dict[str, bytes] = field(default_factory=dict)

    def leaks(self, secrets: abc.Mapping[str, str]) -> list[str]:
        """Every place that holds one of them, or its beginning, as it is or in a usual disguise."""
        return [
            f"{name} in {where}"
            for where, content in self.places.items()
            for name, secret in secrets.items()
            if any(form in content for form in disguises(secret))
        ]

    def read_files(self, directory: Path) -> None:
        for path in directory.rglob("*"):
            if path.is_file() and path.name not in OWN_FILES:
                self.places[str(path.relative_to(directory))] = path.read_bytes()

    async def read_database(self, url: str) -> None:
        """Each table's rows as text; bytes are hexadecimal in it."""
        connection = await asyncpg.connect(url)
        try:
            tables = await connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables:
                rows = await connection.fetch(f'SELECT t::text FROM "{table}" AS t')
                self.places[f"table {table}"] = "\n".join(row[0] for row in rows).encode()
        finally:
            await connection.close()

    async def read_metrics(self, address: str) -> None:
        async with httpx2.AsyncClient() as client:
            self.places["metrics"] = (await client.get(f"http://{address}/metrics")).content


def disguises(secret: str) -> tuple[bytes, ...]:
    """Its beginning is enough. In base64 the first bytes are cut, whose form depends on what stands before."""
    start = secret[:SHOWN_LENGTH].encode()
    return start, start.hex().encode(), *(base64.b64encode(b"x" * lead + start)[4:-4] for lead in range(3))


def require_searched(left: Left, **expected: str) -> None:
    """What is surely in a place is found there: the search looks at what it should."""
    for where, text in expected.items():
        content = b"".join(content for name, content in left.places.items() if where in name)
        assert text.encode() in content, (where, text)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def answer_with_a_secret(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(OUTPUT)
    await call.finish()


@pytest.fixture
def collector() -> abc.Iterator[tuple[Collector, str]]:
    with collecting() as found:
        yield found


@asynccontextmanager
async def gateway_process(world: World, log: Path, collector_url: str) -> abc.AsyncIterator[tuple[str, str, str]]:
    """A gateway that serves, with everything switched on; its addresses for gRPC, HTTP and metrics."""
    ports = [f"127.0.0.1:{free_port()}" for _ in range(3)]
    variables = {
        "EVENFLOW_GATEWAY_LISTEN": ports[0],
        "EVENFLOW_GATEWAY_HTTP_LISTEN": ports[1],
        "EVENFLOW_GATEWAY_METRICS_LISTEN": ports[2],
        "EVENFLOW_GATEWAY_ENGINE": world.engine.address,
        "EVENFLOW_DATABASE_URL": world.database_url,
        "EVENFLOW_PEPPER": PEPPER,
        "EVENFLOW_DATA_DIR": str(world.data_dir),
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector_url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }
    clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    with log.open("wb") as stderr:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", MAIN, cwd=ROOT, env=clean | variables, stderr=stderr
        )
    try:
        async with httpx2.AsyncClient(base_url=f"http://{ports[1]}") as client:
            while not await is_ready(client):
                assert process.returncode is None, f"it ended: {log}"
                await asyncio.sleep(0.05)
        yield ports[0], ports[1], ports[2]
        process.terminate()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def is_ready(client: httpx2.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).is_success
    except httpx2.TransportError:
        return False


@pytest_asyncio.fixture
async def world(database: Database, database_url: str, tmp_path: Path) -> abc.AsyncIterator[World]:
    """A database and an engine whose answers are secret, and no gateway yet."""
    engine = FakeEngine(tmp_path / "engine.sock")
    engine.script = answer_with_a_secret
    await engine.start()
    yield World(engine, database, database_url, Telemetry(None), tmp_path / "data")
    await engine.stop()


async def test_gateway_leaves_no_secret_anywhere(world: World, collector: tuple[Collector, str], tmp_path: Path):
    (received, url), left, log = collector, Left(), tmp_path / "gateway.log"
    await world.open()
    admin = await world.administrator()
    await world.close()
    async with gateway_process(world, log, url) as (address, http, metrics):
        run = SecretRun(Place(address, f"http://{http}", admin.key, MODEL))
        await run.take()
        await left.read_metrics(metrics)
    run.secrets |= {"pepper": PEPPER, "output": OUTPUT.decode()}

    left.read_files(world.data_dir)
    await left.read_database(world.database_url)
    left.places |= {f"page {name}": page.encode() for name, page in run.pages.items()}
    left.places |= {"log": log.read_bytes(), "traces": b"".join(received.raw)}

    require_searched(left, log=admin.public_id, traces="evenflow.auth", metrics="acme/search")
    require_searched(
        left, **{"page audit": "apiKeys", "table usage_event": "end_user", "table api_key": admin.public_id}
    )
    assert left.leaks(run.secrets) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_whole_installation_leaves_no_secret_anywhere(
    collector: tuple[Collector, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    received, url = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    installation, left = Installation(tmp_path / "data"), Left()
    await asyncio.to_thread(installation.up)
    try:
        status = json.loads((await asyncio.to_thread(installation.run, "status", "-o", "json")).stdout)
        http = status["http_url"].removesuffix("/v1")
        admin_key = (installation.data_dir / ADMIN_KEY_FILE).read_text().strip()
        run = SecretRun(Place(installation.address, http, admin_key, status["engines"][0]["model"]))
        await run.take()
        await left.read_metrics(status["metrics_address"])
    finally:
        code = await asyncio.to_thread(installation.stop)
    run.secrets["pepper"] = (installation.data_dir / PEPPER_FILE).read_text().strip()

    # The database's files, too, whose write-ahead log has what was there for a moment only.
    left.read_files(installation.data_dir)
    left.places |= {f"page {name}": page.encode() for name, page in run.pages.items()}
    left.places |= {"up.log": installation.log().encode(), "traces": b"".join(received.raw)}

    assert code == 0
    require_searched(left, traces="evenflow.prefill", metrics="acme/search", **{"logs/": "request finished"})
    require_searched(left, **{"page settings": "TELEMETRY_CONTENT", "pg_wal": "acme"})
    assert left.leaks(run.secrets) == []


@pytest.mark.parametrize("lead", [b"", b"k", b"ke"])
def test_search_sees_through_disguises(lead: bytes):
    secret = "0123456789abcdefghijklmnop"
    for content in (
        b"x" + secret[:16].encode(),
        secret.encode().hex().encode(),
        base64.b64encode(lead + secret.encode()),
    ):
        assert Left({"log": b"before " + content + b" after"}).leaks({"key": secret}) == ["key in log"]
    assert Left({"log": secret[:15].encode()}).leaks({"key": secret}) == []
