"""Quota of what runs already, through the whole gateway: changed limits, cut-short outputs, dry runs, idle tokens."""

import asyncio
from contextlib import suppress

import grpc
import pytest

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import StoreUnavailableError
from gateway.quota_terms import Mode, Reserved
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.records import QuotaLimit, QuotaPolicySettings
from tests.gateway.quotas import HOUR_MS, ONE_REQUEST, SLOTS, exhausted, expecting, five_tokens, team_of
from tests.gateway.world import World, eventually

SLOW = QuotaLimit(Dimension.OUTPUT_TOKENS, 60, HOUR_MS, 20)


async def test_a_paused_generation_goes_on_when_its_limit_is_raised(world: World) -> None:
    tenant = await expecting(world, SLOW)
    stream = tenant.stream(**exhausted(pb.QUOTA_EXHAUSTED_ACTION_PAUSE))
    async for message in stream:
        if message.HasField("preempted"):
            break
    raised = QuotaLimit(Dimension.OUTPUT_TOKENS, 60_000, HOUR_MS, 20_000)
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=(raised,), reservation=ReservationMode.EXPECTED))

    async with asyncio.timeout(60):  # under the old limit forty tokens more take as many minutes
        messages = [message async for message in stream]

    assert messages[-1].finish.usage.output_tokens == 60
    await world.settled()
    assert world.book.num_reservations == len(world.live._admission._live) == 0


async def test_outputs_that_were_cut_short_tell_nothing_of_what_is_needed(world: World) -> None:
    tenant = await expecting(world, QuotaLimit(Dimension.OUTPUT_TOKENS, 10**9, 60_000, 10**9))
    for _ in range(8):
        stream = tenant.stream(stopping={"max_output_tokens": 500})
        async for message in stream:
            if message.HasField("token_delta"):
                break
        stream.cancel()
        await world.settled()
    world.engine.script = five_tokens([0])
    await tenant.generate(stopping={"max_output_tokens": 500})

    assert world.engine.calls[-1].start.grant_output_tokens == 256


async def test_a_dry_run_makes_no_reservation_not_even_for_a_moment(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await world.tenant(limits=(ONE_REQUEST, SLOTS))

    async def reserve(*args: object) -> Reserved:
        raise AssertionError("a dry run reserves")

    monkeypatch.setattr(world.book, "reserve", reserve)
    assert (await tenant.check_admission()).admitted


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_idle_tokens_come_back_where_the_quota_cannot_be_asked(
    world: World, monkeypatch: pytest.MonkeyPatch, *, is_cancelled: bool
) -> None:
    tenant = await world.tenant(limits=(ONE_REQUEST,))
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=(ONE_REQUEST,), mode=Mode.BORROW))
    await tenant.generate()
    reserve, num_calls = world.book.reserve, 0
    taken = []

    class Idle:
        async def take(self, model: str, num_tokens: int) -> "Idle":
            taken.append(num_tokens)
            return self

        def give_back(self) -> None:
            taken.pop()

    async def second_fails(*args: object) -> object:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 2:
            await asyncio.sleep(60 if is_cancelled else 0)
            raise StoreUnavailableError
        return await reserve(*args)

    monkeypatch.setattr(world.book, "reserve", second_fails)
    monkeypatch.setattr(world.live._admission, "_idle", Idle())
    with suppress(grpc.aio.AioRpcError, TimeoutError):
        await asyncio.wait_for(tenant.generate(), 1)
    await eventually(lambda: num_calls >= 2 and not taken)
