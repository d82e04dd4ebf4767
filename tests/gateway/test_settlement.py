"""Exactly once: whatever ends a request, its quota is settled, its event is written, and its engine call is over."""

import asyncio
import contextlib
import os
from collections import Counter

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.auth import Principal, enter_principal
from gateway.auth.keys import key_principal
from gateway.servicer.generation import GenerationServicer
from gateway.servicer.journal import JournalSizes
from gateway.servicer.launch import Launcher
from gateway.servicer.lookup import Lookup
from gateway.servicer.record import Recorder
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import FakeCall, begun, deaf, hello, stalled
from tests.gateway.world import Tenant, World, eventually, make_spec, refused

DAY_MS = 86_400_000
TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 100, DAY_MS, 100)
CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 4, None, None)


async def silent(call: FakeCall) -> None:
    """Not even an acceptance."""
    await asyncio.Event().wait()


async def preempted(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"ab")
    await call.preempt()
    await call.resume()
    await call.emit(b"cd")
    await call.finish()


class Context:
    """What a servicer asks of a call, which has no deadline unless told otherwise."""

    def __init__(self, time_left_s: float | None = None) -> None:
        self._time_left_s = time_left_s

    def time_remaining(self) -> float | None:
        return self._time_left_s


def servicer_of(world: World) -> GenerationServicer:
    gateway = world.live
    recorder = Recorder(
        gateway._admission,
        gateway._ledger,
        gateway._witness,
        gateway._live,
        gateway._request_ids,
        world.telemetry.tracer,
    )
    launcher = Launcher(
        gateway._models,
        gateway._admission,
        gateway._live,
        gateway._request_ids,
        recorder,
        world.telemetry.tracer,
        JournalSizes(256, 8192),
    )
    return GenerationServicer(launcher, Lookup(gateway._live, world.database, gateway._models.engines))


def principal_of(world: World, tenant: Tenant) -> Principal:
    return key_principal(world.cache.current.keys[tenant.public_id], world.cache.current)


async def test_a_finished_request_is_in_the_ledger_with_its_counts_and_no_text(
    shared_world: World, own_tenant: Tenant
) -> None:
    request_id = "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"
    admission = pb.AdmissionOptions(labels={"project": "tea"})
    response = await own_tenant.generate(request_id=request_id, admission=admission)

    whole_ledger = await shared_world.usage_rows()
    (row,) = [each for each in whole_ledger if str(each["generation_id"]) == response.generation_id]
    assert (row["organization_id"], row["team_id"]) == (own_tenant.organization_id, own_tenant.team_id)
    assert (row["key_id"], row["model"], row["priority_class"]) == (own_tenant.key_id, "bytes", "default")
    assert (row["input_tokens"], row["output_tokens"], row["billed_tokens"], row["reserved_tokens"]) == (2, 6, 8, 10)
    assert (row["finish_reason"], row["source"], row["request_id"]) == ("STOP", "ENGINE", request_id)
    assert row["labels"] == {"project": "tea"}
    assert row["queue_ns"] == 1_000_000
    assert "hello" not in str(row)


async def test_what_was_not_used_is_free_again(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(TOKENS,))

    for _ in range(12):  # 8 used of 10 reserved: without refunds only 10 would pass
        await tenant.generate()

    refusal = await refused(tenant.generate())
    assert refusal.info.reason == "RATE_LIMITED"


async def test_a_client_that_cancels_pays_for_what_was_sampled(shared_world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.control("cancel")
        await call.finish(engine_pb2.FINISH_REASON_CANCELLED, output_tokens=5)

    shared_world.engine.script = script
    tenant = await shared_world.tenant(limits=(CONCURRENCY,))
    stream = tenant.stream()
    await stream.read()
    await stream.read()
    stream.cancel()

    (row,) = await shared_world.usage_rows(tenant)
    assert (row["output_tokens"], row["finish_reason"], row["source"]) == (5, "CANCELLED", "ENGINE")
    assert shared_world.book.num_reservations == 0


async def test_an_engine_that_answers_no_cancellation_is_billed_by_what_was_received(
    shared_world: World, own_tenant: Tenant
) -> None:
    shared_world.engine.script = deaf
    stream = own_tenant.stream()
    await stream.read()
    await stream.read()
    stream.cancel()

    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["input_tokens"], row["output_tokens"], row["source"]) == (2, 3, "GATEWAY")
    assert (await shared_world.engine.call()).is_aborted


async def test_a_request_that_never_began_is_billed_nothing(shared_world: World, own_tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    shared_world.engine.script = script
    await refused(own_tenant.generate())

    (row,) = await shared_world.usage_rows(own_tenant)
    assert (row["input_tokens"], row["billed_tokens"], row["finish_reason"]) == (0, 0, "QUEUE_TIMEOUT")


async def test_an_engine_lost_in_the_middle_is_unavailable_and_bills_what_arrived(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    stream = tenant.stream()
    await stream.read()
    await stream.read()
    await world.engine.stop()

    refusal = await refused(stream.read())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    assert refusal.retry is not None
    (row,) = await world.usage_rows()
    assert (row["output_tokens"], row["finish_reason"], row["source"]) == (3, "ERROR", "GATEWAY")


async def test_a_stream_that_the_engine_ends_without_a_last_word_is_an_engine_lost(
    world: World, tenant: Tenant
) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.emit(b"abc")

    world.engine.script = script

    assert (await refused(tenant.stream())).info.reason == "ENGINE_LOST"


async def test_two_hundred_callers_at_once_are_never_charged_more_than_the_limit(shared_world: World) -> None:
    shared_world.engine.script = stalled
    tenant = await shared_world.tenant(limits=(TOKENS,))
    streams = [tenant.stream() for _ in range(200)]

    async def first(stream) -> str:
        try:
            return (await stream.read()).WhichOneof("event")
        except grpc.aio.AioRpcError as error:
            return error.code().name

    answers = Counter(await asyncio.gather(*(first(stream) for stream in streams)))
    for stream in streams:
        stream.cancel()

    # 100 tokens hold ten requests that may use ten each.
    assert answers == {"admission": 10, "RESOURCE_EXHAUSTED": 190}
    await shared_world.settled()


async def test_callers_that_try_again_and_again_get_the_limit_and_no_more(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(TOKENS,))

    async def insist() -> int:
        billed = 0
        for _ in range(8):
            with contextlib.suppress(grpc.aio.AioRpcError):
                billed += (await tenant.generate()).usage.billed_tokens
        return billed

    billed = sum(await asyncio.gather(*(insist() for _ in range(25))))

    assert 92 <= billed <= 100
    assert sum(row["billed_tokens"] for row in await shared_world.usage_rows(tenant)) == billed


async def test_a_thousand_client_timeouts_leak_no_slot_no_call_and_no_descriptor(world: World) -> None:
    world.engine.script = silent
    limit = QuotaLimit(Dimension.CONCURRENCY, 250, None, None)
    tenant = await world.tenant(limits=(limit,))
    num_descriptors = 0

    for _ in range(4):
        refusals = await asyncio.gather(*(refused(tenant.generate(timeout=0.5)) for _ in range(250)))
        assert {refusal.code for refusal in refusals} == {grpc.StatusCode.DEADLINE_EXCEEDED}
        await eventually(lambda: not world.live.num_live_requests)
        num_descriptors = num_descriptors or len(os.listdir("/proc/self/fd"))

    assert world.book.num_reservations == 0
    await eventually(lambda: all(call.ended.is_set() for call in world.engine.calls))
    assert len(os.listdir("/proc/self/fd")) <= num_descriptors
    world.engine.script = hello
    answers = await asyncio.gather(*(tenant.generate() for _ in range(250)))
    assert len(answers) == 250


async def test_the_longest_deadline_that_a_client_can_write_reaches_the_engine(world: World) -> None:
    tenant = await world.tenant()
    longest_s = 99_999_999 * 3600.0  # `grpc-timeout: 99999999H`; gRPC's own clients send none of that length
    enter_principal(principal_of(world, tenant))

    answer = await servicer_of(world).Generate(pb.GenerateRequest(spec=make_spec()), Context(longest_s))

    assert answer.outputs[0].text == "hello"
    (call,) = world.engine.calls
    assert 0 < call.start.deadline_ns < 2**62


async def test_a_unary_client_that_disconnects_stops_the_engine(shared_world: World, own_tenant: Tenant) -> None:
    shared_world.engine.script = begun
    call = asyncio.ensure_future(own_tenant.generate())
    engine_call = await shared_world.engine.call()
    await own_tenant.channel.close()  # the connection, not the call

    await engine_call.control("cancel")
    await engine_call.ended.wait()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call
    assert len(await shared_world.usage_rows(own_tenant)) == 1
