"""Thousands of short requests on one engine, many of them cancelled in one way or another: nothing is left of them."""

import asyncio
import gc
import os
import random

import grpc
import pytest

from engine.core.sequence import Sequence
from engine.grammars.matcher import OutputMatcher
from engine.server.intake import Call
from engine.server.mailbox import Mailbox
from evenflow.engine.v1 import engine_pb2 as pb
from tests.engine.small_engine import CONFIG, serving_model, small_model
from tests.engine.wire import cancel, generate, start, until_blocks_are_free

NUM_AT_ONCE = 48
LONGEST_S = 110.0  # a test that waits for ever fails
SCHEMA = (
    '{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false}'
)


def grammar(rng: random.Random, number: int) -> pb.Grammar | None:
    """None for most; else one that many have, or one of its own."""
    if rng.random() < 0.6:
        return None
    own = pb.Grammar(regex=f"[a-c]{{1,9}}{number % 997}")
    return rng.choice([pb.Grammar(json_schema=SCHEMA), pb.Grammar(regex="(hello |world ){1,4}"), own])


async def play(stub, number: int) -> str:
    """One client's life: how it ended."""
    rng = random.Random(number)
    fields = {"prompt": [rng.randrange(2, 290) for _ in range(rng.randint(1, 20))], "tenant": ("o", rng.choice("abc"))}
    fields |= {"max_output_tokens": rng.randint(1, 14), "speculation": rng.random() < 0.5}
    if rng.random() < 0.1:
        fields["deadline_ns"] = rng.randrange(50_000_000)
    sampling = {"seed": number, "grammar": grammar(rng, number)}
    answer = generate(stub, start(f"g{number}", sampling=sampling, **fields))
    act = rng.choice(["read", "read", "read", "cancel", "cancel_rpc", "go"])
    for _ in range(rng.randint(0, 3) if act != "read" else 0):
        if await answer.read() is None:
            return "ended"
    if act == "cancel":
        answer.write(cancel())
    elif act != "read":
        answer.cancel_rpc()
        if act == "go":
            return act
    try:
        return (await answer.to_end()).reason
    except (grpc.aio.AioRpcError, asyncio.CancelledError):
        assert act == "cancel_rpc"
        return act


async def play_all(stub, numbers: range) -> list[str]:
    places = asyncio.Semaphore(NUM_AT_ONCE)

    async def play_one(number: int) -> str:
        async with places:
            return await play(stub, number)

    async with asyncio.TaskGroup() as group:
        plays = [group.create_task(play_one(number)) for number in numbers]
    return [each.result() for each in plays]


async def settled(stub) -> None:
    """Nothing holds a block, and the runner has heard of every row that was stopped."""
    await until_blocks_are_free(stub)
    await generate(stub, start("last", max_output_tokens=2)).to_end()
    await until_blocks_are_free(stub)


async def until_tasks_are_at_most(num_tasks: int) -> None:
    """Those of calls that have ended go a little later."""
    while len(asyncio.all_tasks()) > num_tasks:  # noqa: ASYNC110 - the library announces nothing
        await asyncio.sleep(0.01)


def leftovers(*known: object) -> list[object]:
    """What calls leave in this process, but for those that are known."""
    gc.collect()
    known_ids = set(map(id, known))
    found = [thing for thing in gc.get_objects() if type(thing) in (Call, Mailbox, Sequence, OutputMatcher)]
    return [thing for thing in found if id(thing) not in known_ids]


@pytest.mark.parametrize("num_requests", [400, pytest.param(5000, marks=pytest.mark.slow)])
async def test_many_short_requests_leave_nothing_behind(tmp_path, num_requests):
    model = small_model(tmp_path / "m")
    async with asyncio.timeout(LONGEST_S), serving_model(model, tmp_path) as (server, stub):
        await play_all(stub, range(100))
        await settled(stub)
        num_files, num_tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        of_others = leftovers()
        ends = await play_all(stub, range(100, 100 + num_requests))
        await settled(stub)

        assert {"LENGTH", "CANCELLED", "cancel_rpc", "go"} <= set(ends)
        await until_tasks_are_at_most(num_tasks)
        assert len(os.listdir("/proc/self/fd")) <= num_files
        assert not leftovers(*of_others)
        grammars = server._intake.grammars
        assert not grammars._pending
        assert not grammars._turns._waiting
        assert not grammars._turns._begun
        stats = await until_blocks_are_free(stub)
        assert (stats.free_device_blocks, stats.fenced_device_blocks) == (CONFIG.num_device_blocks, 0)
        inner = server._loop._scheduler
        assert inner.lifecycle.rows.num_free == CONFIG.max_num_seqs
        assert not inner.lifecycle.running + inner.lifecycle.paused + inner.lifecycle.held
