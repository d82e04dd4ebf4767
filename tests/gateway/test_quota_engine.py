"""Quota pauses in a real engine process: sequences that stop at their grant and go on when the bucket has refilled."""

import asyncio
import time
from collections import abc
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.records import QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.engine.engine_process import EngineProcess, engine_process
from tests.gateway.refusals import refusal_of
from tests.gateway.world import Tenant, World

# Thirty tokens a second, forty at once: slower than any engine.
OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1_800, 60_000, 40)
PAUSE, DEGRADE, FINISH = (
    pb.QUOTA_EXHAUSTED_ACTION_PAUSE,
    pb.QUOTA_EXHAUSTED_ACTION_DEGRADE,
    pb.QUOTA_EXHAUSTED_ACTION_FINISH,
)


@pytest.fixture
def engine_alone(tmp_path: Path) -> abc.Iterator[EngineProcess]:
    with engine_process("tests.ledger.engine_process", tmp_path, "--log-format", "json") as process:
        process.wait_until_serving()
        yield process


@pytest_asyncio.fixture
async def real(closed_world: World, engine_alone: EngineProcess) -> World:
    """A gateway over a real engine with a fake model."""
    closed_world.options = {"engine": engine_alone.target}
    await closed_world.open()
    await closed_world.serving()
    return closed_world


async def expecting(world: World, limit: QuotaLimit, mode: Mode = Mode.ENFORCE) -> Tenant:
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=(limit,), mode=mode, reservation=ReservationMode.EXPECTED)
    await world.policy(ResourcePath("acme", "search"), settings)
    return tenant


async def run(tenant: Tenant, action: int, num_tokens: int) -> list[pb.StreamGenerateResponse]:
    options = pb.AdmissionOptions(on_quota_exhausted=action)
    stopping = {"max_output_tokens": num_tokens, "ignore_eos": True}
    return [message async for message in tenant.stream(timeout=60, admission=options, stopping=stopping)]


async def until_done(tenant: Tenant, num_tokens: int) -> list[pb.StreamGenerateResponse]:
    """Tries again when it is told to."""
    while True:
        try:
            return await run(tenant, PAUSE, num_tokens)
        except grpc.aio.AioRpcError as error:
            await asyncio.sleep(refusal_of(error).retry.retry_delay.ToNanoseconds() / 1e9)


async def test_paused_generations_share_the_refill_and_overshoot_by_nothing(real: World) -> None:
    tenant = await expecting(real, OUTPUT)
    began_s = time.monotonic()

    streams = await asyncio.gather(*(until_done(tenant, 80) for _ in range(2)))

    elapsed_s = time.monotonic() - began_s
    pauses = [message.preempted.reason for messages in streams for message in messages if message.HasField("preempted")]
    assert set(pauses) == {"quota"}
    for messages in streams:
        assert messages[-1].finish.finish_reason == pb.FINISH_REASON_LENGTH
        assert messages[-1].finish.usage.output_tokens == 80
    assert sum(message.HasField("resumed") for messages in streams for message in messages) == len(pauses)
    assert OUTPUT.burst + OUTPUT.amount * elapsed_s / 60 >= 160
    await real.settled()
    assert real.book.num_reservations == 0


async def test_a_degraded_generation_is_not_held_up(real: World) -> None:
    tenant = await expecting(real, replace(OUTPUT, amount=1))

    messages = await run(tenant, DEGRADE, 150)

    assert messages[-1].finish.usage.output_tokens == 150
    assert messages[-1].finish.finish_reason == pb.FINISH_REASON_LENGTH


async def test_a_finished_generation_is_billed_for_what_it_was_granted(real: World) -> None:
    tenant = await expecting(real, replace(OUTPUT, amount=1))

    messages = await run(tenant, FINISH, 150)

    assert messages[-1].finish.finish_reason == pb.FINISH_REASON_QUOTA
    (row,) = await real.usage_rows()
    assert (row["output_tokens"], row["finish_reason"]) == (40, "QUOTA")


async def test_borrowed_work_runs_on_an_idle_engine(real: World) -> None:
    tenant = await expecting(real, replace(OUTPUT, amount=1), Mode.BORROW)

    first, second = await run(tenant, PAUSE, 150), await run(tenant, PAUSE, 150)

    assert [messages[-1].finish.usage.output_tokens for messages in (first, second)] == [150, 150]
    rows = await real.usage_rows()
    assert [row["priority_class"] for row in rows] == ["default", "best_effort"]
