"""A gateway as a process: it starts, answers, and ends as its supervisor expects."""

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path

import grpc
import pytest

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from gateway.errors import SettingsError
from gateway.server import Gateway
from gateway.settings import load_settings
from gateway.telemetry import Telemetry
from tests.gateway.fake_engine import FakeCall, FakeEngine, begun
from tests.gateway.world import PEPPER, World, make_spec
from tests.silent_server import silent_server

ROOT = Path(__file__).resolve().parents[2]
MAIN = "import asyncio; from gateway import process, settings; asyncio.run(process.serve(settings.load_settings()))"


async def start_process(world: World, port: int, main: str = MAIN, **variables: str) -> asyncio.subprocess.Process:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        main,
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        env={
            **environment,
            "EVENFLOW_GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "EVENFLOW_GATEWAY_ENGINE": world.engine.address,
            "EVENFLOW_DATABASE_URL": world.database_url,
            "EVENFLOW_PEPPER": PEPPER,
            "EVENFLOW_DATA_DIR": str(world.data_dir),
            **variables,
        },
    )


async def next_event(process: asyncio.subprocess.Process, event: str) -> dict:
    """The log line of this event; waits for it."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        told = json.loads(line)
        if told["event"] == event:
            return told
    raise AssertionError(f"the process ended before it said {event!r}")


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_sigterm_lets_the_running_stream_finish_writes_the_ledger_and_exits_0(
    world: World, free_port: int
) -> None:
    may_end = asyncio.Event()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await may_end.wait()
        await call.finish()

    world.engine.script = script
    tenant = await world.tenant()
    process = await start_process(world, free_port)
    try:
        await next_event(process, "engine ready")
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{free_port}")
        request = pb.StreamGenerateRequest(spec=make_spec())
        stream = generation_pb2_grpc.GenerationServiceStub(channel).StreamGenerate(request, metadata=tenant.metadata)
        await stream.read()
        process.send_signal(signal.SIGTERM)
        await next_event(process, "gateway draining")
        may_end.set()
        messages = [message async for message in _rest(stream)]
        code = await process.wait()
        await channel.close()
    finally:
        if process.returncode is None:
            process.kill()

    assert code == 0
    assert messages[-1].finish.usage.output_tokens == 3
    assert len(await world.usage_rows()) == 1


async def test_a_second_signal_ends_the_process_at_once(world: World, free_port: int) -> None:
    world.engine.script = begun
    tenant = await world.tenant()
    process = await start_process(world, free_port)
    try:
        await next_event(process, "engine ready")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{free_port}") as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            request = pb.StreamGenerateRequest(spec=make_spec())
            stream = stub.StreamGenerate(request, metadata=tenant.metadata)
            await stream.read()
            process.send_signal(signal.SIGTERM)
            await next_event(process, "gateway draining")  # which the open stream holds up for its grace time
            process.send_signal(signal.SIGINT)
            code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()

    assert code == 128 + signal.SIGINT


async def test_a_collector_that_never_answers_does_not_hold_the_process(world: World, free_port: int) -> None:
    async with silent_server() as port:
        endpoint = f"http://127.0.0.1:{port}"
        # The exporter's own patience is beyond the test's, so that only ours can end the wait.
        process = await start_process(
            world, free_port, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_EXPORTER_OTLP_TIMEOUT="3600"
        )
        try:
            await next_event(process, "engine ready")
            async with grpc.aio.insecure_channel(f"127.0.0.1:{free_port}") as channel:
                stub = generation_pb2_grpc.GenerationServiceStub(channel)
                await stub.Generate(
                    pb.GenerateRequest(spec=make_spec()), metadata=(await world.tenant()).metadata, wait_for_ready=True
                )
            process.send_signal(signal.SIGTERM)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()

    assert code == 0


BROKEN = """
import asyncio
from gateway import ledger, process, server, settings

class LoudLedger(ledger.Ledger):
    async def run(self):
        while not self.num_waiting:
            await asyncio.sleep(0.001)
        raise LookupError("a bug of the writer")

server.Ledger = LoudLedger
asyncio.run(process.serve(settings.load_settings()))
"""


async def test_a_bug_in_the_background_ends_the_gateway_with_its_streams_finished_and_its_usage_written(
    world: World, free_port: int
) -> None:
    may_end = asyncio.Event()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        if bytes(call.start.prompt_token_ids) == b"slow":
            await may_end.wait()
        await call.finish()

    world.engine.script = script
    tenant = await world.tenant()
    process = await start_process(world, free_port, BROKEN)
    try:
        await next_event(process, "engine ready")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{free_port}") as channel:
            stub = generation_pb2_grpc.GenerationServiceStub(channel)
            slow = stub.StreamGenerate(
                pb.StreamGenerateRequest(spec=make_spec(text="slow")), metadata=tenant.metadata, wait_for_ready=True
            )
            await slow.read()
            await stub.Generate(pb.GenerateRequest(spec=make_spec(text="quick")), metadata=tenant.metadata)
            failure = await next_event(process, "gateway failed")
            await next_event(process, "gateway draining")
            may_end.set()
            messages = [message async for message in _rest(slow)]
        code = await process.wait()
    finally:
        if process.returncode is None:
            process.kill()

    assert "a bug of the writer" in failure["exception"]
    assert code == 1
    assert messages[-1].finish.usage.output_tokens == 3
    assert len(await world.usage_rows()) == 2


async def _rest(stream):
    while (message := await stream.read()) is not grpc.aio.EOF:
        yield message


def settings_of(engine: FakeEngine, url: str, **options):
    return load_settings(engine=engine.address, database_url=url, pepper=PEPPER, **options)


async def test_a_port_in_use_is_named(world: World) -> None:
    port = world.live.address.rpartition(":")[2]

    with pytest.raises(SettingsError, match=rf"^listen: port {port} of 127\.0\.0\.1 is in use"):
        Gateway(settings_of(world.engine, world.database_url, listen=world.live.address), Telemetry(None))


async def test_several_gateways_share_a_port_when_told_to(
    engine: FakeEngine, database_url: str, free_port: int
) -> None:
    settings = settings_of(engine, database_url, listen=f"127.0.0.1:{free_port}", reuse_port=True)
    gateways = [Gateway(settings, Telemetry(None)) for _ in range(2)]

    assert {gateway.address for gateway in gateways} == {f"127.0.0.1:{free_port}"}
    for gateway in gateways:
        await gateway.close()


async def test_a_database_url_of_another_kind_stops_the_start(engine: FakeEngine) -> None:
    with pytest.raises(SettingsError, match=r"^database_url: "):
        Gateway(settings_of(engine, "mysql://h/d"), Telemetry(None))


async def test_a_database_without_the_schema_stops_the_start(engine: FakeEngine, empty_database_url: str) -> None:
    gateway = Gateway(settings_of(engine, empty_database_url, listen="127.0.0.1:0"), Telemetry(None))

    with pytest.raises(SettingsError, match=r"^database_url: .*schema"):
        await gateway.start()
    await gateway.close()


async def test_the_gateway_never_loads_a_tensor_library() -> None:
    check = "import sys, gateway.process; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", check, cwd=ROOT)

    assert await process.wait() == 0
