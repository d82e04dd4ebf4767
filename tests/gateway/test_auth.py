"""Credentials: what is accepted, what is refused, what it costs to be refused, and what nobody learns from it."""

import asyncio
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network

import grpc
import pytest

from evenflow.admin.v1 import admin_pb2, admin_pb2_grpc
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1 import generation_pb2_grpc
from gateway import api_key
from gateway.auth.address import peer_address
from gateway.errors_auth import CredentialInvalidError
from gateway.store.enums import KeyScope
from gateway.store.key_ends import revoke_key
from gateway.store.keys import create_key, get_key
from gateway.store.records import ApiKeySettings, KeySecret
from tests.gateway.fake_engine import begun
from tests.gateway.world import CHANGE, PEPPER, Tenant, World, eventually, make_spec, refused


def with_credentials(tenant: Tenant, *values: str):
    """A call whose `authorization` entries are `values`."""
    stub = generation_pb2_grpc.GenerationServiceStub(tenant.channel)
    metadata = tuple(("authorization", value) for value in values)
    return stub.Generate(pb.GenerateRequest(spec=make_spec()), metadata=metadata)


async def test_the_scheme_is_read_in_any_case(shared_tenant: Tenant) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert await with_credentials(shared_tenant, f"{scheme} {shared_tenant.key}")


async def test_every_bad_credential_gets_the_same_answer(tenant: Tenant) -> None:
    fresh = api_key.generate()
    wrong_secret = api_key.format_key(tenant.public_id, fresh.secret)
    mistyped = tenant.key[:-1] + ("0" if tenant.key[-1] != "0" else "1")
    credentials = [
        (),
        ("",),
        ("Bearer",),
        (tenant.key,),
        (f"Basic {tenant.key}",),
        (f"Bearer {mistyped}",),
        (f"Bearer {fresh.text}",),
        (f"Bearer {wrong_secret}",),
        (f"Bearer {tenant.key}", f"Bearer {tenant.key}"),
        (f"Bearer {'x' * 4000}",),
    ]
    refusals = [await refused(with_credentials(tenant, *values)) for values in credentials]

    assert {refusal.code for refusal in refusals} == {grpc.StatusCode.UNAUTHENTICATED}
    assert {(refusal.info.reason, refusal.message) for refusal in refusals} == {
        ("CREDENTIAL_INVALID", str(CredentialInvalidError()))
    }


async def test_a_revoked_key(shared_world: World, own_tenant: Tenant) -> None:
    await revoke_key(shared_world.database, CHANGE, own_tenant.path, "leaked")
    await shared_world.cache.refresh()
    refusal = await refused(own_tenant.generate())
    stranger = await refused(
        with_credentials(own_tenant, f"Bearer {api_key.format_key(own_tenant.public_id, api_key.generate().secret)}")
    )

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_REVOKED")
    # Who does not know the secret does not learn that there was a key.
    assert stranger.info.reason == "CREDENTIAL_INVALID"


async def test_revocation_is_noticed_without_being_told(shared_world: World, own_tenant: Tenant) -> None:
    await revoke_key(shared_world.database, CHANGE, own_tenant.path, "leaked")

    await eventually(lambda: shared_world.cache.current.keys[own_tenant.public_id].revoked_at is not None)
    assert (await refused(own_tenant.generate())).info.reason == "KEY_REVOKED"


async def test_an_expired_key(shared_world: World) -> None:
    tenant = await shared_world.tenant(key=ApiKeySettings(expires_at=datetime.now(UTC) - timedelta(seconds=1)))

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_EXPIRED")


async def test_an_expired_secret_of_a_living_key(world: World, tenant: Tenant) -> None:
    fresh = api_key.generate()
    secret = KeySecret(
        api_key.digest(PEPPER.encode(), fresh.secret), 1, not_after=datetime.now(UTC) - timedelta(seconds=1)
    )
    at = type(tenant.path)(tenant.path.organization, tenant.path.team, fresh.public_id)
    await create_key(world.database, CHANGE, at, ApiKeySettings(), secret)

    assert (await refused(with_credentials(tenant, f"Bearer {fresh.text}"))).info.reason == "KEY_EXPIRED"


async def test_a_key_may_be_used_from_its_networks_only(shared_world: World) -> None:
    local = await shared_world.tenant(key=ApiKeySettings(ip_cidrs=(ip_network("127.0.0.0/8"),)))
    remote = await shared_world.tenant(key=ApiKeySettings(ip_cidrs=(ip_network("10.0.0.0/8"),)))

    refusal = await refused(remote.generate())

    assert await local.generate()
    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ADDRESS_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.1.2.3:4711", IPv4Address("10.1.2.3")),
        ("ipv6:%5B2001:db8::1%5D:4711", IPv6Address("2001:db8::1")),
        ("ipv6:[::ffff:10.1.2.3]:4711", IPv4Address("10.1.2.3")),
        ("ipv6:%5Bfe80::1%25eth0%5D:4711", IPv6Address("fe80::1")),
        ("unix:", None),
        ("unix:/run/socket", None),
    ],
)
def test_the_callers_address_is_read_from_every_form_of_peer(
    peer: str, address: IPv4Address | IPv6Address | None
) -> None:
    assert peer_address(peer) == address


async def test_a_key_without_the_scope_for_inference(shared_world: World) -> None:
    tenant = await shared_world.tenant(key=ApiKeySettings(scopes=(KeyScope.QUOTA_READ,)))

    refusal = await refused(tenant.generate())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_NOT_GRANTED")
    assert refusal.info.metadata["scope"] == "inference"


async def test_a_platform_key_administers_and_does_not_generate(shared_world: World, shared_tenant: Tenant) -> None:
    admin = await shared_world.administrator()
    request = admin_pb2.GetSystemStatusRequest()

    status = await admin_pb2_grpc.AdminServiceStub(admin.channel).GetSystemStatus(request, metadata=admin.metadata)
    generating = await refused(admin.generate())
    by_tenant = await refused(
        admin_pb2_grpc.AdminServiceStub(shared_tenant.channel).GetSystemStatus(request, metadata=shared_tenant.metadata)
    )

    assert (status.store_reachable, status.engines[0].model) == (True, "bytes")
    assert (generating.code, generating.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "KEY_HAS_NO_TENANT")
    assert (by_tenant.code, by_tenant.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "SCOPE_NOT_GRANTED")


async def test_a_key_made_elsewhere_works_at_once(world: World, tenant: Tenant) -> None:
    fresh = api_key.generate()
    at = type(tenant.path)(tenant.path.organization, tenant.path.team, fresh.public_id)
    await create_key(
        world.database, CHANGE, at, ApiKeySettings(), KeySecret(api_key.digest(PEPPER.encode(), fresh.secret), 1)
    )

    assert await with_credentials(tenant, f"Bearer {fresh.text}")


async def test_a_storm_of_unknown_keys_costs_the_database_a_few_readings(
    world: World, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_refreshes = 0
    refresh = world.cache.refresh

    async def counting():
        nonlocal num_refreshes
        num_refreshes += 1
        return await refresh()

    monkeypatch.setattr(world.live._cache, "refresh", counting)
    strangers = [api_key.generate().text for _ in range(50)]
    calls = [refused(with_credentials(tenant, f"Bearer {key}")) for key in strangers * 4]
    refusals = await asyncio.gather(*calls)

    assert {refusal.info.reason for refusal in refusals} == {"CREDENTIAL_INVALID"}
    # 200 unknown keys within a fraction of a second; the background poll may add one.
    assert num_refreshes <= 4


async def test_revoking_with_abort_ends_what_the_key_has_running(shared_world: World, own_tenant: Tenant) -> None:
    shared_world.engine.script = begun
    stream = own_tenant.stream()
    await stream.read()
    await stream.read()
    admin = await shared_world.administrator()
    request = admin_pb2.RevokeApiKeyRequest(name=own_tenant.path.name, reason="leaked", abort_inflight=True)

    await admin_pb2_grpc.AdminServiceStub(admin.channel).RevokeApiKey(request, metadata=admin.metadata)
    refusal = await refused(stream.read())

    assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAUTHENTICATED, "KEY_REVOKED")


async def test_the_last_use_of_a_key_is_written_in_a_batch(shared_world: World, own_tenant: Tenant) -> None:
    await own_tenant.generate()
    await shared_world.live._last_used.flush()

    assert (await get_key(shared_world.database, own_tenant.path)).last_used_at is not None
