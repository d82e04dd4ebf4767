"""What works while Postgres is away, what is said meanwhile, and for how long old answers are good."""

import asyncio
import time

import grpc
import pytest

from evenflow.admin.v1 import admin_pb2, admin_pb2_grpc
from gateway import api_key
from gateway.store.cache import STORE_LOST_AFTER_S
from gateway.store.enums import Dimension, StoreLossAction
from gateway.store.quota_policies import create_quota_policy
from gateway.store.records import QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import CHANGE, Tenant, World, eventually, refused


class Clock:
    """The time of day of a test."""

    offset_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.offset_s


async def test_a_known_key_works_without_postgres_and_the_usage_is_written_afterwards(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    await proxy.shut()

    answers = [await tenant.generate() for _ in range(3)]
    await eventually(lambda: proxied.ledger.num_waiting == 3)
    await proxy.open()

    rows = await proxied.usage_rows()
    assert {str(row["generation_id"]) for row in rows} == {answer.generation_id for answer in answers}


async def test_a_limited_tenant_is_served_at_its_rate_without_postgres_after_its_lease_is_spent(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    limit = QuotaLimit(Dimension.REQUESTS, 60_000, 60_000, 20)
    await proxied.limit(ResourcePath(tenant.path.organization, tenant.path.team), (limit,))
    await tenant.generate()
    await proxy.shut()

    num_served = 0
    while num_served < 100:
        try:
            await tenant.generate()
            num_served += 1
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.01)


async def test_an_unknown_key_cannot_be_checked_without_postgres_and_is_never_called_wrong(
    proxied: World, proxy: PostgresProxy
) -> None:
    tenant = await proxied.tenant()
    stranger = Tenant(
        ResourcePath(None), tenant.organization_id, tenant.team_id, tenant.key_id, "", api_key.generate().text,
        proxied.channel(),
    )  # fmt: skip
    await proxy.shut()
    during = await refused(stranger.generate())
    await proxy.open()
    after = await refused(stranger.generate())

    assert (during.code, during.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert during.retry is not None
    assert (after.code, after.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "CREDENTIAL_INVALID")


@pytest.mark.parametrize("node", [ResourcePath("acme"), ResourcePath("acme", "search")])
async def test_a_tenant_that_fails_closed_is_served_only_while_postgres_confirms_its_keys(
    proxied: World, proxy: PostgresProxy, node: ResourcePath
) -> None:
    world, clock = proxied, Clock()
    world.cache._clock = clock
    closed, stale = await world.tenant(), await world.tenant("other")
    await world.policy(node, QuotaPolicySettings(on_store_loss=StoreLossAction.FAIL_CLOSED))
    assert await closed.generate()
    await proxy.shut()

    clock.offset_s = STORE_LOST_AFTER_S + 1.0
    during = await refused(closed.generate())
    assert await stale.generate()
    await proxy.open()
    await world.cache.refresh()

    assert (during.code, during.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert during.retry is not None
    assert await closed.generate()


async def test_a_key_whose_policy_fails_closed_is_not_served_from_a_stale_snapshot(
    proxied: World, proxy: PostgresProxy
) -> None:
    world, clock = proxied, Clock()
    world.cache._clock = clock
    closed = await world.tenant()
    other = await world.key(closed.path, closed.organization_id, closed.team_id)
    settings = QuotaPolicySettings(weight=None, on_store_loss=StoreLossAction.FAIL_CLOSED)
    await create_quota_policy(world.database, CHANGE, closed.path, "default", settings)
    await world.cache.refresh()
    await proxy.shut()

    clock.offset_s = STORE_LOST_AFTER_S + 1.0

    assert (await refused(closed.generate())).info.reason == "AUTH_STORE_UNAVAILABLE"
    assert await other.generate()


async def test_a_stale_snapshot_serves_up_to_a_bound(closed_world: World, proxy: PostgresProxy) -> None:
    world, clock = closed_world, Clock()
    world.database_url = proxy.url
    world.options["auth_stale_max_s"] = 60.0
    await world.open()
    await world.serving()
    world.cache._clock = clock
    tenant = await world.tenant()
    await proxy.shut()

    clock.offset_s = 50.0
    assert await tenant.generate()
    clock.offset_s = 61.0
    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "AUTH_STORE_UNAVAILABLE")
    assert refusal.retry is not None


async def test_administration_is_unavailable_without_postgres(proxied: World, proxy: PostgresProxy) -> None:
    admin = await proxied.administrator()
    stub = admin_pb2_grpc.AdminServiceStub(admin.channel)
    await proxy.shut()

    refusal = await refused(
        stub.GetOrganization(admin_pb2.GetOrganizationRequest(name="organizations/acme"), metadata=admin.metadata)
    )
    status = await stub.GetSystemStatus(admin_pb2.GetSystemStatusRequest(), metadata=admin.metadata)

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
    assert status.engines[0].reachable
