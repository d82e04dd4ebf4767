"""Quotas through the whole gateway: ceilings under concurrency, true waits, modes, slices, budgets, refusals."""

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
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.grants import NewGrant, grant_quota
from gateway.store.key_ends import revoke_key
from gateway.store.records import QuotaBudget, QuotaCost, QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.gateway.fake_engine import FakeCall, stalled
from tests.gateway.refusals import refusal_of
from tests.gateway.world import CHANGE, Tenant, World, eventually, refused

NUM_CALLERS = 200
TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 600, 60_000, 200)
OUTPUT = QuotaLimit(Dimension.OUTPUT_TOKENS, 1800, 60_000, 20)
HOUR_MS = 3_600_000  # nothing refills while a test runs, however slow the machine is
ONE_REQUEST = QuotaLimit(Dimension.REQUESTS, 1, HOUR_MS, 1)
SLOTS = QuotaLimit(Dimension.CONCURRENCY, 5, None, None)


def team_of(tenant: Tenant) -> ResourcePath:
    return ResourcePath(tenant.path.organization, tenant.path.team)


def five_tokens(most_running: list[int]):
    """An engine that generates five tokens after a moment, and notes how many requests it had at once."""
    running = 0

    async def script(call: FakeCall) -> None:
        nonlocal running
        running += 1
        most_running[0] = max(most_running[0], running)
        await call.accept()
        await call.admit()
        await call.emit(b"abcde")
        await asyncio.sleep(0.01)
        running -= 1  # as the gateway hears of the end
        await call.finish()

    return script


async def obedient(call: FakeCall) -> None:
    """Generates to the end of what it was granted, pauses there, and goes on with the next grant."""
    most = call.start.max_output_tokens
    await call.accept()
    await call.admit()
    while call.num_emitted < most:
        if call.num_emitted == granted_to(call):
            await call.preempt(engine_pb2.PREEMPTION_MODE_PAUSE, engine_pb2.PAUSE_REASON_QUOTA)
            await eventually(lambda: call.num_emitted < granted_to(call) or is_cancelled(call))
            if is_cancelled(call):
                await call.finish(engine_pb2.FINISH_REASON_CANCELLED)
                return
            await call.resume()
        await call.emit(b"x")
        await asyncio.sleep(0.001)
    await call.finish()


def granted_to(call: FakeCall) -> int:
    """Output tokens that the engine may have generated."""
    first = call.start.grant_output_tokens if call.start.HasField("grant_output_tokens") else 10**9
    grants = [message.grant.max_output_tokens for message in call.controls if message.HasField("grant")]
    return grants[-1] if grants else first


def is_cancelled(call: FakeCall) -> bool:
    return any(message.HasField("cancel") for message in call.controls)


async def drain(stream) -> list[pb.StreamGenerateResponse]:
    return [message async for message in stream]


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


async def expecting(world: World, *limits: QuotaLimit, mode: Mode = Mode.ENFORCE) -> Tenant:
    """A tenant that reserves what is expected, and an engine that keeps to its grants."""
    world.engine.script = obedient
    tenant = await world.tenant()
    settings = QuotaPolicySettings(limits=limits, mode=mode, reservation=ReservationMode.EXPECTED)
    await world.policy(team_of(tenant), settings)
    return tenant


def exhausted(action: int) -> dict:
    return {"admission": pb.AdmissionOptions(on_quota_exhausted=action), "stopping": {"max_output_tokens": 60}}


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


async def test_a_dry_run_reserves_nothing_and_tells_what_would_happen(world: World) -> None:
    tenant = await world.tenant(limits=(ONE_REQUEST, SLOTS))
    free = await tenant.check_admission()
    await tenant.check_admission()
    await tenant.generate()
    full = await tenant.check_admission()
    await world.denials_written()

    assert (free.admitted, free.reason, list(free.violated_limits)) == (True, "", [])
    assert free.HasField("expected_queue_wait")
    assert free.expected_queue_wait.ToNanoseconds() == 0
    assert (full.admitted, full.reason) == (False, "RATE_LIMITED")
    assert list(full.violated_limits) == [team_of(tenant).name]
    assert 3500 < full.retry_delay.seconds <= 3600
    assert len(world.engine.calls) == 1
    assert world.live._denials.counts.report().denials == {}
    assert world.book.num_reservations == 0


async def test_a_dry_run_tells_the_wait_that_the_engine_expects_while_others_wait(world: World, tenant: Tenant) -> None:
    world.engine.num_waiting = 3
    unknown = await tenant.check_admission()
    world.engine.new_request_wait_ns = 2_500_000_000
    known = await tenant.check_admission()

    assert unknown.admitted
    assert not unknown.HasField("expected_queue_wait")
    assert known.expected_queue_wait.ToNanoseconds() == 2_500_000_000


async def test_a_dry_run_refuses_what_is_wrong_with_the_request_itself(shared_tenant: Tenant) -> None:
    assert (await refused(shared_tenant.check_admission(text=""))).info.reason == "INVALID_FIELD"
    assert (await refused(shared_tenant.check_admission(model="unknown"))).info.reason == "MODEL_NOT_FOUND"


async def test_a_tenant_sees_its_own_limits_and_what_is_left(world: World) -> None:
    tenant = await world.tenant(limits=(replace(TOKENS, amount=1), SLOTS))
    other = await world.tenant("other", limits=(TOKENS,))
    await world.limit(ResourcePath(tenant.path.organization), (replace(OUTPUT, amount=1, burst=400, model="bytes"),))
    world.engine.tenants = [
        engine_pb2.TenantStats(
            path=[
                engine_pb2.WeightedNode(id=str(each.organization_id), weight=1),
                engine_pb2.WeightedNode(id=str(each.team_id), weight=1),
            ],
            served_work=work,
        )
        for each, work in ((tenant, 120.0), (other, 7.0))
    ]
    world.engine.script = stalled
    call = tenant.stream()
    await anext(aiter(call))

    status = await tenant.quota_status()

    assert [(limit.node, limit.dimension, limit.model) for limit in status.limits] == [
        (team_of(tenant).name, "concurrency", ""),
        (team_of(tenant).name, "total_tokens", ""),
        ("organizations/acme", "output_tokens", "bytes"),
    ]
    assert [limit.remaining for limit in status.limits] == [4, 190, 392]
    assert (status.limits[1].limit, status.limits[1].burst, status.limits[1].period.seconds) == (1, 200, 60)
    assert 500 < status.limits[1].reset_delay.seconds <= 600  # ten tokens, one a minute
    assert (status.weight, status.attained_service) == (1.0, 120.0)
    call.cancel()


async def test_a_watched_status_tells_of_changes(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.servicer.quota.WATCH_INTERVAL_S", 0.01)
    tenant = await shared_world.tenant(limits=(SLOTS,))
    watch = tenant.watch_quota_status()
    seen = [(await anext(aiter(watch))).status.limits[0].remaining]
    shared_world.engine.script = stalled
    call = tenant.stream()
    await anext(aiter(call))
    seen.append((await anext(aiter(watch))).status.limits[0].remaining)
    call.cancel()
    seen.append((await anext(aiter(watch))).status.limits[0].remaining)
    watch.cancel()

    assert seen == [5, 4, 5]


async def test_a_watch_ends_when_the_key_is_revoked(shared_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.servicer.quota.WATCH_INTERVAL_S", 0.01)
    tenant = await shared_world.tenant(limits=(SLOTS,))
    watch = tenant.watch_quota_status()
    await anext(aiter(watch))
    await revoke_key(shared_world.database, CHANGE, tenant.path, "lost")
    await shared_world.cache.refresh()

    assert (await refused(watch)).info.reason == "KEY_REVOKED"
