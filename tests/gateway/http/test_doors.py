"""Who may come in: every path declares its access, and both doors decide it in the same place."""

import httpx2
import pytest
from starlette.routing import Route

from gateway.auth import Action
from gateway.http.app import DoorParts, make_app
from gateway.http.routes import HTTP_ROUTES, PUBLIC_PATHS
from gateway.interceptors.resources import own_team
from gateway.interceptors.routes import Cost
from gateway.store.enums import KeyScope
from gateway.store.records import ApiKeySettings
from tests.gateway.fake_engine import MODEL
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World

GENERATING = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}


def served_paths() -> set[tuple[str, str]]:
    """Every verb and path that the application answers."""
    parts = DoorParts(None, None, lambda: True, started_unix_s=0, max_body_bytes=1, max_live=1)
    routes = make_app(parts).routes
    assert all(isinstance(route, Route) for route in routes)
    return {(verb, route.path) for route in routes for verb in route.methods - {"HEAD"}}


def test_every_path_is_public_or_declares_permission_and_cost() -> None:
    declared = {(route.verb, route.path) for route in HTTP_ROUTES}
    public = {("GET", path) for path in PUBLIC_PATHS}

    assert served_paths() == declared | public
    assert not declared & public
    for route in HTTP_ROUTES:
        assert route.access.actions == (Action.INFER,)
        assert route.access.resource is own_team
        assert (route.access.cost is Cost.GENERATION) == (route.path in GENERATING)


@pytest.mark.parametrize("route", HTTP_ROUTES, ids=lambda route: route.path)
async def test_no_path_is_served_without_a_key_or_without_the_scope(
    shared_world: World, shared_clients: Clients, route
) -> None:
    reader = await shared_world.tenant(key=ApiKeySettings(scopes=(KeyScope.QUOTA_READ,)))
    path = route.path.replace("{model:path}", MODEL)
    async with httpx2.AsyncClient(base_url=shared_clients.url) as nobody:
        unknown = await nobody.request(route.verb, path)
    unscoped = await shared_clients.http(reader).request(route.verb, path)

    assert (unknown.status_code, unknown.json()["error"]["reason"]) == (401, "CREDENTIAL_INVALID")
    assert (unscoped.status_code, unscoped.json()["error"]["reason"]) == (403, "SCOPE_NOT_GRANTED")


@pytest.mark.parametrize("path", sorted(PUBLIC_PATHS))
async def test_public_paths_need_no_key(shared_clients: Clients, path: str) -> None:
    async with httpx2.AsyncClient(base_url=shared_clients.url) as nobody:
        assert (await nobody.get(path)).status_code == 200


async def test_a_key_that_is_bound_to_a_network_is_bound_here_too(shared_world: World, shared_clients: Clients) -> None:
    outside = await shared_world.tenant(key=ApiKeySettings(ip_cidrs=("10.0.0.0/8",)))
    inside = await shared_world.tenant(key=ApiKeySettings(ip_cidrs=("127.0.0.0/8",)))

    answers = [await shared_clients.http(tenant).get("/v1/models") for tenant in (outside, inside)]

    assert [answer.status_code for answer in answers] == [403, 200]


async def test_a_model_without_a_grant_does_not_exist(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(key=ApiKeySettings(model_grants=("another",)))
    http = shared_clients.http(tenant)

    listed, one = await http.get("/v1/models"), await http.get(f"/v1/models/{MODEL}")

    assert listed.json() == {"object": "list", "data": []}
    assert one.status_code == 404


async def test_models_have_openais_shape(shared_http: httpx2.AsyncClient, shared_tenant: Tenant) -> None:
    listed = (await shared_http.get("/v1/models")).json()
    one = (await shared_http.get(f"/v1/models/{MODEL}")).json()

    assert listed == {"object": "list", "data": [one]}
    assert (one["id"], one["object"], one["max_model_len"]) == (MODEL, "model", 4096)


async def test_no_browser_of_another_origin_is_let_in(shared_http: httpx2.AsyncClient) -> None:
    origin = {"origin": "https://elsewhere.example", "access-control-request-method": "POST"}
    asked = await shared_http.options("/v1/chat/completions", headers=origin)
    answered = await shared_http.get("/v1/models", headers=origin)

    assert asked.status_code == 405
    for response in (asked, answered):
        assert not [name for name in response.headers if name.startswith("access-control")]
