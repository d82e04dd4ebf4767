"""Clients that go away mid-stream, and clients that do not read: nothing is left behind, and others keep their pace."""

import asyncio
import gc
import json
import os

import pytest

from gateway.http.call import HttpCall
from gateway.http.event_stream import EventStream
from gateway.http.protocol import GuardedProtocol
from tests.gateway.fake_engine import FakeCall
from tests.gateway.http.test_connections import CHAT, Wire, head
from tests.gateway.world import Tenant, World, eventually

NUM_AT_ONCE = 50
ENDLESS, PACED = 2000, 500  # what tells the requests apart: their longest output
PIECE = b"x" * 512
NUM_PIECES = 10


async def ask(world: World, tenant: Tenant, max_tokens: int) -> Wire:
    """A connection on which a stream was asked for, and which ends with it."""
    body = json.dumps(CHAT | {"stream": True, "max_tokens": max_tokens}).encode()
    wire = await Wire.to(world)
    await wire.send(head(tenant, f"content-length: {len(body)}", "connection: close") + body)
    return wire


async def begin(world: World, tenant: Tenant) -> Wire:
    """A stream of which the first piece has come, and that goes on for ever."""
    wire = await ask(world, tenant, ENDLESS)
    await wire.reader.readuntil(b'"content":"xx')
    return wire


async def reads_to_its_end(wire: Wire) -> bool:
    last = b""
    while piece := await wire.reader.read(2**16):
        last = last[-32:] + piece
    wire.close()
    return b"[DONE]" in last


class Paced:
    """A stream whose pieces the engine makes one by one, each when it is asked for."""

    def __init__(self, max_tokens: int = PACED) -> None:
        self.max_tokens = max_tokens
        self._wanted: asyncio.Queue[bytes] = asyncio.Queue()

    async def script(self, call: FakeCall) -> None:
        while piece := await self._wanted.get():
            await call.emit(piece)
        await call.finish()

    async def begin(self, world: World, tenant: Tenant) -> None:
        self._wire = await ask(world, tenant, self.max_tokens)

    async def piece(self) -> None:
        self._wanted.put_nowait(b"p")
        await self._wire.reader.readuntil(b'"content":"p"')

    async def pieces_during(self, others: asyncio.Future) -> int:
        """How many of a few pieces came before the others were done."""
        num_before = 0
        for _ in range(NUM_PIECES):
            await self.piece()
            num_before += not others.done()
        return num_before

    async def end(self) -> bool:
        self._wanted.put_nowait(b"")
        return await reads_to_its_end(self._wire)


def num_tasks_of_requests() -> int:
    names = [task.get_name() for task in asyncio.all_tasks()]
    return sum(name.startswith(("generation ", "heartbeat")) for name in names)


def num_left(*kinds: type) -> int:
    """Objects of these kinds that somebody still holds."""
    gc.collect()
    return sum(type(each) in kinds for each in gc.get_objects())


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [100, pytest.param(1000, marks=pytest.mark.slow)])
async def test_clients_that_go_away_leave_nothing_behind(world: World, tenant: Tenant, number: int) -> None:
    other = Paced()

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        if call.start.max_output_tokens == PACED:
            await other.script(call)
            return
        await call.emit(b"xxxx")
        await call.until_cancelled()

    async def visit() -> None:
        wire = await begin(world, tenant)
        wire.writer.transport.abort()

    world.engine.script = script
    connections = world.http_state.connections
    await visit()
    await eventually(lambda: not connections and not world.live.num_live_requests)
    num_before = num_descriptors()
    await other.begin(world, tenant)
    for _ in range(number // NUM_AT_ONCE):
        visits = asyncio.gather(*(visit() for _ in range(NUM_AT_ONCE)))
        assert await other.pieces_during(visits)
        await visits
        await eventually(lambda: world.live.num_live_requests == 1)
        world.engine.calls.clear()

    assert await other.end()
    rows = await world.usage_rows()
    await eventually(lambda: not connections)
    assert [row["finish_reason"] for row in rows].count("CANCELLED") == number + 1
    assert len(rows) == number + 2
    assert world.book.num_reservations == 0
    assert num_tasks_of_requests() == 0
    assert not world.http_state.tasks
    await eventually(lambda: num_left(HttpCall, EventStream, GuardedProtocol) == 0)
    assert num_descriptors() < num_before + number // 5  # the database's connections come and go


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [20, pytest.param(200, marks=pytest.mark.slow)])
async def test_readers_that_are_slow_hold_up_nobody_else(world: World, tenant: Tenant, number: int) -> None:
    reads_on = asyncio.Event()
    others = {PACED + index: Paced(PACED + index) for index in range(4)}

    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        if call.start.max_output_tokens in others:
            await others[call.start.max_output_tokens].script(call)
            return
        await call.emit(b"xxxx")
        while not call.is_held and call.num_emitted < 10**7:
            await call.emit(PIECE)
            await asyncio.sleep(0)
        await reads_on.wait()
        await call.finish()

    world.engine.script = script
    slow = [await begin(world, tenant) for _ in range(number)]
    for wire in slow:
        wire.writer.transport.pause_reading()
    await eventually(lambda: all(call.is_held for call in world.engine.calls))
    held = list(world.engine.calls)
    for other in others.values():
        await other.begin(world, tenant)
        for _ in range(NUM_PIECES):
            await other.piece()
    assert all(call.is_held for call in held)  # all the while: one that is read again is let go
    assert all([await other.end() for other in others.values()])
    reads_on.set()
    for wire in slow:
        wire.writer.transport.resume_reading()
    ended = await asyncio.gather(*(reads_to_its_end(wire) for wire in slow))

    assert (
        max(call.num_emitted for call in held) < 10**6
    )  # bytes; a connection and its journal hold no more of what is not read
    assert all(ended)
    rows = await world.usage_rows()
    assert len(rows) == number + 4
    assert world.book.num_reservations == 0
    assert num_tasks_of_requests() == 0
