"""Generations that were made before: where they stand, and a stream that was cut and goes on."""

import asyncio

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.calls import get, rest_of, text_of, updates, watch
from tests.gateway.fake_engine import END_TOKEN, FakeCall, begun
from tests.gateway.test_request_ids import ID, Gate, forget_ended
from tests.gateway.world import Tenant, World, eventually, refused

DETACHES = pb.AdmissionOptions(detach_on_disconnect=True)
TEXT = bytes(range(ord("a"), ord("z") + 1))


class Steps:
    """One letter at a time, each when the test says so."""

    def __init__(self) -> None:
        self.allowed = asyncio.Semaphore(0)

    async def __call__(self, call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        for letter in TEXT:
            await self.allowed.acquire()
            await call.emit([letter])
        await call.emit([END_TOKEN])
        await call.finish(engine_pb2.FINISH_REASON_STOP)

    def give(self, num_letters: int) -> None:
        for _ in range(num_letters):
            self.allowed.release()


async def cut(world: World, stream) -> None:
    """The client of `stream` is gone, and the gateway knows it."""
    stream.cancel()
    await eventually(lambda: not any(generation.journal.num_readers for generation in world.live._live))


@pytest.mark.parametrize("num_read", [1, 2, 3, 10, 27])
async def test_a_stream_that_was_cut_goes_on_with_no_gap_and_no_duplicate(
    shared_world: World, own_tenant: Tenant, num_read: int
) -> None:
    steps = shared_world.engine.script = Steps()
    stream = own_tenant.stream(stopping={"max_output_tokens": 40}, admission=DETACHES)
    before = []
    for _ in range(num_read):
        before.append(await stream.read())
        steps.give(1)
    generation_id = before[0].admission.generation_id
    await cut(shared_world, stream)
    steps.give(13)
    resumed = watch(own_tenant, before[-1].sequence, generation_id=generation_id)
    if num_read + 13 < len(TEXT):
        steps.give(len(TEXT) - num_read - 13)
    after = await updates(resumed)

    assert text_of(before) + text_of(after) == TEXT.decode()
    assert [message.sequence for message in (*before, *after)] == list(range(1, len(before) + len(after) + 1))
    assert after[-1].finish.finish_reason == pb.FINISH_REASON_STOP
    assert len(shared_world.engine.calls) == len(await shared_world.usage_rows(own_tenant)) == 1


async def test_a_stream_may_be_cut_again_and_again(shared_world: World, own_tenant: Tenant) -> None:
    steps = shared_world.engine.script = Steps()
    stream = own_tenant.stream(stopping={"max_output_tokens": 40}, admission=DETACHES)
    told = [await stream.read()]
    generation_id = told[0].admission.generation_id
    while not told[-1].HasField("finish"):
        await cut(shared_world, stream)
        stream = watch(own_tenant, told[-1].sequence, generation_id=generation_id)
        steps.give(3)
        told.append((await stream.read()).update)

    assert text_of(told) == TEXT.decode()
    assert [message.sequence for message in told] == list(range(1, len(told) + 1))


async def test_after_the_end_every_place_can_be_resumed_from(shared_world: World, own_tenant: Tenant) -> None:
    steps = shared_world.engine.script = Steps()
    stream = own_tenant.stream(stopping={"max_output_tokens": 40}, request_id=ID)
    told = [await stream.read()]
    for _ in TEXT:
        steps.give(1)
        told.append(await stream.read())
    told += await rest_of(stream)

    for place in range(len(told)):
        assert (await updates(watch(own_tenant, place, request_id=ID)))[0].sequence == place + 1
    assert await updates(watch(own_tenant, 1, request_id=ID)) == told[1:]
    assert await updates(watch(own_tenant, len(told), request_id=ID)) == []
    beyond = await refused(watch(own_tenant, len(told) + 1, request_id=ID))
    assert (beyond.code, beyond.info.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REPLAY_EXPIRED")


async def test_a_minute_after_the_end_only_the_usage_is_left(
    shared_world: World, own_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = await own_tenant.generate()
    generation_id = answer.generation_id
    early = await get(own_tenant, generation_id=generation_id)
    assert text_of(await updates(watch(own_tenant, generation_id=generation_id))) == "hello"
    await forget_ended(shared_world, monkeypatch)
    late = await get(own_tenant, generation_id=generation_id)
    gone = await refused(watch(own_tenant, generation_id=generation_id))

    assert early.state == late.state == pb.GENERATION_STATE_FINISHED
    assert early.usage == late.usage == answer.usage
    assert early.outputs[0] == answer.outputs[0]
    assert not late.outputs
    assert gone.info.reason == "REPLAY_EXPIRED"


async def test_without_the_option_a_cut_stream_ends(shared_world: World, own_tenant: Tenant) -> None:
    shared_world.engine.script = begun
    stream = own_tenant.stream()
    generation_id = (await stream.read()).admission.generation_id
    await stream.read()
    stream.cancel()
    await eventually(lambda: not shared_world.live.num_live_requests)

    state = await get(own_tenant, generation_id=generation_id)
    rest = await updates(watch(own_tenant, 1, generation_id=generation_id))

    assert (state.state, state.finish_reason) == (pb.GENERATION_STATE_FINISHED, pb.FINISH_REASON_CANCELLED)
    assert text_of(rest) == "abc"
    assert rest[-1].finish.usage.output_tokens == 3


async def test_a_unary_call_that_was_cut_can_be_looked_up(shared_world: World, own_tenant: Tenant) -> None:
    gate = shared_world.engine.script = Gate()
    call = own_tenant.generate(request_id=ID, admission=DETACHES)
    await shared_world.engine.call()
    await eventually(lambda: shared_world.live.num_live_requests == 1)
    await cut(shared_world, call)
    running = await get(own_tenant, request_id=ID)
    gate.opened.set()
    await eventually(lambda: not shared_world.live.num_live_requests)
    ended = await get(own_tenant, request_id=ID)

    assert running.state in (pb.GENERATION_STATE_QUEUED, pb.GENERATION_STATE_RUNNING)
    assert ended.outputs[0].text == "hello"
    assert ended.request_id == ID


async def test_where_a_generation_stands(shared_world: World, own_tenant: Tenant) -> None:
    may_go_on = asyncio.Semaphore(0)

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call._write(queued_at=engine_pb2.QueuedAt(position=4, estimated_wait_ns=2_500_000_000))
        await may_go_on.acquire()
        await call.admit()
        await call.emit(b"a")
        await may_go_on.acquire()
        await call.preempt(engine_pb2.PREEMPTION_MODE_SWAP, engine_pb2.PAUSE_REASON_FAIRNESS)
        await may_go_on.acquire()
        await call.resume()
        await call.finish()

    shared_world.engine.script = script
    stream = own_tenant.stream()
    generation_id = (await stream.read()).admission.generation_id
    told = await stream.read()
    states = []
    for _ in range(3):
        states.append(await get(own_tenant, generation_id=generation_id))
        may_go_on.release()
        await stream.read()
    await rest_of(stream)
    states.append(await get(own_tenant, generation_id=generation_id))

    assert (told.queue_update.position, told.queue_update.estimated_wait.ToMilliseconds()) == (4, 2500)
    assert states[0].queue_update == told.queue_update
    assert not states[1].HasField("queue_update")
    assert [state.state for state in states] == [
        pb.GENERATION_STATE_QUEUED,
        pb.GENERATION_STATE_RUNNING,
        pb.GENERATION_STATE_PAUSED,
        pb.GENERATION_STATE_FINISHED,
    ]


async def test_what_is_another_teams_is_not_there(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    other = await world.tenant("globex")
    stream = tenant.stream(request_id=ID)
    generation_id = (await stream.read()).admission.generation_id
    live = [
        await refused(call(other, **name))
        for call in (get, watch)
        for name in ({"generation_id": generation_id}, {"request_id": ID})
    ]
    stream.cancel()
    await eventually(lambda: not world.live.num_live_requests)
    ended = [await refused(get(other, generation_id=generation_id)), await refused(get(other, request_id=ID))]
    await world.settled()
    world.live._live._ended._by_id.clear()
    stored = await refused(get(other, generation_id=generation_id))
    resumed = await refused(watch(other, generation_id=generation_id))

    for refusal in (*live, *ended, stored, resumed):
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.NOT_FOUND, "GENERATION_NOT_FOUND")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"generation_id": "no-uuid"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"request_id": "no-uuid"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"generation_id": "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"}, grpc.StatusCode.NOT_FOUND),
        ({"generation_id": "ffffffff-ffff-7fff-bfff-ffffffffffff"}, grpc.StatusCode.NOT_FOUND),
        ({"generation_id": "01a22a50-c963-75bc-9df7-9d25f7197c6c"}, grpc.StatusCode.NOT_FOUND),
        ({"request_id": "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"}, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_names_that_stand_for_nothing(shared_tenant: Tenant, name: dict[str, str], code: grpc.StatusCode) -> None:
    assert (await refused(get(shared_tenant, **name))).code is code
    assert (await refused(watch(shared_tenant, **name))).code is code


async def test_a_detached_generation_waits_for_nobody_and_keeps_the_newest_of_what_it_said(
    closed_world: World,
) -> None:
    world = closed_world
    world.options = {"replay_buffer_tokens": 64, "reader_buffer_tokens": 8}
    await world.open()
    await world.serving()
    tenant = await world.tenant()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        for number in range(100):
            if call.is_held:
                await eventually(lambda: not call.is_held)
            await call.emit(b"%02d;" % number)
            if number == 0:
                await is_cut.wait()
            await asyncio.sleep(0.001)
        await call.finish()

    is_cut = asyncio.Event()
    world.engine.script = script
    stream = tenant.stream(stopping={"max_output_tokens": 400}, admission=DETACHES)
    name = {"generation_id": (await stream.read()).admission.generation_id}
    await cut(world, stream)
    is_cut.set()
    (row,) = await world.usage_rows()
    gone = await refused(watch(tenant, 1, **name))
    oldest = int(gone.info.metadata["first_after_sequence"])
    rest = text_of(await updates(watch(tenant, oldest, **name)))

    assert (row["output_tokens"], row["finish_reason"]) == (300, "LENGTH")
    assert gone.info.reason == "REPLAY_EXPIRED"
    assert "".join(f"{number:02d};" for number in range(100)).endswith(rest)
    assert 64 - 8 <= len(rest) <= 64 + 8


async def test_the_generation_id_and_the_wait_are_told_before_the_first_message(
    shared_world: World, own_tenant: Tenant
) -> None:
    unary, stream = own_tenant.generate(), own_tenant.stream()
    answer = await unary
    metadata = dict(await unary.initial_metadata())
    told = dict(await stream.initial_metadata())

    assert metadata["x-evenflow-generation-id"] == answer.generation_id
    assert metadata["x-evenflow-queue-wait-ms"] == "1"
    assert told["x-evenflow-generation-id"] == (await stream.read()).admission.generation_id
