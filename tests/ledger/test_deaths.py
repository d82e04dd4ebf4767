"""Processes that are killed under load: the ledger has every generation once, and no word of any prompt."""

import asyncio
import json
import signal
import tempfile
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from sqlalchemy import text

from tests.engine.engine_process import EngineProcess, engine_process
from tests.engine.fake_runner import FIRST_TOKEN
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.test_process import free_port, next_event, start_process
from tests.gateway.world import World
from tests.ledger.events import rollups
from tests.ledger.load import MARKER, Load, make_key, under

__all__ = ["free_port"]


def ended_in_engine(engine: EngineProcess) -> dict[str, int]:
    """Sampled tokens of every generation that ended there."""
    lines = [json.loads(line) for line in engine.log.splitlines() if line.startswith("{")]
    ends = [line for line in lines if line["event"] == "request finished"]
    sampled = {line["generation_id"]: line["output_tokens"] for line in ends}
    assert len(sampled) == len(ends)
    return sampled


async def ledger_rows(world: World) -> list[dict[str, object]]:
    async with world.database.session() as session:
        return [dict(row) for row in (await session.execute(text("SELECT * FROM usage_event"))).mappings()]


async def until_all_are_in_the_ledger(world: World, engine: EngineProcess) -> list[dict[str, object]]:
    while True:
        rows = await ledger_rows(world)
        if {str(row["generation_id"]) for row in rows} >= ended_in_engine(engine).keys():
            return rows
        await asyncio.sleep(0.1)


@dataclass
class GatewayProcess:
    """A gateway that has found its engine. What it logs from then on is in `log`, when it has ended."""

    process: asyncio.subprocess.Process
    reading: asyncio.Task[bytes]

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert await self.process.wait() == 0

    async def log(self) -> str:
        return (await self.reading).decode()


@asynccontextmanager
async def gateway_process(world: World, engine: EngineProcess, port: int, database_url: str, **variables: str):
    """A gateway on that port, which is gone at the end however the test goes."""
    variables |= {"EVENFLOW_GATEWAY_ENGINE": engine.target, "EVENFLOW_DATABASE_URL": database_url}
    process = await start_process(world, port, **variables)
    try:
        await next_event(process, "engine ready")
        gateway = GatewayProcess(process, asyncio.create_task(process.stderr.read()))
        yield gateway
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    await gateway.reading


@pytest.fixture
def engine_alone(tmp_path: Path) -> abc.Iterator[EngineProcess]:
    with engine_process("tests.ledger.engine_process", tmp_path, "--log-format", "json") as process:
        process.wait_until_serving()
        yield process


@pytest_asyncio.fixture
async def proxy(database_url: str) -> abc.AsyncIterator[PostgresProxy]:
    with tempfile.TemporaryDirectory() as directory:  # a socket's path must be short
        door = PostgresProxy(database_url, Path(directory))
        await door.open()
        yield door
        await door.shut()


def files_below(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())


async def dump_of(world: World) -> str:
    async with world.database.session() as session:
        tables = await session.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'"))
        rows = [await session.scalars(text(f"SELECT t::text FROM {name} AS t")) for name in tables.all()]
        return "\n".join(row for each in rows for row in each)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_database", [True, False], ids=["with the database", "without the database"])
async def test_a_killed_gateways_ledger_is_complete_after_the_restart(
    closed_world: World, engine_alone: EngineProcess, proxy: PostgresProxy, free_port: int, has_database: bool
) -> None:
    world, engine = closed_world, engine_alone
    load = Load(free_port, await make_key(world))
    async with under(load):
        async with gateway_process(world, engine, free_port, proxy.url) as first:
            await load.finishes(20)
            if not has_database:
                await proxy.shut()
                await load.finishes(20)
            await first.kill()
        spool = files_below(world.data_dir)
        if not has_database:
            await proxy.open()
        async with gateway_process(world, engine, free_port, proxy.url) as second:
            await load.finishes(20)
            await load.stop()
            rows = await until_all_are_in_the_ledger(world, engine)
            await second.stop()

    sampled = ended_in_engine(engine)
    assert {str(row["generation_id"]) for row in rows} == sampled.keys()
    assert len(rows) == len(sampled)
    for row in rows:
        generation_id = str(row["generation_id"])
        assert row["output_tokens"] + row["discarded_tokens"] == sampled[generation_id]
        assert row["source"] == "ENGINE"
        assert row["output_tokens"] >= load.delivered.get(generation_id, 0)
        if generation_id in load.finished:
            assert row["billed_tokens"] == load.finished[generation_id].billed_tokens
    assert "usage by the engine's word" in await second.log()
    kept, counted = await rollups(world.database)
    assert kept == counted
    everything = [spool, files_below(world.data_dir), (await dump_of(world)).encode(), engine.log.encode()]
    everything += [(await first.log()).encode(), (await second.log()).encode()]
    assert all(MARKER.encode() not in part for part in everything)
    assert bytes(range(FIRST_TOKEN + 30, FIRST_TOKEN + 40)) not in b"".join(everything)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_survivor_completes_a_killed_gateways_ledger_without_a_restart(
    closed_world: World, engine_alone: EngineProcess, proxy: PostgresProxy, free_port: int
) -> None:
    world, engine = closed_world, engine_alone
    load = Load(free_port, await make_key(world))
    shared = {"EVENFLOW_GATEWAY_REUSE_PORT": "true"}
    async with (
        gateway_process(world, engine, free_port, proxy.url, **shared) as killed,
        gateway_process(world, engine, free_port, proxy.url, **shared) as survivor,
        under(load, num_channels=6),  # the kernel gives each connection to one of the processes
    ):
        await proxy.shut()
        await load.finishes(200)
        await killed.kill()
        await proxy.open()
        await load.finishes(100)
        await load.stop()
        rows = await until_all_are_in_the_ledger(world, engine)
        await survivor.stop()

    sampled = ended_in_engine(engine)
    assert {str(row["generation_id"]): row["output_tokens"] + row["discarded_tokens"] for row in rows} == sampled
    assert len(rows) == len(sampled)
    assert "usage of a process that ended is taken over" in await survivor.log()
    assert "usage by the engine's word" in await survivor.log()


@pytest.mark.timeout(300)
async def test_a_killed_engines_requests_are_billed_for_what_was_delivered(
    closed_world: World, free_port: int, tmp_path: Path, database_url: str
) -> None:
    world = closed_world
    load = Load(free_port, await make_key(world))
    engine_of = partial(engine_process, "tests.ledger.engine_process", tmp_path, "--log-format", "json")
    with engine_of() as engine:
        engine.wait_until_serving()
        async with gateway_process(world, engine, free_port, database_url) as gateway, under(load):
            await load.finishes(20)
            engine.process.send_signal(signal.SIGKILL)
            engine.exit_code()
            with engine_of():
                await load.finishes(20)
                await load.stop()
                await gateway.stop()

    rows = {str(row["generation_id"]): row for row in await ledger_rows(world)}
    # One that a stop string had ended is complete, though the engine died before it could confirm that.
    cut = [row for name, row in rows.items() if row["source"] == "GATEWAY" and name not in load.finished]
    assert set(load.failures) <= {grpc.StatusCode.UNAVAILABLE}
    assert rows.keys() >= load.delivered.keys()
    assert cut
    for row in cut:
        assert row["finish_reason"] == "ERROR"
        assert row["output_tokens"] == load.delivered.get(str(row["generation_id"]), 0)
        assert row["billed_tokens"] == row["input_tokens"] + row["output_tokens"]
    for generation_id, usage in load.finished.items():
        assert rows[generation_id]["billed_tokens"] == usage.billed_tokens
