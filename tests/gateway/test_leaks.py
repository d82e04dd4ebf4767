"""Nothing is left of a call that was cut off, wherever that happens and however often."""

import asyncio
import gc
import itertools
import os
import tracemalloc
from collections import Counter, abc
from dataclasses import dataclass

import grpc
import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from sqlalchemy import text

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.interceptors import RpcInterceptor
from gateway.servicer import live
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.fake_engine import FakeCall, Script, begun, hello
from tests.gateway.test_settlement import servicer_of
from tests.gateway.world import Tenant, World, eventually, make_spec

CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 4, None, None)
MANY = QuotaLimit(Dimension.CONCURRENCY, 200, None, None)
SERVICE = "/evenflow.inference.v1.GenerationService"
CUT_KINDS = 5


class CancelAt(abc.Awaitable[bool]):
    """Awaits a coroutine and cancels the task at its n-th suspension; false if it has fewer.

    What the coroutine awaits while it cleans up goes on undisturbed. It must end as cancelled.
    """

    def __init__(self, coroutine: abc.Coroutine[object, None, object], suspension: int) -> None:
        self._coroutine = coroutine
        self._suspension = suspension

    def __await__(self) -> abc.Generator[object, None, bool]:
        task = asyncio.current_task()
        assert task is not None
        steps = self._coroutine.__await__()
        thrown: asyncio.CancelledError | None = None
        is_cancelled = False
        for number in itertools.count():
            try:
                waits_for = next(steps) if thrown is None else steps.throw(thrown)
            except StopIteration:
                assert not is_cancelled, "the cancellation was swallowed"
                return False
            except asyncio.CancelledError:
                assert is_cancelled
                return True
            thrown = None
            if number == self._suspension:
                is_cancelled = task.cancel()
            try:
                yield waits_for
            except asyncio.CancelledError as error:
                task.uncancel()
                thrown = error
        raise AssertionError


class OpenSpans(SpanProcessor):
    """How many spans have begun and not ended."""

    def __init__(self) -> None:
        self.num_open = 0

    def on_start(self, span: ReadableSpan, parent_context: object = None) -> None:
        self.num_open += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.num_open -= 1


class Context:
    """What the interceptors and a servicer ask of a call. Every write suspends once, as a busy transport would."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def invocation_metadata(self):
        return self._metadata

    def peer(self) -> str:
        return "ipv4:127.0.0.1:4711"

    def time_remaining(self) -> float | None:
        return 100.0

    async def send_initial_metadata(self, metadata: object) -> None:
        await asyncio.sleep(0)

    async def write(self, message: object) -> None:
        await asyncio.sleep(0)

    async def abort(self, *status: object) -> None:
        await asyncio.sleep(0)
        raise grpc.aio.AbortError(status)


async def preempted(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"ab")
    await call.preempt()
    await call.resume()
    await call.emit(b"cd")
    await call.finish()


def request_id_of(number: int) -> str:
    return f"8f1b4f2e-3f3c-4e0a-9d4e-{number:012x}"


async def call_of(world: World, tenant: Tenant, method: str, spec: pb.GenerationSpec) -> abc.Coroutine:
    """A call through all interceptors, as the transport would make it."""
    servicer = servicer_of(world)
    interceptor = RpcInterceptor(world.live._gatekeeper)
    is_stream = method == "StreamGenerate"
    make = grpc.unary_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
    message = pb.StreamGenerateRequest if is_stream else pb.GenerateRequest
    handler = make(getattr(servicer, method), message.FromString, lambda response: response.SerializeToString())

    async def found(_: object):
        return handler

    details = type("Details", (), {"method": f"{SERVICE}/{method}", "invocation_metadata": tenant.metadata})()
    wrapped = await interceptor.intercept_service(found, details)
    behavior = wrapped.unary_stream if is_stream else wrapped.unary_unary
    return behavior(message(spec=spec).SerializeToString(), Context(tenant.metadata))


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(("method", "script"), [("Generate", hello), ("StreamGenerate", preempted)])
async def test_a_cancellation_at_any_await_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, method: str, script: Script, is_named: bool
) -> None:
    tenant = await world.tenant(limits=(CONCURRENCY,))
    world.engine.script = script
    ends: Counter[str] = Counter()
    for name in ("settle", "release"):
        original = getattr(world.live._admission, name)

        def counted(admitted, *used, original=original, **how) -> None:
            ends[admitted.demand.generation_id] += 1
            original(admitted, *used, **how)

        monkeypatch.setattr(world.live._admission, name, counted)
    spans = OpenSpans()
    world.telemetry._provider.add_span_processor(spans)

    # A long prompt is encoded in a thread: one suspension more.
    text_ = "x" * 1500
    num_points = 0
    while True:
        spec = make_spec(text=text_, request_id=request_id_of(num_points) if is_named else "")
        if not await CancelAt(await call_of(world, tenant, method, spec), num_points):
            break
        num_points += 1
        await eventually(lambda: not world.live.num_live_requests)
        assert world.book.num_reservations == 0
        assert not world.live._request_ids._claims
        await eventually(lambda: not spans.num_open)
    await eventually(lambda: not world.live.num_live_requests)

    assert num_points >= (4 if is_named else 3)
    assert set(ends.values()) <= {1}
    assert world.book.num_reservations == 0
    assert len(await world.usage_rows()) == len(ends)
    await eventually(lambda: all(call.ended.is_set() for call in world.engine.calls))
    await eventually(lambda: not world.live._models.engines[0].num_open_calls)
    await eventually(lambda: not spans.num_open)
    await eventually(lambda: not world.live._request_ids.num_waiting)
    async with world.database.session() as session:
        rows = await session.execute(text("SELECT count(*) FROM generation_request WHERE finished_at IS NULL"))
        assert rows.scalar_one() == 0
    if is_named:  # whatever was left behind, the id can be used again
        for number in range(num_points):
            spec = make_spec(text=text_, request_id=request_id_of(number))
            assert not await CancelAt(await call_of(world, tenant, "Generate", spec), 10_000)


class Crowd:
    """Clients that go away, in each of the ways that there are."""

    def __init__(self, world: World, tenant: Tenant) -> None:
        self._world = world
        self._tenant = tenant
        self._num_named = 0

    async def leave(self, number: int) -> None:
        """Before anything came, after the admission, after some output; unary; and under a request id."""
        kind = number % CUT_KINDS
        if kind == 3:
            call = self._tenant.generate()
            await asyncio.sleep(0)
            call.cancel()
            return
        request_id = ""
        if kind == 4:
            self._num_named += 1
            request_id = request_id_of(self._num_named)
        stream = self._tenant.stream(request_id=request_id)
        for _ in range(kind % 3):
            await stream.read()
        stream.cancel()

    async def settled(self, spans: InMemorySpanExporter) -> "Residue":
        world = self._world
        await eventually(lambda: not world.live.num_live_requests)
        await world.settled()
        await eventually(lambda: all(call.ended.is_set() for call in world.engine.calls))
        await eventually(lambda: not world.live._request_ids.num_waiting)
        world.engine.calls.clear()  # the fakes remember everything
        spans.clear()
        await eventually(lambda: not world.live._models.engines[0].num_open_calls)
        world.live._live.find("forgets what is over")
        return await Residue.now(world)

    async def cut_off(self, num_calls: int, spans: InMemorySpanExporter) -> "Residue":
        for first in range(0, num_calls, 100):
            await asyncio.gather(*(self.leave(number) for number in range(first, first + 100)))
            await eventually(lambda: not self._world.live.num_live_requests)
        return await self.settled(spans)


@dataclass(frozen=True)
class Residue:
    """What this process, with gateway, fake engine and clients in it, holds; and its connections to the database."""

    num_descriptors: int
    num_tasks: int
    num_bytes: int
    num_connections: int

    @classmethod
    async def now(cls, world: World) -> "Residue":
        for _ in range(5):  # what has ended leaves the loop
            await asyncio.sleep(0)
            gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
        async with world.database.session() as session:
            found = await session.execute(
                text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            )
            num_connections = found.scalar_one()
        return cls(len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks()), num_bytes, num_connections)


@pytest.mark.parametrize("num_calls", [500, pytest.param(10_000, marks=(pytest.mark.slow, pytest.mark.timeout(1200)))])
async def test_calls_that_are_cut_off_leave_nothing_behind(
    world: World, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, num_calls: int
) -> None:
    monkeypatch.setattr(live, "KEPT_S", 0.0)  # what is kept for a minute is bounded, see the test of that
    world.engine.script = begun
    tenant = await world.tenant(limits=(MANY,))
    crowd = Crowd(world, tenant)

    tracemalloc.start()
    try:
        await crowd.cut_off(200, spans)  # whatever is made once is made
        before = await crowd.cut_off(100, spans)
        after = await crowd.cut_off(num_calls, spans)
    finally:
        tracemalloc.stop()

    assert world.book.num_reservations == 0
    assert len(world.live._live) == len(world.live._live._ended) == 0
    # One of any of them a call would be hundreds; the background work has a few more or less at any moment.
    assert after.num_descriptors - before.num_descriptors < 20
    assert after.num_tasks - before.num_tasks < 20
    assert after.num_connections <= before.num_connections + 5
    # A leak of one kilobyte a call would show; noise of caches and pools does not.
    assert after.num_bytes - before.num_bytes < num_calls * 1024
    world.engine.script = hello
    answers = await asyncio.gather(*(tenant.generate() for _ in range(100)))
    assert {answer.outputs[0].text for answer in answers} == {"hello"}


async def test_what_is_kept_after_the_end_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MAX_KEPT", 20)
    monkeypatch.setattr(live, "MAX_KEPT_TOKENS", 90)
    tenant = await world.tenant()
    ids = [(await tenant.generate()).generation_id for _ in range(25)]
    kept = [generation_id for generation_id in ids if world.live._live.find(generation_id) is not None]

    assert kept == ids[-len(kept) :]
    assert 5 <= len(kept) <= 20
    assert world.live._live._ended._num_tokens <= 90
