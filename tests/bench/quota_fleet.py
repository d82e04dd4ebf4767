"""What benchmarks of the gateway run against: real gateway processes over one real Postgres, and an engine."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import abc
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from sqlalchemy import text

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from gateway import api_key
from gateway.embedded import EmbeddedPostgres
from gateway.store import migrate
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.quota_policies import update_quota_policy
from gateway.store.records import (
    ApiKeySettings,
    KeySecret,
    OrganizationSettings,
    QuotaPolicySettings,
    ResourcePath,
    TeamSettings,
)
from gateway.store.teams import create_team
from tests.gateway.fake_engine import FakeCall, FakeEngine

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import asyncio; from gateway import process, settings; asyncio.run(process.serve(settings.load_settings()))"
PEPPER = "pepper-of-the-benchmark-0123456789"
CHANGE = Change("apiKeys/bench")
ORGANIZATION = "acme"
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call, on this process's monotonic clock. `retry_s` None: admitted."""

    asked_ns: int
    known_ns: int
    retry_s: float | None


@dataclass
class Fleet:
    """Gateways that serve. A prompt of n bytes is n input tokens. `http_addresses` are empty where there is no door."""

    database: Database
    engine_address: str
    stubs: list[generation_pb2_grpc.GenerationServiceStub]
    num_failures: int = field(default=0)
    addresses: list[str] = field(default_factory=list)
    http_addresses: list[str] = field(default_factory=list)

    async def tenant(self, slug: str, settings: QuotaPolicySettings) -> str:
        """A new team with these limits; returns its key, which every gateway knows."""
        path = ResourcePath(ORGANIZATION, slug)
        await create_team(self.database, CHANGE, path, TeamSettings())
        await update_quota_policy(self.database, CHANGE, path, "default", lambda _: settings)
        fresh = await self.make_key(slug)
        await self.known(fresh.text)
        return fresh.text

    async def make_key(self, team: str) -> api_key.GeneratedKey:
        """One more key of the team."""
        fresh = api_key.generate()
        secret = KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
        at = ResourcePath(ORGANIZATION, team, fresh.public_id)
        await create_key(self.database, CHANGE, at, ApiKeySettings(), secret)
        return fresh

    async def known(self, key: str) -> None:
        """Return when every gateway takes the key."""
        await asyncio.gather(*(self._known(stub, key) for stub in self.stubs))

    async def call(self, key: str, num_tokens: int, gateway: int, *, is_stream: bool = False) -> Outcome:
        """One request. Raises AioRpcError for everything but a refusal by a limit."""
        stub = self.stubs[gateway % len(self.stubs)]
        spec = pb.GenerationSpec(text="x" * num_tokens, stopping=pb.StoppingOptions(max_output_tokens=1))
        metadata, asked_ns = (("authorization", f"Bearer {key}"),), time.monotonic_ns()
        try:
            if is_stream:
                async for _ in stub.StreamGenerate(pb.StreamGenerateRequest(spec=spec), metadata=metadata):
                    pass
            else:
                await stub.Generate(pb.GenerateRequest(spec=spec), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return Outcome(asked_ns, time.monotonic_ns(), _retry_s(error))
        return Outcome(asked_ns, time.monotonic_ns(), None)

    async def num_turns(self) -> int:
        """Statements that the gateways have sent to share quotas, since they began."""
        async with self.database.session() as session:
            return int((await session.execute(text("SELECT sum(number) FROM replica"))).scalar_one())

    async def _known(self, stub: generation_pb2_grpc.GenerationServiceStub, key: str) -> None:
        request = pb.CountTokensRequest(text="x")
        while True:
            try:
                await stub.CountTokens(request, metadata=(("authorization", f"Bearer {key}"),))
                return
            except grpc.aio.AioRpcError:
                await asyncio.sleep(0.02)


@asynccontextmanager
async def scripted_engine(directory: Path) -> abc.AsyncIterator[str]:
    """The address of an engine that answers each request with one token."""
    engine = FakeEngine(directory / "engine.sock")
    engine.script = one_token
    await engine.start()
    yield engine.address
    await engine.stop()


@asynccontextmanager
async def running(
    num_gateways: int,
    main: str = MAIN,
    engine: abc.Callable[[Path], AbstractAsyncContextManager[str]] = scripted_engine,
) -> abc.AsyncIterator[Fleet]:
    """A fleet of so many processes that run `main`, all of them ready."""
    with tempfile.TemporaryDirectory(prefix="evenflow-") as name:
        async with engine(Path(name)) as address, _gateways(Path(name), num_gateways, main, address) as fleet:
            yield fleet


@asynccontextmanager
async def _gateways(directory: Path, num_gateways: int, main: str, engine: str) -> abc.AsyncIterator[Fleet]:
    server = EmbeddedPostgres(directory / "store")
    url = await server.start()
    await migrate.upgrade(url)
    database = Database(url)
    await create_organization(database, CHANGE, ResourcePath(ORGANIZATION), OrganizationSettings())
    data_dirs = [Path(tempfile.mkdtemp(dir=directory)) for _ in range(num_gateways)]
    processes = [await _start(data_dir, main, engine, url) for data_dir in data_dirs]
    drains: list[asyncio.Task[None]] = []
    try:
        ready = await asyncio.gather(*(_ready(process) for process in processes))
        drains.extend(asyncio.create_task(_drain(process)) for process in processes)
        addresses, http_addresses = [each[0] for each in ready], [each[1] for each in ready]
        channels = [grpc.aio.insecure_channel(address) for address in addresses]
        stubs = [generation_pb2_grpc.GenerationServiceStub(channel) for channel in channels]
        yield Fleet(database, engine, stubs, addresses=addresses, http_addresses=http_addresses)
        for channel in channels:
            await channel.close()
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        await asyncio.gather(*(process.wait() for process in processes))
        await asyncio.gather(*drains)
        await database.close()
        await server.stop()


async def one_token(call: FakeCall) -> None:
    """The shortest complete output; forgotten, because there are many."""
    await call.accept()
    await call.admit()
    await call.emit(b"x")
    await call.finish()


def _retry_s(error: grpc.aio.AioRpcError) -> float:
    retry = error_details_pb2.RetryInfo()
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToNanoseconds()) / NS_PER_S
    raise error


async def _start(data_dir: Path, main: str, engine: str, url: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    settings = {
        "EVENFLOW_GATEWAY_LISTEN": "127.0.0.1:0",
        "EVENFLOW_GATEWAY_METRICS_LISTEN": "off",
        "EVENFLOW_GATEWAY_ENGINE": engine,
        "EVENFLOW_DATABASE_URL": url,
        "EVENFLOW_PEPPER": PEPPER,
        "EVENFLOW_DATA_DIR": str(data_dir),
    }
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", main, cwd=ROOT, stderr=asyncio.subprocess.PIPE, env={**environment, **settings}
    )


async def _ready(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """The addresses of a gateway that has found the engine: gRPC's, and the HTTP door's, if it has one."""
    assert process.stderr is not None
    addresses = {"gateway listening": "", "http listening": ""}
    lines = []
    while line := await process.stderr.readline():
        lines.append(line.decode())
        told = json.loads(line) if line.startswith(b"{") else {"event": ""}
        if told["event"] in addresses:
            addresses[told["event"]] = told["address"]
        if told["event"] == "engine ready":
            return addresses["gateway listening"], addresses["http listening"]
    raise RuntimeError(f"a gateway ended before it was ready:\n{''.join(lines)}")


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read its log to the end, so that it never waits for a reader; problems are shown."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if b'"level": "error"' in line or b'"level": "warning"' in line:
            print(line.decode().rstrip(), file=sys.stderr)
