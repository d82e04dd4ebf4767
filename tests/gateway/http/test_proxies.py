"""A gateway behind proxies: keys that are bound to networks see the client, and nobody can say that they are other."""

from ipaddress import ip_network

import grpc
import pytest
import pytest_asyncio
from starlette.requests import Request
from starlette.types import Message, Scope

from gateway.auth.forwarding import TrustedProxies
from gateway.console.visit import peer_of
from gateway.errors import SettingsError
from gateway.http.forwarded import Forwarded
from gateway.settings import load_settings
from gateway.store.records import ApiKeySettings
from tests.gateway.fake_engine import MODEL
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World, refused

OFFICE = ApiKeySettings(ip_cidrs=(ip_network("203.0.113.0/24"),))
INSIDE, OUTSIDE = "203.0.113.9", "198.51.100.1"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


@pytest_asyncio.fixture
async def behind(closed_world: World) -> World:
    """A gateway with a proxy on the same machine."""
    closed_world.options |= {"http_listen": "127.0.0.1:0", "trusted_proxies": "127.0.0.0/8,10.0.0.0/8"}
    await closed_world.open()
    await closed_world.serving()
    return closed_world


async def status(world: World, tenant: Tenant, **headers: str) -> int:
    clients = Clients(world)
    try:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return (await clients.http(tenant).post("/v1/chat/completions", json=CHAT, headers=sent)).status_code
    finally:
        await clients.close()


async def test_a_key_of_a_network_serves_clients_in_it(behind: World) -> None:
    tenant = await behind.tenant(key=OFFICE)

    assert await status(behind, tenant, x_forwarded_for=f"{INSIDE}, 10.0.0.1") == 200
    assert await status(behind, tenant, x_forwarded_for=f"{INSIDE}, {OUTSIDE}") == 403
    assert await status(behind, tenant) == 403


async def test_the_same_over_grpc(behind: World) -> None:
    tenant = await behind.tenant(key=OFFICE)
    await tenant.generate(metadata=(("x-forwarded-for", INSIDE),))

    for metadata in ((), (("x-forwarded-for", OUTSIDE),), (("forwarded", f"for={INSIDE}"),)):
        refusal = await refused(tenant.generate(metadata=metadata))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.PERMISSION_DENIED, "ADDRESS_NOT_ALLOWED")


async def test_without_trusted_proxies_nobody_is_believed(world: World) -> None:
    tenant = await world.tenant(key=OFFICE)

    assert await status(world, tenant, x_forwarded_for=INSIDE, forwarded=f"for={INSIDE}") == 403
    assert (await refused(tenant.generate(metadata=(("x-forwarded-for", INSIDE),)))).info.reason == (
        "ADDRESS_NOT_ALLOWED"
    )


async def test_pages_see_the_client_and_its_scheme() -> None:
    seen: list[Scope] = []

    async def app(scope: Scope, _receive: object, _send: object) -> None:
        seen.append(scope)

    async def nothing(*_: object) -> Message:
        raise AssertionError("nobody asks")

    headers = [(b"x-forwarded-for", INSIDE.encode()), (b"x-forwarded-proto", b"https")]
    for client in (("10.0.0.1", 4711), (OUTSIDE, 4711)):
        scope = {"type": "http", "headers": headers, "client": client, "scheme": "http"}
        await Forwarded(app, TrustedProxies.of(("10.0.0.0/8",), "x-forwarded-for"))(scope, nothing, nothing)

    assert [(peer_of(Request(scope)), scope["scheme"]) for scope in seen] == [
        (f"ipv4:{INSIDE}:0", "https"),
        (f"ipv4:{OUTSIDE}:4711", "http"),
    ]


@pytest.mark.parametrize("given", [{"trusted_proxies": "10.0.0.1/8"}, {"forwarded_header": "x-real-ip"}])
def test_a_setting_that_means_nothing_stops_the_start(given: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(given)).replace("_", "-")):
        load_settings(engine="unix:/x", database_url="postgresql://x", **given)
