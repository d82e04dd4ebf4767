"""What a tenant is told of its quotas: dry runs, what is left, and watches."""

from dataclasses import replace

import pytest

from evenflow.engine.v1 import engine_pb2
from gateway.store.key_ends import revoke_key
from gateway.store.records import ResourcePath
from tests.gateway.fake_engine import stalled
from tests.gateway.quotas import ONE_REQUEST, OUTPUT, SLOTS, TOKENS, team_of
from tests.gateway.world import CHANGE, Tenant, World, refused


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
