"""One request id, several gateways: which of them has it, and when another one may take it over."""

import asyncio

import grpc
import pytest
from sqlalchemy import text

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.gateway.calls import get
from tests.gateway.fake_engine import begun, hello
from tests.gateway.test_request_ids import ID, Gate, on, raising, rows
from tests.gateway.world import Tenant, World, eventually, refused


async def test_of_two_gateways_one_runs_it_and_the_other_says_where(
    world: World, second_world: World, tenant: Tenant
) -> None:
    gate = world.engine.script = Gate()
    there = await on(second_world, tenant)
    callers = [tenant, there] * 10
    calls = [asyncio.ensure_future(caller.generate(request_id=ID)) for caller in callers]
    await world.engine.call()
    await eventually(lambda: sum(call.done() for call in calls) >= 10)
    gate.opened.set()
    answers = await asyncio.gather(*calls, return_exceptions=True)

    results = [answer for answer in answers if isinstance(answer, pb.GenerateResponse)]
    refusals = [await refused(raising(answer)) for answer in answers if not isinstance(answer, pb.GenerateResponse)]
    assert len(world.engine.calls) == 1
    assert len(results) == len(refusals) == 10
    assert {refusal.info.reason for refusal in refusals} == {"GENERATION_ELSEWHERE"}
    owner = {refusal.info.metadata["gateway"] for refusal in refusals}
    assert owner < {world.live.address, second_world.live.address}
    assert {refusal.code for refusal in refusals} == {grpc.StatusCode.UNAVAILABLE}
    assert all(refusal.retry is not None for refusal in refusals)


async def test_another_gateway_answers_a_finished_one_from_the_ledger(
    world: World, second_world: World, tenant: Tenant
) -> None:
    first = await tenant.generate(request_id=ID)
    await rows(world)
    await world.settled()
    there = await on(second_world, tenant)

    again = await there.generate(request_id=ID)
    state = await get(there, request_id=ID)

    assert again.replayed
    assert again.usage == first.usage == state.usage
    assert state.state == pb.GENERATION_STATE_FINISHED
    assert len(await world.usage_rows()) == 1


async def fall_silent(world: World) -> None:
    """No gateway has said for a minute that it runs anything."""
    async with world.database.session() as session:
        await session.execute(text("UPDATE generation_request SET seen_at = seen_at - interval '1 minute'"))


async def test_the_id_of_a_gateway_that_has_died_is_free_after_a_while(
    world: World, second_world: World, tenant: Tenant
) -> None:
    world.engine.script = begun
    running = tenant.stream(request_id=ID)
    await running.read()
    there = await on(second_world, tenant)
    early = await refused(there.generate(request_id=ID))
    await fall_silent(world)
    world.engine.script = hello
    late = await there.generate(request_id=ID)
    running.cancel()
    await eventually(lambda: not world.live.num_live_requests)

    assert early.info.reason == "GENERATION_ELSEWHERE"
    assert late.outputs[0].text == "hello"
    (row,) = await rows(second_world)
    await rows(world)  # what the first one says of its end is not about the row any more
    assert str(row["generation_id"]) == late.generation_id


async def test_a_gateway_that_only_the_database_has_lost_keeps_the_id_of_what_it_runs(
    world: World, second_world: World, tenant: Tenant
) -> None:
    world.engine.script = begun
    running = tenant.stream(request_id=ID)
    generation_id = (await running.read()).admission.generation_id
    there = await on(second_world, tenant)
    await fall_silent(world)
    world.engine.requests = [engine_pb2.RequestSummary(generation_id=generation_id)]
    while_it_runs = await refused(there.generate(request_id=ID))
    world.engine.requests = []
    world.engine.script = hello
    afterwards = await there.generate(request_id=ID)
    running.cancel()

    assert while_it_runs.info.reason == "GENERATION_ELSEWHERE"
    assert while_it_runs.info.metadata["gateway"] == world.live.address
    assert afterwards.generation_id != generation_id
    assert len(world.engine.calls) == 2


async def test_who_takes_an_id_over_finds_what_became_of_it_meanwhile(
    world: World, second_world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = world.engine.script = Gate()
    running = asyncio.ensure_future(tenant.generate(request_id=ID))
    await eventually(lambda: world.live.num_live_requests)
    there = await on(second_world, tenant)
    await fall_silent(world)

    async def ends_meanwhile(_generation_id: str) -> bool:
        gate.opened.set()
        await running
        await world.settled()
        return False

    async def write_nothing() -> None:
        """The ledger is faster."""

    monkeypatch.setattr(world.live._request_ids, "_write", write_nothing)
    monkeypatch.setattr(second_world.live._request_ids, "_runs", ends_meanwhile)
    again = await there.generate(request_id=ID)

    assert again.replayed
    assert again.generation_id == running.result().generation_id
    assert len(world.engine.calls) == 1
