"""The processes of the benchmarks of overhead: upstream, hop, clients, and a gateway with everything on."""

import asyncio
import json
import sys
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from gateway.store.enums import Dimension
from gateway.store.quota_policies import create_quota_policy, update_quota_policy
from gateway.store.records import DEFAULT_POLICY, QuotaLimit, QuotaPolicySettings, ResourcePath, TeamSettings
from gateway.store.teams import create_team
from tests.bench.load_shape import Shape
from tests.bench.quota_fleet import CHANGE, MAIN, ORGANIZATION, ROOT, Fleet, running

TEAM = "search"
NS_PER_S = 1_000_000_000
FAR = 1_000_000_000  # per second: a limit that is counted and never reached
COUNTED = (Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS)
LINE_BYTES = 2**20


class Child:
    """A process of ours that speaks lines of JSON."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def tell(self, message: abc.Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Its next line, in answer to `message`. Raises RuntimeError if it ends instead."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if message is not None:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
        line = await self.process.stdout.readline()
        if not line:
            raise RuntimeError("a process of the benchmark ended; what it said is above")
        return json.loads(line)


@asynccontextmanager
async def child(module: str, *words: str, python: str = sys.executable) -> abc.AsyncIterator[Child]:
    """`python -m module words`, until the end of the block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        python, "-m", module, *words, cwd=ROOT, stdin=pipe, stdout=pipe, limit=LINE_BYTES
    )
    try:
        yield Child(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Side:
    """Where calls go, and with which key."""

    address: str
    key: str = ""


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process that serves `side` over gRPC and `http` over HTTP."""

    side: Side
    http: Side
    process: psutil.Process

    def rss_mb(self) -> float:
        return self.process.memory_info().rss / 2**20

    def cpu_s(self) -> float:
        """User and system time of the process so far."""
        times = self.process.cpu_times()
        return times.user + times.system


@asynccontextmanager
async def gateway(upstream: abc.Mapping[str, str], *, traced_share: float = 0.1) -> abc.AsyncIterator[Gateway]:
    """A gateway over the upstream's engine: a key, limits at key, team and organization, ledger, that share traced."""
    collector = f"http://{upstream['direct_tcp']}"
    traced = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio"}
    environment = {**traced, "OTEL_TRACES_SAMPLER_ARG": str(traced_share)} if traced_share else {}
    environment["EVENFLOW_GATEWAY_HTTP_LISTEN"] = "127.0.0.1:0"
    main = f"import os; os.environ.update({environment!r}); {MAIN}"

    @asynccontextmanager
    async def engine(_directory: Path) -> abc.AsyncIterator[str]:
        yield upstream["engine"]

    before = {process.pid for process in psutil.Process().children()}
    async with running(1, main, engine) as fleet:
        (process,) = (
            process
            for process in psutil.Process().children()
            if process.pid not in before and main in process.cmdline()
        )
        key = await limited_key(fleet)
        yield Gateway(Side(fleet.addresses[0], key), Side(f"http://{fleet.http_addresses[0]}", key), process)


async def limited_key(fleet: Fleet) -> str:
    """A key that is under limits of its own, of its team and of its organization, none of them ever reached."""
    limits = tuple(QuotaLimit(dimension, FAR, 1000, FAR) for dimension in COUNTED)
    team = ResourcePath(ORGANIZATION, TEAM)
    await create_team(fleet.database, CHANGE, team, TeamSettings())
    fresh = await fleet.make_key(TEAM)
    settings = QuotaPolicySettings(limits=limits)
    for path in (ResourcePath(ORGANIZATION), team):
        await update_quota_policy(fleet.database, CHANGE, path, DEFAULT_POLICY, lambda _: settings)
    at = ResourcePath(ORGANIZATION, TEAM, fresh.public_id)
    await create_quota_policy(
        fleet.database, CHANGE, at, DEFAULT_POLICY, QuotaPolicySettings(weight=None, limits=limits)
    )
    await fleet.known(fresh.text)
    return fresh.text


def job(
    side: Side,
    shape: Shape,
    duration_s: float,
    *,
    is_stream: bool = False,
    rate: float = 0,
    callers: int = 0,
    min_samples: int = 0,
) -> dict[str, Any]:
    """What a client process is told: an open loop of `rate` calls per second, or a closed one of so many callers."""
    return {
        "address": side.address,
        "key": side.key,
        "prompt": shape.prompt,
        "max_tokens": shape.num_tokens,
        "is_stream": is_stream,
        "rate": rate,
        "callers": callers,
        "warm_s": min(1.0, duration_s / 2),
        "duration_s": duration_s,
        "min_samples": min_samples,
    }
