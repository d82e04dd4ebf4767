"""Every path of the console: who may use it, and what is around each answer."""

import re

from starlette.routing import Route

from gateway.auth import Action
from gateway.console import Parts, pages
from gateway.console.app import console_app
from gateway.console.routes import PUBLIC_PATHS, ConsoleRoute
from gateway.pepper import Peppers, PepperSource
from gateway.store.audit import list_audit_events
from gateway.store.enums import KeyScope, Role
from gateway.store.identity import PLATFORM
from gateway.store.records import ApiKeySettings, Page, ResourcePath
from gateway.store.roles import create_binding
from tests.gateway.console.visitors import Visitors, hidden_fields, texts
from tests.gateway.world import CHANGE, PEPPER, World

POSTS = [route for route in pages.ROUTES if route.verb != "GET"]
PLACES = {"org": "acme", "team": "search"}
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)


def filled(route: ConsoleRoute, places=PLACES) -> str:
    return "/console" + re.sub(r"\{(\w+)(:\w+)?\}", lambda found: places.get(found[1], "x"), route.path)


def test_every_route_says_what_it_needs_or_is_one_of_the_public_few():
    parts = Parts(None, PepperSource(Peppers.parse(PEPPER.encode())), *[None] * (len(Parts.__dataclass_fields__) - 2))

    served = {route.path for route in console_app(parts).routes if isinstance(route, Route)}

    declared = {route.path for route in pages.ROUTES} | {"/logout"}
    assert served == declared | PUBLIC_PATHS
    assert PUBLIC_PATHS.isdisjoint(declared)


def test_what_changes_something_needs_more_than_reading():
    # What a change would do is asked for by a form, too, and changes nothing.
    assert [each.path for each in POSTS if each.action is Action.READ and not each.path.endswith("/preview")] == []


async def test_nobody_gets_anything_without_signing_in(visitors: Visitors):
    somebody = visitors.somebody()

    for route in pages.ROUTES:
        answer = await somebody.client.request(route.verb, filled(route), headers={"origin": somebody.origin})
        assert answer.status_code == 303, route
        assert answer.headers["location"].startswith("/console/login"), route
        assert answer.content == b"", route


async def test_whoever_reads_everything_changes_nothing(world: World, visitors: Visitors):
    scopes = tuple(scope for scope in KeyScope if scope is not KeyScope.ADMIN)
    tenant = await world.tenant(key=ApiKeySettings(scopes=scopes))
    await create_binding(world.database, CHANGE, PLATFORM, f"apiKeys/{tenant.public_id}", Role.PLATFORM_VIEWER)
    await world.cache.refresh()
    viewer = await visitors.signed_in(tenant.key)
    token = hidden_fields(await viewer.get("/console/tenants"))["csrf"]
    before = await list_audit_events(world.database, Page(100))

    for route in POSTS:
        path = filled(route, PLACES | {"key": tenant.public_id, "id": tenant.public_id})
        answer = await viewer.send(path, {}, csrf=token)
        if route.action is not Action.READ:
            assert answer.status_code == 403, (route, texts(answer))

    assert await list_audit_events(world.database, Page(100)) == before


async def test_a_member_of_one_team_gets_no_page_of_another_team(world: World, visitors: Visitors):
    scopes = tuple(scope for scope in KeyScope if scope is not KeyScope.ADMIN)
    tenant = await world.tenant(key=ApiKeySettings(scopes=scopes))
    rival = await world.tenant("rival")
    await create_binding(
        world.database, CHANGE, ResourcePath("acme", "search"), f"apiKeys/{tenant.public_id}", Role.MEMBER
    )
    await world.cache.refresh()
    member = await visitors.signed_in(tenant.key)
    token = hidden_fields(await member.get("/console/tenants"))["csrf"]
    places = {"org": "rival", "team": "search", "key": rival.public_id}

    for route in pages.ROUTES:
        if "{org}" in route.path:
            send = {} if route.verb == "GET" else {"data": {"csrf": token}, "headers": {"origin": member.origin}}
            answer = await member.client.request(route.verb, filled(route, places), **send)
            assert answer.status_code == 403, (route, texts(answer))


async def test_every_answer_has_the_headers_that_keep_it_to_itself(visitors: Visitors):
    ada = await visitors.administrator()

    answers = [
        await ada.client.get(path)
        for path in ("/console/", "/console/tenants", "/console/nowhere", "/console/login", "/console/static/x/y")
    ]

    answers.append(await ada.client.put("/console/tenants"))

    assert [answer.status_code for answer in answers] == [303, 200, 404, 200, 404, 405]
    for answer in answers:
        assert answer.headers["content-security-policy"] == CONTENT_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-request-id"]


async def test_files_are_kept_by_browsers_under_addresses_of_what_they_hold(visitors: Visitors):
    somebody = visitors.somebody()
    page = await somebody.get("/console/login")
    paths = re.findall(r'(?:href|src)="(/console/static/[^"]+)"', page.text)

    for path in paths:
        answer = await somebody.client.get(path)
        again = await somebody.client.get(path, headers={"if-none-match": answer.headers["etag"]})
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert (answer.status_code, again.status_code, again.content) == (200, 304, b"")
    other = await somebody.client.get(paths[0].replace(paths[0].split("/")[3], "0" * 16))
    assert other.headers["cache-control"] == "no-cache"


async def test_no_page_refers_to_another_origin_or_has_script_or_style_of_its_own(visitors: Visitors):
    ada = await visitors.administrator()

    for path in ("tenants", "settings", "platform-keys", "tenants/-/new"):
        page = (await ada.get(f"/console/{path}")).text
        assert re.search(r'\b(?:src|href|action|srcset)="(?:[a-z]+:)?//', page) is None
        assert re.search(r"<style|<script(?![^>]* src=)|\son\w+=|\sstyle=|javascript:", page) is None
