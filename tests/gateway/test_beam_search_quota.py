"""The quota of beam searches: all that their beams may use is reserved, and what they used is what stays charged."""

import asyncio
from dataclasses import replace

import pytest

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.quota_expected import DEFAULT_TOKENS
from gateway.quota_slices import BEST_EFFORT
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.records import QuotaLimit, QuotaPolicySettings
from tests.gateway.fake_engine import FakeCall, hello
from tests.gateway.quotas import HOUR_MS, team_of
from tests.gateway.searches import NUM_STEPS, SearchGate, searched, searching, tell_found
from tests.gateway.world import Tenant, World, refused

FOUR = pb.BeamSearchOptions(width=4, num_returned=2)
OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1, HOUR_MS, 100)


async def remaining(tenant: Tenant) -> list[int]:
    return [limit.remaining for limit in (await tenant.quota_status()).limits]


async def test_what_all_beams_may_use_is_held_while_it_runs_and_what_they_used_is_charged(shared_world: World) -> None:
    gate = shared_world.engine.script = SearchGate()
    tenant = await shared_world.tenant(limits=(OUTPUT, QuotaLimit(Dimension.REQUESTS, 1, HOUR_MS, 10)))
    running = asyncio.ensure_future(tenant.generate(beam_search=FOUR))
    await shared_world.engine.call()
    held = await remaining(tenant)
    gate.opened.set()
    answer = await running
    await shared_world.settled()

    assert held == [100 - 4 * 8, 9]
    assert answer.usage.output_tokens == 4 * NUM_STEPS
    assert await remaining(tenant) == [100 - 4 * NUM_STEPS, 9]
    assert shared_world.book.num_reservations == 0


async def test_a_search_that_is_larger_than_a_burst_is_told_that_waiting_does_not_help(shared_world: World) -> None:
    shared_world.engine.script = searched
    tenant = await shared_world.tenant(limits=(replace(OUTPUT, burst=31),))

    refusal = await refused(tenant.generate(beam_search=FOUR))
    fits = await tenant.generate(beam_search=FOUR, stopping={"max_output_tokens": 7})

    assert (refusal.info.reason, refusal.retry) == ("REQUEST_EXCEEDS_LIMIT", None)
    assert refusal.message.startswith("the request and its 4 beams may use 32 output tokens, ")
    assert len(fits.outputs) == 2
    assert len(shared_world.engine.calls) == 1


async def test_a_search_that_has_to_wait_is_told_what_its_beams_need_and_until_when_that_is_there(world: World) -> None:
    """24 of 40 tokens were used and 32 are needed: the 16 that are missing come in 1,600 seconds."""
    world.engine.script = searched
    requests = QuotaLimit(Dimension.REQUESTS, 60, HOUR_MS, 1)
    tenant = await world.tenant(limits=(replace(OUTPUT, amount=36, burst=40), requests))
    await tenant.generate(beam_search=FOUR)
    await world.settled()
    refusal = await refused(tenant.generate(beam_search=FOUR))

    told = {violation.quota_metric: violation.description for violation in refusal.quota.violations}
    assert told["output_tokens"].endswith("at most 40 at once; the request and its 4 beams may use 32 output tokens")
    assert told["requests"].endswith("60 requests per 3600 s, at most 1 at once")
    assert 1_500 < refusal.retry.retry_delay.seconds <= 1_600


async def test_the_hold_of_a_search_is_told_at_its_beginning(world: World) -> None:
    world.engine.script = searched
    tenant = await world.tenant(limits=(OUTPUT,))
    first, *_ = [message async for message in tenant.stream(beam_search=FOUR)]

    assert (first.admission.input_tokens, first.admission.reserved_tokens) == (2, 2 + 4 * 8)


async def test_a_dry_run_counts_all_beams(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(replace(OUTPUT, burst=31),))
    told = await tenant.check_admission(beam_search=FOUR)

    assert told.reason == "REQUEST_EXCEEDS_LIMIT"
    assert told.descriptions[0].startswith("the request and its 4 beams may use 32 output tokens, ")
    assert (await tenant.check_admission(beam_search=FOUR, stopping={"max_output_tokens": 7})).admitted


async def test_a_cancelled_search_is_charged_for_what_was_computed(shared_world: World) -> None:
    shared_world.engine.script = searching
    tenant = await shared_world.tenant(limits=(OUTPUT,))
    stream = tenant.stream(beam_search=FOUR)
    await stream.read()
    await shared_world.engine.call()
    stream.cancel()
    await shared_world.settled()

    assert await remaining(tenant) == [100 - 4 * 3]


async def test_all_of_a_search_is_held_where_a_policy_reserves_what_is_expected(world: World) -> None:
    gate = world.engine.script = SearchGate()
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=(replace(OUTPUT, burst=2000),), reservation=ReservationMode.EXPECTED)
    await world.policy(team_of(tenant), settings)
    running = asyncio.ensure_future(tenant.generate(beam_search=FOUR, stopping={"max_output_tokens": 400}))
    call = await world.engine.call()
    held = await remaining(tenant)
    gate.opened.set()
    answer = await running
    await world.settled()

    assert (held, call.start.HasField("grant_output_tokens")) == ([2000 - 4 * 400], False)
    assert await remaining(tenant) == [2000 - answer.usage.output_tokens]
    refusal = await refused(tenant.generate(beam_search=FOUR, stopping={"max_output_tokens": 501}))
    assert refusal.info.reason == "REQUEST_EXCEEDS_LIMIT"


async def test_searches_say_nothing_of_what_other_requests_are_expected_to_need(world: World) -> None:
    world.engine.script = searched
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=(replace(OUTPUT, burst=2000),), reservation=ReservationMode.EXPECTED)
    await world.policy(team_of(tenant), settings)
    for _ in range(8):
        await tenant.generate(beam_search=FOUR)
    await world.settled()
    world.engine.script = hello
    await tenant.generate(stopping={"max_output_tokens": 400})

    assert world.engine.calls[-1].start.grant_output_tokens == DEFAULT_TOKENS


async def test_a_search_over_a_limit_that_lends_runs_as_best_effort(world: World) -> None:
    world.engine.script = searched
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=(replace(OUTPUT, burst=10),), mode=Mode.BORROW)
    await world.policy(team_of(tenant), settings)
    await tenant.generate(beam_search=FOUR)

    assert world.engine.calls[0].start.priority_class.name == BEST_EFFORT.name
    assert await remaining(tenant) == [10]


@pytest.mark.parametrize("is_cached", [False, True])
async def test_cost_units_count_what_all_beams_computed(shared_world: World, is_cached: bool) -> None:
    async def script(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        if is_cached:
            await call.find(0, b"ab", -1.0)
            await call.finish(engine_pb2.FINISH_REASON_STOP, output_tokens=12, cached_tokens=1)
        else:
            await tell_found(call)

    shared_world.engine.script = script
    tenant = await shared_world.tenant(limits=(QuotaLimit(Dimension.COST_UNITS, 1, HOUR_MS, 1000),))
    await tenant.generate(beam_search=FOUR)
    await shared_world.settled()

    assert await remaining(tenant) == [1000 - 2 - 2 * (12 if is_cached else 24)]
