"""A client that does not read: the gateway's buffer stays bounded, the engine holds the sequence, nothing is lost."""

import asyncio

from tests.gateway.fake_engine import FakeCall
from tests.gateway.world import World, eventually
from tests.telemetry.measured import value

CHUNK = b"0123456789abcdef" * 64
NUM_CHUNKS = 2_000  # two megabytes: more than sockets and transports hold for a reader that does not read


async def test_the_engine_is_told_to_hold_and_to_go_on_and_every_token_arrives_once(world: World) -> None:
    tenant = await world.tenant()
    num_sent = 0
    was_held = asyncio.Event()

    async def script(call: FakeCall) -> None:
        nonlocal num_sent
        await call.accept()
        await call.admit()
        for _ in range(NUM_CHUNKS):
            if call.is_held:
                was_held.set()
                await eventually(lambda: not call.is_held)
            await call.emit(CHUNK)
            num_sent += 1
            await asyncio.sleep(0)
        await call.finish()

    world.engine.script = script
    stream = tenant.stream(stopping={"max_output_tokens": 1000})
    await stream.read()
    await was_held.wait()
    (generation,) = world.live._live

    assert num_sent < NUM_CHUNKS
    # What was on its way when the engine heard of it comes on top of the bound.
    assert generation.journal.num_kept_tokens <= 8192 + 100 * len(CHUNK)
    num_received = 0
    while not (message := await stream.read()).HasField("finish"):
        num_received += len(message.token_delta.text)
        assert message.token_delta.output_tokens_so_far == num_received
    assert num_received == NUM_CHUNKS * len(CHUNK) == message.finish.usage.output_tokens
    await world.settled()
    assert value(world.live._meters, "evenflow_stream_slow_reader_total") >= 1


async def test_a_client_that_reads_is_never_held(world: World) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        for _ in range(200):
            await call.emit(b"x" * 16)
            await asyncio.sleep(0)
        await call.finish()

    world.engine.script = script
    tenant = await world.tenant()
    messages = [message async for message in tenant.stream()]

    assert sum(len(message.token_delta.text) for message in messages) == 3_200
    assert not (await world.engine.call()).controls
    await world.settled()
    assert value(world.live._meters, "evenflow_stream_slow_reader_total") == 0
