"""Exactly once: whatever ends a request, its quota is settled, its event is written, and its engine call is over."""

import asyncio
import contextlib
import gc
import itertools
import os
import tracemalloc
from collections import Counter, abc
from contextlib import aclosing
from dataclasses import dataclass

import grpc
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.auth import Principal, enter_principal
from gateway.servicer.generation import GenerationServicer
from gateway.servicer.launch import Launcher
from gateway.servicer.record import Recorder
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import FakeCall, Script, begun, deaf, hello, stalled
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


class CancelAt(abc.Awaitable[bool]):
    """Awaits a coroutine and cancels the task at its n-th suspension; false if it has fewer."""

    def __init__(self, coroutine: abc.Coroutine[object, None, object], suspension: int) -> None:
        self._coroutine = coroutine
        self._suspension = suspension

    def __await__(self) -> abc.Generator[object, None, bool]:
        steps = self._coroutine.__await__()
        for number in itertools.count():
            try:
                waits_for = next(steps)
            except StopIteration:
                return False
            if number == self._suspension:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                yield waits_for
            except asyncio.CancelledError as error:
                return self._thrown(steps, error)
        raise AssertionError

    def _thrown(self, steps: abc.Generator[object, None, object], error: asyncio.CancelledError) -> bool:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        with pytest.raises(asyncio.CancelledError):
            steps.throw(error)
        return True


class Context:
    """What a servicer asks of a call, which has no deadline unless told otherwise."""

    def __init__(self, time_left_s: float | None = None) -> None:
        self._time_left_s = time_left_s

    def time_remaining(self) -> float | None:
        return self._time_left_s


def servicer_of(world: World) -> GenerationServicer:
    gateway = world.live
    recorder = Recorder(gateway._admission, gateway._ledger, gateway._live, world.telemetry.tracer)
    return GenerationServicer(
        Launcher(gateway._models, gateway._admission, gateway._live, recorder, world.telemetry.tracer, 256)
    )


def principal_of(world: World, tenant: Tenant) -> Principal:
    key = world.cache.current.keys[tenant.public_id]
    return Principal(
        key.key_id, key.public_id, tenant.organization_id, tenant.team_id, "acme", "search", key.scopes,
        key.model_grants, is_platform_admin=False,
    )  # fmt: skip


async def read_all(servicer: GenerationServicer) -> None:
    async with aclosing(servicer.StreamGenerate(pb.StreamGenerateRequest(spec=make_spec()), Context())) as messages:
        async for _ in messages:
            await asyncio.sleep(0)


async def call_once(servicer: GenerationServicer) -> None:
    await servicer.Generate(pb.GenerateRequest(spec=make_spec(text="x" * 1500)), Context())


@pytest.mark.parametrize("script", [hello, preempted])
@pytest.mark.parametrize("run", [read_all, call_once])
async def test_a_cancellation_at_any_await_settles_once(
    world: World, monkeypatch: pytest.MonkeyPatch, script: Script, run
) -> None:
    tenant = await world.tenant(limits=(CONCURRENCY,))
    world.engine.script = script
    ends: Counter[str] = Counter()
    for name in ("settle", "release"):
        original = getattr(world.live._admission, name)

        def counted(admitted, *used, original=original) -> None:
            ends[admitted.demand.generation_id] += 1
            original(admitted, *used)

        monkeypatch.setattr(world.live._admission, name, counted)
    enter_principal(principal_of(world, tenant))

    num_points = 0
    while await CancelAt(run(servicer_of(world)), num_points):
        num_points += 1
        await eventually(lambda: not world.live.num_live_requests)
        assert world.book.num_reservations == 0
    await eventually(lambda: not world.live.num_live_requests)

    assert num_points >= 3
    assert set(ends.values()) <= {1}
    assert world.book.num_reservations == 0
    assert len(await world.usage_rows()) == len(ends)
    await eventually(lambda: all(call.ended.is_set() for call in world.engine.calls))


async def test_a_finished_request_is_in_the_ledger_with_its_counts_and_no_text(world: World, tenant: Tenant) -> None:
    request_id = "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"
    admission = pb.AdmissionOptions(labels={"project": "tea"})
    response = await tenant.generate(request_id=request_id, admission=admission)

    (row,) = await world.usage_rows()
    assert str(row["generation_id"]) == response.generation_id
    assert (row["organization_id"], row["team_id"]) == (tenant.organization_id, tenant.team_id)
    assert (row["key_id"], row["model"], row["priority_class"]) == (tenant.key_id, "bytes", "default")
    assert (row["input_tokens"], row["output_tokens"], row["billed_tokens"], row["reserved_tokens"]) == (2, 6, 8, 10)
    assert (row["finish_reason"], row["source"], row["request_id"]) == ("STOP", "ENGINE", request_id)
    assert row["labels"] == {"project": "tea"}
    assert row["queue_ns"] == 1_000_000
    assert "hello" not in str(row)


async def test_what_was_not_used_is_free_again(world: World) -> None:
    tenant = await world.tenant(limits=(TOKENS,))

    for _ in range(12):  # 8 used of 10 reserved: without refunds only 10 would pass
        await tenant.generate()

    refusal = await refused(tenant.generate())
    assert refusal.info.reason == "RATE_LIMITED"


async def test_a_client_that_cancels_pays_for_what_was_sampled(world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"abc")
        await call.control("cancel")
        await call.finish(engine_pb2.FINISH_REASON_CANCELLED, output_tokens=5)

    world.engine.script = script
    tenant = await world.tenant(limits=(CONCURRENCY,))
    stream = tenant.stream()
    await stream.read()
    await stream.read()
    stream.cancel()

    (row,) = await world.usage_rows()
    assert (row["output_tokens"], row["finish_reason"], row["source"]) == (5, "CANCELLED", "ENGINE")
    assert world.book.num_reservations == 0


async def test_an_engine_that_answers_no_cancellation_is_billed_by_what_was_received(
    world: World, tenant: Tenant
) -> None:
    world.engine.script = deaf
    stream = tenant.stream()
    await stream.read()
    await stream.read()
    stream.cancel()

    (row,) = await world.usage_rows()
    assert (row["input_tokens"], row["output_tokens"], row["source"]) == (2, 3, "GATEWAY")
    assert (await world.engine.call()).is_aborted


async def test_a_request_that_never_began_is_billed_nothing(world: World, tenant: Tenant) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.finish(engine_pb2.FINISH_REASON_QUEUE_TIMEOUT)

    world.engine.script = script
    await refused(tenant.generate())

    (row,) = await world.usage_rows()
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


async def test_two_hundred_callers_at_once_are_never_charged_more_than_the_limit(world: World) -> None:
    world.engine.script = stalled
    tenant = await world.tenant(limits=(TOKENS,))
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
    await world.settled()


async def test_callers_that_try_again_and_again_get_the_limit_and_no_more(world: World) -> None:
    tenant = await world.tenant(limits=(TOKENS,))

    async def insist() -> int:
        billed = 0
        for _ in range(8):
            with contextlib.suppress(grpc.aio.AioRpcError):
                billed += (await tenant.generate()).usage.billed_tokens
        return billed

    billed = sum(await asyncio.gather(*(insist() for _ in range(25))))

    assert 92 <= billed <= 100
    assert sum(row["billed_tokens"] for row in await world.usage_rows()) == billed


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


async def test_a_thousand_cancelled_streams_leave_nothing_behind(world: World, spans: InMemorySpanExporter) -> None:
    world.engine.script = begun
    tenant = await world.tenant(limits=(QuotaLimit(Dimension.CONCURRENCY, 100, None, None),))

    async def leave(num_read: int) -> None:
        stream = tenant.stream()
        for _ in range(num_read):
            await stream.read()
        stream.cancel()

    async def cancel_streams(num_rounds: int) -> "Residue":
        for _ in range(num_rounds):
            await asyncio.gather(*(leave(number % 3) for number in range(100)))
            await eventually(lambda: not world.live.num_live_requests)
        await world.settled()
        await eventually(lambda: all(call.ended.is_set() for call in world.engine.calls))
        world.engine.calls.clear()  # the fakes remember everything
        spans.clear()
        await eventually(lambda: not world.live._models.engines[0].num_open_calls)
        return await Residue.now()

    tracemalloc.start()
    try:
        await cancel_streams(2)  # whatever is made once is made
        before = await cancel_streams(1)
        after = await cancel_streams(10)
    finally:
        tracemalloc.stop()

    assert world.book.num_reservations == 0
    assert len(world.live._live) == 0
    # One of either a stream would be a thousand; the background work has a few more or less at any moment.
    assert after.num_descriptors - before.num_descriptors < 20
    assert after.num_tasks - before.num_tasks < 20
    # A leak of one kilobyte a stream would show; noise of caches and pools does not.
    assert after.num_bytes - before.num_bytes < 1000 * 1024
    assert len(await asyncio.gather(*(tenant_answers(world, tenant) for _ in range(100)))) == 100


@dataclass(frozen=True)
class Residue:
    """What this process, with gateway, fake engine and clients in it, holds."""

    num_descriptors: int
    num_tasks: int
    num_bytes: int

    @classmethod
    async def now(cls) -> "Residue":
        for _ in range(5):  # what has ended leaves the loop
            await asyncio.sleep(0)
            gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
        return cls(len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), num_bytes)


async def tenant_answers(world: World, tenant: Tenant) -> pb.GenerateResponse:
    world.engine.script = hello
    return await tenant.generate()


async def test_a_unary_client_that_disconnects_stops_the_engine(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    call = asyncio.ensure_future(tenant.generate())
    engine_call = await world.engine.call()
    await tenant.channel.close()  # the connection, not the call

    await engine_call.control("cancel")
    await engine_call.ended.wait()
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call
    assert len(await world.usage_rows()) == 1
