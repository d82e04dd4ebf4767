"""Quotas through the whole gateway: ceilings under concurrency, true waits, budgets, modes, grants, refusals."""

import asyncio
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import grpc
import pytest
from sqlalchemy import text

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.quota_slices import BEST_EFFORT
from gateway.quota_terms import Calendar, Mode
from gateway.store.enums import Dimension
from gateway.store.grants import NewGrant, grant_quota
from gateway.store.records import QuotaBudget, QuotaCost, QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.gateway.fake_engine import FakeCall, stalled
from tests.gateway.quotas import HOUR_MS, ONE_REQUEST, SLOTS, TOKENS, drain, five_tokens, team_of
from tests.gateway.refusals import refusal_of
from tests.gateway.world import CHANGE, World, refused

NUM_CALLERS = 200


@pytest.mark.parametrize("is_stream", [False, True])
async def test_two_hundred_callers_at_once_use_no_token_too_many(shared_world: World, is_stream: bool) -> None:
    most_running = [0]
    shared_world.engine.script = five_tokens(most_running)
    tenant = await shared_world.tenant(limits=(TOKENS, SLOTS))
    began_s = time.monotonic()

    async def call() -> str:
        try:
            await (drain(tenant.stream()) if is_stream else tenant.generate())
        except grpc.aio.AioRpcError as error:
            return refusal_of(error).info.reason
        return ""

    reasons = await asyncio.gather(*(call() for _ in range(NUM_CALLERS)))
    rows = await shared_world.usage_rows(tenant)
    elapsed_s = time.monotonic() - began_s
    used = sum(row["billed_tokens"] for row in rows)

    assert used <= TOKENS.burst + TOKENS.amount * elapsed_s / 60
    assert most_running[0] <= SLOTS.amount
    assert set(reasons) == {"", "RATE_LIMITED"}
    assert len(rows) == reasons.count("") == len(shared_world.engine.calls)
    assert shared_world.book.num_reservations == 0


async def test_a_client_that_waits_as_long_as_it_is_told_succeeds(shared_world: World) -> None:
    # Ten tokens are reserved and seven used, so that settlements come in between, which only shorten the wait.
    shared_world.engine.script = five_tokens([0])
    tenant = await shared_world.tenant(limits=(replace(TOKENS, amount=1200, burst=10),))
    num_waits = num_failures = 0
    while num_waits < 8:
        try:
            await tenant.generate()
            continue
        except grpc.aio.AioRpcError as error:
            refusal = refusal_of(error)
        num_waits += 1
        wait_ns = refusal.retry.retry_delay.ToNanoseconds()
        assert 0 < wait_ns <= 500_000_000
        assert int(refusal.trailers["grpc-retry-pushback-ms"]) == -(-wait_ns // 10**6)
        await asyncio.sleep(wait_ns / 1e9)
        try:
            await tenant.generate()
        except grpc.aio.AioRpcError:
            num_failures += 1
    assert num_failures == 0


async def test_a_denial_names_every_violated_node_and_the_longest_wait(shared_world: World) -> None:
    tenant = await shared_world.tenant(limits=(ONE_REQUEST,))
    organization = ResourcePath(tenant.path.organization)
    await shared_world.limit(organization, (QuotaLimit(Dimension.TOTAL_TOKENS, 10, 2 * HOUR_MS, 10),))
    shared_world.engine.script = five_tokens([0])
    await tenant.generate()
    await shared_world.settled()

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED")
    assert {(violation.subject, violation.quota_metric) for violation in refusal.quota.violations} == {
        (team_of(tenant).name, "requests"),
        (organization.name, "total_tokens"),
    }
    # Seven of ten tokens are used, ten are asked for, and one comes every twelve minutes; the request's is an hour off.
    assert 83 * 60 < refusal.retry.retry_delay.seconds <= 84 * 60


@pytest.mark.parametrize(("left", "has_retry"), [(timedelta(hours=2), False), (timedelta(minutes=20), True)])
async def test_a_spent_budget(world: World, left: timedelta, has_retry: bool) -> None:
    midnight = datetime(2026, 12, 1, tzinfo=UTC)
    world.live._admission._wall_clock_ns = lambda: int((midnight - left).timestamp()) * 10**9
    tenant = await world.tenant()
    costs = (QuotaCost(input_token=10, cached_input_token=1, output_token=100),)
    budgets = (QuotaBudget(Calendar.MONTH, 1300),)
    await world.policy(team_of(tenant), QuotaPolicySettings(budgets=budgets, costs=costs))
    world.engine.script = five_tokens([0])
    await tenant.generate()
    await world.settled()

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED")
    assert [(violation.subject, violation.quota_metric) for violation in refusal.quota.violations] == [
        (team_of(tenant).name, "budget")
    ]
    assert (refusal.retry is not None) == has_retry
    assert ("grpc-retry-pushback-ms" in refusal.trailers) == has_retry
    if has_retry:
        assert refusal.retry.retry_delay.seconds == left.total_seconds()


async def test_cached_input_costs_what_the_price_list_says(shared_world: World) -> None:
    async def half_cached(call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"a")
        usage = engine_pb2.Usage(prompt_tokens=10, cached_prompt_tokens=8, output_tokens=1)
        await call._write(finished=engine_pb2.Finished(reason=engine_pb2.FINISH_REASON_LENGTH, usage=usage))

    shared_world.engine.script = half_cached
    tenant = await shared_world.tenant()
    limits = (QuotaLimit(Dimension.COST_UNITS, 1, 10**9, 10_000),)
    costs = (QuotaCost(input_token=10, cached_input_token=1, output_token=100),)
    await shared_world.policy(team_of(tenant), QuotaPolicySettings(limits=limits, costs=costs))
    await tenant.generate(text="0123456789")
    await shared_world.settled()

    status = await tenant.quota_status()

    assert status.limits[0].remaining == 10_000 - (2 * 10 + 8 * 1 + 100)


async def test_a_shadow_limit_refuses_nobody_and_is_counted(world: World) -> None:
    tenant = await world.tenant()
    limits = (replace(ONE_REQUEST, burst=2),)
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=limits, mode=Mode.SHADOW))
    for _ in range(5):
        await tenant.generate()
    await world.denials_written()

    counts = world.live._denials.counts.report()
    assert counts.shadow_denials == {("acme/search", "team", "requests"): 3}
    assert counts.denials == {}
    async with world.database.session() as session:
        rows = (await session.execute(text("SELECT is_shadow, reason, nodes FROM denial_event"))).all()
    assert [tuple(row) for row in rows] == [(True, "", [team_of(tenant).name])] * 3
    page = {family.name: family for family in await world.live._page._collect()}
    (sample,) = page["evenflow_quota_shadow_denials"].samples
    assert (sample.value, sample.labels) == (3, {"tenant": "acme/search", "level": "team", "dimension": "requests"})


async def test_work_over_a_borrow_limit_runs_as_best_effort_while_the_engine_is_idle(world: World) -> None:
    tenant = await world.tenant()
    limits = (ONE_REQUEST,)
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=limits, mode=Mode.BORROW))

    await tenant.generate()
    await tenant.generate()
    own, borrowed = (call.start.priority_class for call in world.engine.calls)
    assert own.name == "default"
    assert (borrowed.name, borrowed.rank, borrowed.preemptible) == (BEST_EFFORT.name, BEST_EFFORT.rank, True)
    assert borrowed.rank > max(record.rank for record in world.cache.current.classes.values())

    world.engine.num_waiting = 1
    await asyncio.sleep(0.3)  # an answer about idle tokens lasts a quarter of a second
    refusal = await refused(tenant.generate())
    assert refusal.info.reason == "RATE_LIMITED"
    assert refusal.retry.retry_delay.seconds > 50


async def test_idle_tokens_are_lent_once_to_a_burst_of_requests(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.quota_idle.ANSWER_LASTS_S", 60.0)
    # The engine has room for 2048 tokens; each request may use 202 of them.
    tenant = await world.tenant()
    limits = (ONE_REQUEST,)
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=limits, mode=Mode.BORROW))
    world.engine.script = stalled
    spec = {"stopping": {"max_output_tokens": 200}}
    streams = [tenant.stream(**spec) for _ in range(20)]

    heard = await asyncio.gather(*(stream.read() for stream in streams), return_exceptions=True)

    num_admitted = sum(isinstance(message, pb.StreamGenerateResponse) for message in heard)
    assert num_admitted == 1 + 2048 // 202
    for stream in streams:
        stream.cancel()


async def test_a_limit_that_binds_is_not_borrowed_over(world: World) -> None:
    tenant = await world.tenant()
    limits = (ONE_REQUEST,)
    await world.policy(team_of(tenant), QuotaPolicySettings(limits=limits, mode=Mode.BORROW))
    await world.limit(ResourcePath(tenant.path.organization), (replace(ONE_REQUEST, burst=2),))

    await tenant.generate()
    await tenant.generate()
    refusal = await refused(tenant.generate())

    assert {violation.subject for violation in refusal.quota.violations} == {
        team_of(tenant).name,
        tenant.path.name.partition("/teams/")[0],
    }


async def test_a_grant_raises_a_limit_until_it_ends(world: World) -> None:
    tenant = await world.tenant(limits=(ONE_REQUEST,))
    ends = datetime.now(UTC) + timedelta(hours=1)
    grant = NewGrant(Dimension.REQUESTS, None, "", 4, None, ends, "a launch")
    await grant_quota(world.database, CHANGE, team_of(tenant), "default", grant)
    await world.cache.refresh()
    for _ in range(4):
        await tenant.generate()
    assert (await refused(tenant.generate())).info.reason == "RATE_LIMITED"

    world.live._admission._wall_clock_ns = lambda: int(ends.timestamp() + 1) * 10**9
    assert (await tenant.quota_status()).limits[0].limit == 1


async def test_refusals_are_on_record_with_their_sizes(world: World) -> None:
    tenant = await world.tenant(limits=(ONE_REQUEST,))
    await tenant.generate()
    await refused(tenant.generate(text="abcd", stopping={"max_output_tokens": 30}))
    await world.denials_written()

    async with world.database.session() as session:
        (row,) = (await session.execute(text("SELECT * FROM denial_event"))).mappings().all()
    assert (row["input_tokens"], row["max_output_tokens"], row["reserved_tokens"]) == (4, 30, 34)
    assert (row["reason"], row["is_shadow"]) == ("RATE_LIMITED", False)
    assert (row["nodes"], row["dimensions"]) == ([team_of(tenant).name], ["REQUESTS"])
    assert HOUR_MS - 60_000 < row["waits_ms"][0] <= HOUR_MS
    assert (row["team_id"], row["key_id"]) == (tenant.team_id, tenant.key_id)
