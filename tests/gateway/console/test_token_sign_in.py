"""Signing in with a token of an issuer, whose keys are read over HTTP from where it publishes them."""

import time
from collections import abc
from dataclasses import replace

import jwt
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.console.sign_in import session_ends
from gateway.http.door import HttpDoor
from gateway.store.audit import list_audit_events
from gateway.store.enums import Role
from gateway.store.identity import JwtIssuerSettings
from gateway.store.issuers import create_issuer, update_issuer
from gateway.store.records import Page, ResourcePath
from gateway.store.roles import create_binding
from tests.auth.issuer import AUDIENCE, ISSUER, OTHER_RSA_KEY, RSA_KEY, claims, jwk, key_set, token
from tests.gateway.console.visitors import Visitors, texts
from tests.gateway.world import CHANGE, World

ALICE = "jwtIssuers/login/subjects/alice"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The database is up, however busy the machine is."""
    monkeypatch.setattr(session_ends, "PATIENCE_S", 60.0)


@pytest_asyncio.fixture(loop_scope="session")
async def issuer(world: World) -> abc.AsyncIterator[JwtIssuerSettings]:
    """One that the gateway trusts, and that has made alice the administrator of acme."""

    async def keys(_: Request) -> Response:
        return Response(key_set(jwk(RSA_KEY)), media_type="application/json")

    site = HttpDoor(("127.0.0.1", 0), Starlette(routes=[Route("/keys", keys)]), max_connections=5)
    await site.start()
    settings = JwtIssuerSettings((AUDIENCE,), f"http://{site.address}/keys", ("RS256",), {"team": "team"})
    await world.tenant("acme")
    await world.tenant("globex")
    await create_issuer(world.database, CHANGE, "login", ISSUER, None, settings)
    await create_binding(world.database, CHANGE, ResourcePath("acme"), ALICE, Role.ORG_ADMIN)
    await world.cache.refresh()
    yield settings
    await site.stop(0)


async def test_a_subject_signs_in_and_administrates_where_it_may(
    world: World, issuer: JwtIssuerSettings, visitors: Visitors
):
    alice = await visitors.signed_in(token(claims()))

    tree = texts(await alice.get("/console/tenants"))
    made = await alice.send("/console/tenants/acme/-/teams/new", {"id": "new", "default_class": "default"})
    foreign = await alice.send("/console/tenants/globex/-/teams/new", {"id": "new", "default_class": "default"})
    event = (await list_audit_events(world.database, Page(1000)))[-1].content

    assert "acme" in tree
    assert "globex" not in tree
    assert (made.status_code, foreign.status_code) == (303, 403)
    assert (event["action"], event["actor"]) == ("teams.create", ALICE)


async def test_a_session_is_no_longer_than_its_token(issuer: JwtIssuerSettings, visitors: Visitors):
    ends_at_s = int(time.time()) + 500
    alice = await visitors.signed_in(token(claims(exp=ends_at_s)))

    said = jwt.decode(alice.client.cookies["evenflow_session"], options={"verify_signature": False})

    assert said["exp"] == ends_at_s


async def test_a_session_is_over_by_signing_out_and_with_any_change_of_the_issuer(
    world: World, issuer: JwtIssuerSettings, visitors: Visitors
):
    alice, other = [await visitors.signed_in(token(claims())) for _ in range(2)]
    copied = alice.client.cookies["evenflow_session"]

    await alice.send("/console/logout")
    alice.client.cookies.set("evenflow_session", copied)
    signed_out, still_in = await alice.get("/console/tenants"), await other.get("/console/tenants")
    await update_issuer(world.database, CHANGE, "login", lambda old: replace(old, audiences=("another",)))
    await world.cache.refresh()

    assert signed_out.url.path == "/console/login"
    assert still_in.url.path == "/console/tenants"
    assert (await other.get("/console/tenants")).url.path == "/console/login"


async def test_tokens_that_prove_nothing_do_not_get_in(issuer: JwtIssuerSettings, visitors: Visitors):
    somebody = visitors.somebody()

    forged = await somebody.sign_in(token(claims(), key=OTHER_RSA_KEY))
    old = await somebody.sign_in(token(claims(exp=int(time.time()) - 3600)))
    nobody = await somebody.sign_in(token(claims(sub="bob", team=None)))

    assert [answer.status_code for answer in (forged, old, nobody)] == [401, 401, 403]
    assert "evenflow_session" not in somebody.client.cookies
