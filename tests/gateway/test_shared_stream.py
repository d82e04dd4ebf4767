"""Generations of a gateway share a stream of the engine, and each is none the wiser."""

import asyncio

import grpc
import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.engine_client import (
    EngineClient,
    EngineRequest,
    Finished,
    PriorityClass,
    Sampling,
    client,
    shared,
)
from gateway.errors import NoEngineError
from tests.gateway.fake_engine import FakeCall, begun, hello, stalled
from tests.gateway.world import Tenant, World, eventually, refused

SAMPLING = Sampling(1.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 1, (), ignore_eos=False, num_logprobs=None)
CLASS = PriorityClass("default", 0, 0.0, preemptible=True)


def engine_of(world: World) -> EngineClient:
    (engine,) = world.live._models.engines
    return engine


def engine_request(generation_id: str, num_tokens: int = 1) -> EngineRequest:
    """One that no gateway has admitted."""
    return EngineRequest(generation_id, (), CLASS, b"", (1,) * num_tokens, SAMPLING, 8, None, None, 1)


async def test_generations_share_one_stream(world: World, tenant: Tenant) -> None:
    answers = await asyncio.gather(*(tenant.generate() for _ in range(5)))

    assert [answer.outputs[0].text for answer in answers] == ["hello"] * 5
    assert (len(world.engine.calls), world.engine.num_shared_streams) == (5, 1)


async def test_a_long_prompt_has_a_stream_of_its_own(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_PROMPT_TOKENS", 3)
    for prompt in ("long", "so"):
        assert (await tenant.generate(text=prompt)).outputs[0].text == "hello"

    assert (len(world.engine.calls), world.engine.num_shared_streams) == (2, 1)


async def test_an_engine_of_an_older_release_is_given_a_stream_for_each(closed_world: World) -> None:
    closed_world.engine.info.generates_many = False
    await closed_world.open()
    await closed_world.serving()
    tenant = await closed_world.tenant()
    answers = await asyncio.gather(*(tenant.generate() for _ in range(3)))

    assert [answer.outputs[0].text for answer in answers] == ["hello"] * 3
    assert (len(closed_world.engine.calls), closed_world.engine.num_shared_streams) == (3, 0)


async def test_all_are_lost_with_the_engine_and_the_next_finds_it_again(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    running = [asyncio.ensure_future(refused(tenant.generate())) for _ in range(3)]
    await eventually(lambda: sum(call.num_emitted for call in world.engine.calls) == 9)
    await world.engine.stop()
    refusals = await asyncio.gather(*running)

    assert {(refusal.code, refusal.info.reason) for refusal in refusals} == {
        (grpc.StatusCode.UNAVAILABLE, "ENGINE_LOST")
    }
    assert world.book.num_reservations == 0
    world.engine.script = hello
    await world.engine.start()
    await world.serving()
    assert (await tenant.generate()).outputs[0].text == "hello"
    assert world.engine.num_shared_streams == 2


async def test_a_request_that_the_engine_refuses_leaves_the_others_alone(world: World, tenant: Tenant) -> None:
    async def refuses_the_second(call: FakeCall) -> None:
        if len(world.engine.calls) == 2:
            await call.refuse(grpc.StatusCode.UNAVAILABLE, "DRAINING")
        await begun(call)

    world.engine.script = refuses_the_second
    first = tenant.stream()
    await eventually(lambda: len(world.engine.calls) == 1)
    refusal = await refused(tenant.generate())
    await tenant.cancel((await world.engine.call()).start.generation_id)

    assert refusal.info.reason == "NO_ENGINE"
    assert [message async for message in first][-1].HasField("finish")


async def test_a_call_that_nobody_waits_for_is_abandoned_alone(world: World, tenant: Tenant) -> None:
    async def deaf_first(call: FakeCall) -> None:
        if len(world.engine.calls) == 1:
            await call.accept()
            await asyncio.Event().wait()
        await hello(call)

    world.engine.script = deaf_first
    call = asyncio.ensure_future(tenant.generate())
    (first,) = (await world.engine.call(),)
    call.cancel()
    await asyncio.wait([call])
    await first.ended.wait()

    assert first.is_aborted
    assert (await tenant.generate()).outputs[0].text == "hello"
    assert world.engine.num_shared_streams == 1


async def test_what_waits_together_is_written_in_pieces_of_a_bounded_size(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "MAX_BATCH_BYTES", 700)
    stream = shared.SharedStream(engine_of(world)._stub)
    lines = [stream.open(engine_request(str(number), num_tokens=200), {}, lambda: None) for number in range(8)]
    ends = [[event async for event in line.events()][-1] for line in lines]
    await stream.close()

    assert all(isinstance(end, Finished) for end in ends)
    pieces = [[call.ByteSize() for call in message.calls] for message in world.engine.shared_messages]
    assert sum(map(len, pieces)) == 8
    assert 1 < len(pieces) < 8
    assert all(sum(piece[:-1]) < 700 for piece in pieces)  # the last one may be as long as it is


async def test_a_stream_that_is_closed_before_it_was_ever_read_ends_what_is_open(world: World) -> None:
    stream, refusals = shared.SharedStream(engine_of(world)._stub), []
    line = stream.open(engine_request("one"), {}, lambda: refusals.append("one"))
    await stream.close()

    with pytest.raises(NoEngineError):
        await anext(line.events())
    assert stream.is_over
    assert refusals == ["one"]


async def test_whatever_ends_the_writing_ends_the_stream(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> list[engine_pb2.CallRequest]:
        raise RuntimeError("a bug")

    world.engine.script = begun
    generation = tenant.stream()
    await anext(aiter(generation))
    stream = engine_of(world)._shared
    monkeypatch.setattr(stream, "_batch", broken)
    stream.send(engine_pb2.CallRequest(call_id=99, abandoned=True))

    assert (await refused(generation)).info.reason == "ENGINE_LOST"
    await (await world.engine.call()).ended.wait()
    world.engine.script = hello
    assert (await tenant.generate()).outputs[0].text == "hello"
    assert world.engine.num_shared_streams == 2


async def test_nothing_of_ended_calls_is_kept(world: World, tenant: Tenant) -> None:
    world.engine.script = stalled
    waiting = asyncio.ensure_future(tenant.generate())
    await world.engine.call()
    world.engine.script = hello
    await asyncio.gather(*(tenant.generate() for _ in range(20)))
    engine = engine_of(world)
    assert (engine.num_open_calls, len(engine._shared._lines)) == (1, 1)

    waiting.cancel()
    await asyncio.wait([waiting])
    await world.settled()
    assert (engine.num_open_calls, len(engine._shared._lines)) == (0, 0)
