"""Two gateway processes that share their ports, one engine process, and a real Prometheus that scrapes all three."""

import asyncio
import json
import os
import socket
import sys
import urllib.parse
import urllib.request
from collections import Counter, abc
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import grpc

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from gateway import api_key
from gateway.store.db import Database
from gateway.store.enums import Dimension
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.quota_policies import update_quota_policy
from gateway.store.records import (
    ApiKeySettings,
    KeySecret,
    OrganizationSettings,
    QuotaLimit,
    QuotaPolicySettings,
    ResourcePath,
    TeamSettings,
)
from gateway.store.teams import create_team
from tests.gateway.world import CHANGE, PEPPER, make_spec

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy/prometheus"
GATEWAY = "import asyncio; from gateway import process, settings; asyncio.run(process.serve(settings.load_settings()))"
HOUR_MS = 3_600_000  # nothing refills while a test runs
THREE = QuotaLimit(Dimension.REQUESTS, 3, HOUR_MS, 3)


@dataclass
class Fleet:
    """What runs, and what clients saw of it: ends by status and tenant, and tokens by tenant."""

    address: str
    http_url: str
    pages: dict[str, str]
    keys: dict[str, str]
    prometheus: str = ""
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    output_tokens: Counter[str] = field(default_factory=Counter)

    async def generate(self, tenant: str, num_tokens: int) -> None:
        """One request on a connection of its own, which reaches either gateway."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        async with grpc.aio.insecure_channel(self.address, options=options) as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            spec = make_spec(stopping={"max_output_tokens": num_tokens, "ignore_eos": True})
            metadata = (("authorization", f"Bearer {self.keys[tenant]}"),)
            try:
                answer = await stub.Generate(pb.GenerateRequest(spec=spec), metadata=metadata)
            except grpc.aio.AioRpcError as error:
                self.answers[error.code().name, tenant] += 1
                return
        self.answers["OK", tenant] += 1
        self.output_tokens[tenant] += answer.usage.output_tokens

    async def complete(self, tenant: str, num_tokens: int) -> None:
        """The same over HTTP."""
        body = json.dumps({"model": "fake", "prompt": "hi", "max_tokens": num_tokens}).encode()
        headers = {"authorization": f"Bearer {self.keys[tenant]}", "content-type": "application/json"}
        request = urllib.request.Request(f"{self.http_url}/v1/completions", body, headers)
        answer = json.loads(await asyncio.to_thread(read, request))
        self.answers["HTTP", tenant] += 1
        self.output_tokens[tenant] += answer["usage"]["completion_tokens"]

    async def query(self, text: str) -> list[dict]:
        """Prometheus's answer. AssertionError if the query is refused."""
        url = f"{self.prometheus}/api/v1/query?{urllib.parse.urlencode({'query': text})}"
        try:
            answer = json.loads(await asyncio.to_thread(read, url))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{text}: {error.read().decode()}") from error
        assert answer["status"] == "success", (text, answer)
        return answer["data"]["result"]

    async def number(self, text: str) -> float:
        """The one value of a query; 0 where there is none."""
        found = await self.query(text)
        assert len(found) <= 1, (text, found)
        return float(found[0]["value"][1]) if found else 0.0

    async def until(self, text: str, value: float) -> None:
        """Return when the query has that value; the test's own time limit ends a wait that is in vain."""
        while await self.number(text) != value:  # noqa: ASYNC110 - Prometheus announces nothing
            await asyncio.sleep(0.2)


def read(request: str | urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


@asynccontextmanager
async def fleet(folder: Path, database_url: str, prometheus: str) -> abc.AsyncIterator[Fleet]:
    """All of it, ready. `prometheus` is the program."""
    keys = await make_tenants(database_url)
    async with AsyncExitStack() as stack:
        engine = f"unix:{folder}/e.sock"
        flags = ("--listen", engine, "--metrics-listen", "127.0.0.1:0", "--log-format", "json")
        told = [await stack.enter_async_context(started("-m", "tests.telemetry.engine_process", *flags))]
        port, http_port = free_port(), free_port()
        for index in range(2):
            environment = gateway_environment(folder / f"g{index}", engine, database_url, port, http_port)
            told.append(await stack.enter_async_context(started("-c", GATEWAY, environment=environment)))
        await until_told(told[0], "serving")
        for gateway in told[1:]:
            await until_told(gateway, "engine ready")
        pages = {"engine": told[0]["listening"]["metrics"]} | {
            f"gateway{index}": gateway["metrics listening"]["address"] for index, gateway in enumerate(told[1:])
        }
        running = Fleet(f"127.0.0.1:{port}", f"http://127.0.0.1:{http_port}", pages, keys)
        running.prometheus = await stack.enter_async_context(scraping(folder, prometheus, pages))
        yield running


async def make_tenants(database_url: str) -> dict[str, str]:
    """Keys by tenant. `acme/limited` may ask three times."""
    database, keys = Database(database_url), {}
    await create_organization(database, CHANGE, ResourcePath("acme"), OrganizationSettings())
    for team in ("search", "batch", "limited"):
        path, fresh = ResourcePath("acme", team), api_key.generate()
        await create_team(database, CHANGE, path, TeamSettings())
        secret = KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
        await create_key(database, CHANGE, ResourcePath("acme", team, fresh.public_id), ApiKeySettings(), secret)
        keys[f"acme/{team}"] = fresh.text
    limits = QuotaPolicySettings(limits=(THREE,))
    await update_quota_policy(database, CHANGE, ResourcePath("acme", "limited"), "default", lambda _: limits)
    await database.close()
    return keys


def gateway_environment(data_dir: Path, engine: str, database_url: str, port: int, http_port: int) -> dict[str, str]:
    return {
        "EVENFLOW_GATEWAY_LISTEN": f"127.0.0.1:{port}",
        "EVENFLOW_GATEWAY_HTTP_LISTEN": f"127.0.0.1:{http_port}",
        "EVENFLOW_GATEWAY_REUSE_PORT": "true",
        "EVENFLOW_GATEWAY_ENGINE": engine,
        "EVENFLOW_DATABASE_URL": database_url,
        "EVENFLOW_PEPPER": PEPPER,
        "EVENFLOW_DATA_DIR": str(data_dir),
    }


Told = dict[str, dict]
"""The last log line of each event, and under "" the task that reads them."""


@asynccontextmanager
async def started(*arguments: str, environment: dict[str, str] | None = None) -> abc.AsyncIterator[Told]:
    """A Python process, whose log is read until it ends; killed with the block: how they stop is for other tests."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVENFLOW_", "OTEL_"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *arguments), cwd=ROOT, stderr=asyncio.subprocess.PIPE, env={**clean, **(environment or {})}
    )
    told: Told = {}
    reading = asyncio.create_task(_read_log(process, told))
    try:
        yield told
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await reading


async def _read_log(process: asyncio.subprocess.Process, told: Told) -> None:
    assert process.stderr is not None
    while line := await process.stderr.readline():
        entry = json.loads(line) if line.startswith(b"{") else {"event": line.decode()}
        told[entry["event"]] = entry
    told["ended"] = {}


async def until_told(told: Told, event: str) -> None:
    while event not in told:
        assert "ended" not in told, f"it ended before it said {event!r}: {list(told)}"
        await asyncio.sleep(0.02)


@asynccontextmanager
async def scraping(folder: Path, program: str, pages: dict[str, str]) -> abc.AsyncIterator[str]:
    """A Prometheus with this repository's rules that has scraped every page; its URL."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [address]}]} for name, address in pages.items()]
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES / "rules.yml"), str(RULES / "alerts.yml")],
        "scrape_configs": jobs,
    }
    path = folder / "prometheus.yml"
    path.write_text(json.dumps(config))  # which is YAML, too
    url = f"127.0.0.1:{free_port()}"
    flags = (f"--config.file={path}", f"--storage.tsdb.path={folder / uuid4().hex}", f"--web.listen-address={url}")
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(program, *flags, stderr=log, stdout=log)
    try:
        await _until_up(f"http://{url}", len(pages), process)
        yield f"http://{url}"
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_up(url: str, num_pages: int, process: asyncio.subprocess.Process) -> None:
    running = Fleet("", "", {}, {}, prometheus=url)
    while True:
        assert process.returncode is None, "Prometheus has ended: see prometheus.log"
        try:
            if await running.number("sum(up)") == num_pages:
                return
        except (OSError, AssertionError):
            pass  # it has not begun to answer
        await asyncio.sleep(0.1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
