"""Quotas that are reserved slice by slice: generations that outrun theirs pause, end, or go on as best effort."""

import asyncio
import time
from dataclasses import replace

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.quota_slices import BEST_EFFORT
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit
from tests.gateway.quotas import OUTPUT, drain, exhausted, expecting, five_tokens
from tests.gateway.world import World, refused


async def test_a_paused_generation_goes_on_when_the_bucket_has_refilled(shared_world: World) -> None:
    tenant = await expecting(shared_world, OUTPUT)
    began_s = time.monotonic()

    messages = await drain(tenant.stream(**exhausted(pb.QUOTA_EXHAUSTED_ACTION_PAUSE)))

    events = [message.WhichOneof("event") for message in messages]
    assert shared_world.engine.calls[0].start.grant_output_tokens == 20
    assert "preempted" in events
    assert {message.preempted.reason for message in messages if message.HasField("preempted")} == {"quota"}
    assert messages[-1].finish.finish_reason == pb.FINISH_REASON_LENGTH
    assert messages[-1].finish.usage.output_tokens == 60
    assert time.monotonic() - began_s >= 40 / 30  # forty tokens beyond the burst, thirty a second
    await shared_world.settled()
    assert shared_world.book.num_reservations == 0


async def test_a_generation_without_quota_can_end_as_a_result(shared_world: World) -> None:
    tenant = await expecting(shared_world, replace(OUTPUT, amount=1))

    response = await tenant.generate(**exhausted(pb.QUOTA_EXHAUSTED_ACTION_FINISH))

    assert response.outputs[0].finish_reason == pb.FINISH_REASON_QUOTA
    assert response.outputs[0].text == "x" * 20
    (row,) = await shared_world.usage_rows(tenant)
    assert (row["output_tokens"], row["finish_reason"]) == (20, "QUOTA")
    assert shared_world.book.num_reservations == 0


async def test_a_generation_without_quota_can_go_on_as_best_effort(shared_world: World) -> None:
    tenant = await expecting(shared_world, replace(OUTPUT, amount=1))

    response = await tenant.generate(**exhausted(pb.QUOTA_EXHAUSTED_ACTION_DEGRADE))

    assert response.usage.output_tokens == 60
    moved = await shared_world.engine.calls[0].control("set_class")
    assert moved.set_class.priority_class.name == BEST_EFFORT.name
    await shared_world.settled()
    refusal = await refused(tenant.generate())
    assert refusal.retry.retry_delay.seconds > 40 * 60  # forty tokens are owed, at one a minute


async def test_a_borrowing_generation_goes_on_as_best_effort_and_owes_nothing(world: World) -> None:
    tenant = await expecting(world, replace(OUTPUT, amount=1), mode=Mode.BORROW)

    response = await tenant.generate(stopping={"max_output_tokens": 300})

    assert response.usage.output_tokens == 300
    await world.settled()
    assert (await tenant.quota_status()).limits[0].remaining == 0
    assert world.book.num_reservations == 0


async def test_a_cancelled_generation_that_waits_for_quota_leaves_nothing_behind(world: World) -> None:
    tenant = await expecting(world, replace(OUTPUT, amount=1))
    stream = tenant.stream(**exhausted(pb.QUOTA_EXHAUSTED_ACTION_PAUSE))
    async for message in stream:
        if message.HasField("preempted"):
            break
    stream.cancel()

    await world.settled()
    assert world.book.num_reservations == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("quota of ")]


async def test_what_is_expected_follows_what_was_needed(world: World) -> None:
    tenant = await expecting(world, QuotaLimit(Dimension.OUTPUT_TOKENS, 10**9, 60_000, 10**9))
    spec = {"stopping": {"max_output_tokens": 500}}
    world.engine.script = five_tokens([0])
    for _ in range(8):
        await tenant.generate(**spec)
    await world.settled()
    await tenant.generate(**spec)

    grants = [call.start.grant_output_tokens for call in world.engine.calls]
    assert grants[0] == 256
    assert grants[-1] == 6
