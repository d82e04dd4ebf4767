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
    shared_world: World, own_tenant: Tenant, admission: pb.AdmissionOptions
) -> None:
    shared_world.engine.script = turned_away

    for refusal in (
        await refused(own_tenant.generate(timeout=60, admission=admission)),
        await refused(own_tenant.stream(timeout=60, admission=admission)),
    ):
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "DEADLINE_UNATTAINABLE")
        assert refusal.retry is None
    assert [row["billed_tokens"] for row in await shared_world.usage_rows(own_tenant)] == [0, 0]


async def test_a_deadline_that_passes_in_the_queue_is_no_refusal(shared_world: World, own_tenant: Tenant) -> None:
    async def passed_in_the_queue(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE, queue_ns=call.start.deadline_ns)

    shared_world.engine.script = passed_in_the_queue
    error = await refused(own_tenant.generate(timeout=60))
    partial = await own_tenant.generate(timeout=60, admission=PARTIAL)

    assert (error.code, error.info.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED")
    assert error.info.metadata == {"input_tokens": "0", "output_tokens": "0"}
    assert partial.outputs[0].finish_reason == pb.FINISH_REASON_DEADLINE
    assert not partial.outputs[0].text
    assert partial.usage.billed_tokens == 0


async def test_what_is_left_of_the_callers_time_is_what_the_engine_gets(
    shared_world: World, own_tenant: Tenant
) -> None:
    await own_tenant.generate(timeout=40)
    await own_tenant.generate()

    with_deadline, without = shared_world.engine.calls
    assert 30e9 < with_deadline.start.deadline_ns < 40e9
    assert not without.start.HasField("deadline_ns")


@pytest.mark.parametrize("kind", ["generate", "stream"])
async def test_a_wait_that_is_too_long_says_so_and_costs_nothing(
    shared_world: World, own_tenant: Tenant, kind: str
) -> None:
    async def waits(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    shared_world.engine.script = waits
    admission = pb.AdmissionOptions(max_queue_wait=Duration(seconds=3))
    refusal = await refused(getattr(own_tenant, kind)(admission=admission))

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_TIMEOUT")
    assert shared_world.engine.calls[0].start.max_queue_wait_ns == 3_000_000_000
    assert [row["billed_tokens"] for row in await shared_world.usage_rows(own_tenant)] == [0]


async def test_a_detached_generation_ends_by_its_own_deadline(shared_world: World, own_tenant: Tenant) -> None:
    async def slow(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await asyncio.sleep(call.start.deadline_ns / 1e9)
        await call.finish(engine_pb2.FINISH_REASON_DEADLINE)

    shared_world.engine.script = slow
    stream = own_tenant.stream(timeout=1.0, admission=pb.AdmissionOptions(detach_on_disconnect=True))
    await stream.read()
    stream.cancel()
    await eventually(lambda: not shared_world.live.num_live_requests)

    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["finish_reason"], row["billed_tokens"]) == ("DEADLINE", 5)


async def test_a_deadline_that_has_passed_reaches_no_engine(shared_world: World, own_tenant: Tenant) -> None:
    refusal = await refused(own_tenant.generate(timeout=0.0))
    shared_world.engine.script = hello
    assert (await own_tenant.generate()).outputs[0].text == "hello"

    assert refusal.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert len(shared_world.engine.calls) == 1
