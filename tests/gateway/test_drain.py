"""Stopping: what runs may finish, what comes is refused, what was used is written."""

import asyncio

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from sqlalchemy import text

from gateway.server import GENERATION_SERVICE
from tests.gateway.fake_engine import FakeCall, begun
from tests.gateway.world import Tenant, World, refused


async def test_fifty_streams_finish_and_new_ones_are_refused_while_draining(world: World, tenant: Tenant) -> None:
    may_end = asyncio.Event()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await may_end.wait()
        await call.emit(b"def")
        await call.finish()

    world.engine.script = script
    streams = [tenant.stream() for _ in range(50)]
    await asyncio.gather(*(stream.read() for stream in streams))
    draining = asyncio.create_task(world.live.drain())
    await asyncio.sleep(0)

    late = await refused(tenant.stream())
    health = await health_pb2_grpc.HealthStub(world.channel()).Check(
        health_pb2.HealthCheckRequest(service=GENERATION_SERVICE)
    )
    may_end.set()

    async def rest(stream) -> tuple[str, str]:
        text, last = "", ""
        while (message := await stream.read()) is not grpc.aio.EOF:
            text, last = text + message.token_delta.text, message.WhichOneof("event")
        return text, last

    ends = await asyncio.gather(*(rest(stream) for stream in streams))
    await draining

    assert (late.code, late.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    assert late.trailers["grpc-retry-pushback-ms"] == "0"
    assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert set(ends) == {("abcdef", "finish")}
    rows = await world.usage_rows()
    assert len(rows) == 50
    assert {row["output_tokens"] for row in rows} == {6}


async def test_what_does_not_finish_in_time_ends_with_draining_and_is_billed(closed_world: World) -> None:
    world = closed_world
    world.options["drain_grace_s"] = 0.05
    await world.open()
    await world.serving()
    world.engine.script = begun
    tenant = await world.tenant()
    stream = tenant.stream()
    await stream.read()
    await stream.read()

    draining = asyncio.create_task(world.live.drain())
    refusal = await refused(stream.read())
    await draining

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
    (row,) = await world.usage_rows()
    assert (row["output_tokens"], row["source"]) == (3, "ENGINE")
    assert world.book.num_reservations == 0


async def test_usage_is_in_the_ledger_when_the_drain_is_over(world: World, tenant: Tenant) -> None:
    answers = await asyncio.gather(*(tenant.generate() for _ in range(20)))

    await world.live.drain()

    assert world.ledger.num_waiting == 0
    assert len(await world.usage_rows()) == len(answers)


async def test_a_step_of_the_drain_that_fails_keeps_none_of_the_others(
    world: World, tenant: Tenant, monkeypatch
) -> None:
    async def break_down() -> None:
        raise OSError("quota")

    with monkeypatch.context() as patched:
        patched.setattr(world.live._quota, "close", break_down)
        await tenant.generate()
        with pytest.raises(OSError, match="quota"):
            await world.live.drain()

    async with world.database.session() as session:
        assert await session.scalar(text("SELECT count(*) FROM usage_event")) == 1
        assert await session.scalar(text("SELECT count(*) FROM api_key WHERE last_used_at IS NOT NULL")) == 1
