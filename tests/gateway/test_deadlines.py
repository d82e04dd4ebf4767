"""Deadlines and waits, from the caller to the engine and back."""

import asyncio

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.fake_engine import FakeCall, hello
from tests.gateway.world import Tenant, World, eventually, refused

PARTIAL = pb.AdmissionOptions(on_deadline=pb.DEADLINE_ACTION_PARTIAL)


async def turned_away(call: FakeCall) -> None:
    """The engine reckons that the prompt alone takes longer than is left."""
    await call.accept()
    await call.finish(engine_pb2.FINISH_REASON_DEADLINE)


@pytest.mark.parametrize("admission", [pb.AdmissionOptions(), PARTIAL])
async def test_a_deadline_that_cannot_be_met_is_refused_at_once(
    world: World, tenant: Tenant, admission: pb.AdmissionOptions
) -> None:
    world.engine.script = turned_away

    for refusal in (
        await refused(tenant.generate(timeout=60, admission=admission)),
        await refused(tenant.stream(timeout=60, admission=admission)),
    ):
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_UNATTAINABLE")
        assert refusal.retry is None
    assert [row["billed_tokens"] for row in await world.usage_rows()] == [0, 0]


async def test_a_deadline_that_passes_in_the_queue_is_no_refusal(world: World, tenant: Tenant) -> None:
    async def passed_in_the_queue(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE, queue_ns=call.start.deadline_ns)

    world.engine.script = passed_in_the_queue
    error = await refused(tenant.generate(timeout=60))
    partial = await tenant.generate(timeout=60, admission=PARTIAL)

    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert error.info.metadata == {"input_tokens": "0", "output_tokens": "0"}
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE
    assert not partial.outputs[0].text
    assert partial.usage.billed_tokens == 0


async def test_what_is_left_of_the_callers_time_is_what_the_engine_gets(world: World, tenant: Tenant) -> None:
    await tenant.generate(timeout=40)
    await tenant.generate()

    with_deadline, without = world.engine.calls
    assert 30e9 < with_deadline.start.deadline_ns < 40e9
    assert not without.start.HasField("deadline_ns")


@pytest.mark.parametrize("kind", ["generate", "stream"])
async def test_a_wait_that_is_too_long_says_so_and_costs_nothing(world: World, tenant: Tenant, kind: str) -> None:
    async def waits(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    world.engine.script = waits
    admission = pb.AdmissionOptions(max_queue_wait=Duration(seconds=3))
    refusal = await refused(getattr(tenant, kind)(admission=admission))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert world.engine.calls[0].start.max_queue_wait_ns == 3_000_000_000
    assert [row["billed_tokens"] for row in await world.usage_rows()] == [0]


async def test_a_detached_generation_ends_by_its_own_deadline(world: World, tenant: Tenant) -> None:
    async def slow(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await asyncio.sleep(call.start.deadline_ns / 1e9)
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE)

    world.engine.script = slow
    stream = tenant.stream(timeout=1.0, admission=pb.AdmissionOptions(detach_on_disconnect=True))
    await stream.read()
    stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)

    (row,) = await world.usage_rows()
    assert (row["finish_reason"], row["billed_tokens"]) == ("DEADLINE", 5)


async def test_a_deadline_that_has_passed_reaches_no_engine(world: World, tenant: Tenant) -> None:
    refusal = await refused(tenant.generate(timeout=0.0))
    world.engine.script = hello
    assert (await tenant.generate()).outputs[0].text == "hello"

    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(world.engine.calls) == 1
