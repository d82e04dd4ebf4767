"""Organizations and teams: seen, made, changed, suspended, deleted and brought back, by those who may."""

import pytest

from gateway.console import tree
from gateway.quota_terms import Dimension
from gateway.store.audit import list_audit_events
from gateway.store.enums import KeyScope, Role
from gateway.store.organizations import create_organization
from gateway.store.records import ApiKeySettings, OrganizationSettings, Page, QuotaLimit, ResourcePath
from gateway.store.roles import create_binding
from tests.gateway.console.visitors import Visitor, Visitors, hidden_fields, texts
from tests.gateway.world import CHANGE, World

MARKUP = "<script>alert(1)</script>\"'&{{7*7}}"
# Nothing refills while a test runs.
LIMITS = (QuotaLimit(Dimension.REQUESTS, 10, 86_400_000, 10, ""),)
ALL_SCOPES = ApiKeySettings(scopes=tuple(scope for scope in KeyScope if scope is not KeyScope.ADMIN))


async def made(ada: Visitor, org: str = "acme", team: str = "search", title: str = "") -> None:
    """An organization with a team, made by forms."""
    for path, slug in (("/console/tenants/-/new", org), (f"/console/tenants/{org}/-/teams/new", team)):
        fields = {"id": slug, "display_name": title, "default_class": "default"}
        answer = await ada.send(path, fields)
        assert answer.status_code == 303, texts(answer)


async def test_an_organization_and_a_team_are_made_and_the_next_page_says_so_once(visitors: Visitors):
    ada = await visitors.administrator()
    fields = {"id": "acme", "display_name": "Acme Ltd"}

    answer = await ada.send("/console/tenants/-/new", fields)
    page, again = await ada.get(answer.headers["location"]), await ada.get(answer.headers["location"])

    assert page.url.path == "/console/tenants/acme"
    assert "The organization acme was made" in texts(page)
    assert "was made" not in texts(again)
    assert "Acme Ltd" in texts(again)


async def test_drafts_are_turned_off_for_a_team_by_its_form(visitors: Visitors):
    ada = await visitors.administrator()
    await made(ada)
    told = []
    for choice in ({"speculation_disabled": "on"}, {}):
        form = hidden_fields(await ada.get("/console/tenants/acme/search/edit"))
        answer = await ada.send("/console/tenants/acme/search/edit", form | {"default_class": "default"} | choice)
        assert answer.status_code == 303, texts(answer)
        told.append("where the engine does that no" in texts(await ada.get("/console/tenants/acme/search")))

    assert told == [True, False]


async def test_a_change_is_on_record_under_the_visitors_name(world: World, visitors: Visitors):
    admin = await world.administrator()
    ada = await visitors.signed_in(admin.key)

    answer = await ada.send("/console/tenants/-/new", {"id": "acme"})

    events = await list_audit_events(world.database, Page(10))
    content = next(each.content for each in events if each.content["resource"] == "organizations/acme")
    assert content["actor"] == f"apiKeys/{admin.public_id}"
    assert content["correlation_id"] == answer.headers["x-request-id"]


async def test_the_same_form_sent_twice_makes_one_organization(visitors: Visitors):
    ada = await visitors.administrator()
    fields = hidden_fields(await ada.get("/console/tenants/-/new")) | {"id": "acme"}

    answers = [await ada.send("/console/tenants/-/new", fields) for _ in range(2)]
    with_another_id = await ada.send("/console/tenants/-/new", {"id": "acme"})

    assert [answer.status_code for answer in answers] == [303, 303]
    assert with_another_id.status_code == 409


async def test_wrong_input_comes_back_with_what_was_written_and_why_it_is_wrong(visitors: Visitors):
    ada = await visitors.administrator()

    for slug in ("", "Acme", "-"):
        answer = await ada.send("/console/tenants/-/new", {"id": slug, "display_name": "kept as it was"})
        assert answer.status_code == 400, slug
        assert "must be 1 to 63" in texts(answer)
        assert 'aria-invalid="true"' in answer.text
        assert 'value="kept as it was"' in answer.text


async def test_names_with_markup_are_text_everywhere(visitors: Visitors):
    ada = await visitors.administrator()
    await made(ada, title=MARKUP)

    pages = [
        await ada.get(f"/console/tenants{path}")
        for path in ("", "/acme", "/acme/search", "/acme/search/edit", "/acme/-/edit", f"?q={MARKUP}")
    ]

    for page in pages:
        assert page.status_code == 200
        assert "<script>alert" not in page.text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
        assert "{{7*7}}" in page.text


async def test_a_change_of_what_somebody_else_changed_meanwhile_is_a_conflict(visitors: Visitors):
    ada, eve = await visitors.administrator(), await visitors.administrator()
    await made(ada)
    stale = hidden_fields(await ada.get("/console/tenants/acme/-/edit")) | {"display_name": "Ada's"}
    fresh = hidden_fields(await eve.get("/console/tenants/acme/-/edit")) | {"display_name": "Eve's"}

    first = await eve.send("/console/tenants/acme/-/edit", fresh)
    second = await ada.send("/console/tenants/acme/-/edit", stale)

    assert (first.status_code, second.status_code) == (303, 409)
    assert "Eve&#39;s" in (await ada.get("/console/tenants/acme")).text


async def test_a_suspended_team_is_refused_and_then_served_again(world: World, visitors: Visitors):
    tenant = await world.tenant()
    ada = await visitors.administrator()
    path = "/console/tenants/acme/search"

    suspended = await ada.send(f"{path}/state", {"state": "suspended"})
    unclear = [await ada.send(f"{place}/state", {"state": "on"}) for place in (path, "/console/tenants/acme/-")]
    page = await ada.get(path)
    resumed = await ada.send(f"{path}/state", {"state": "active"})

    assert (suspended.status_code, resumed.status_code) == (303, 303)
    assert [answer.status_code for answer in unclear] == [400, 400]
    assert "Serve it again" in texts(page)
    assert (await tenant.generate()).usage.output_tokens


async def test_a_deleted_organization_is_shown_when_asked_for_and_comes_back(visitors: Visitors):
    ada = await visitors.administrator()
    await made(ada)

    too_early = await ada.send("/console/tenants/acme/-/delete")
    await ada.send("/console/tenants/acme/search/delete")
    await ada.send("/console/tenants/acme/-/delete")
    without, listed = await ada.get("/console/tenants"), await ada.get("/console/tenants?deleted=on")
    page = await ada.get("/console/tenants/acme")
    await ada.send("/console/tenants/acme/-/undelete")

    assert too_early.status_code == 409
    assert "has teams: delete them first" in texts(too_early)
    assert "There are no tenants yet" in texts(without)
    assert "acme" in texts(listed)
    assert "Bring it back" in texts(page)
    assert "acme" in texts(await ada.get("/console/tenants"))


async def test_a_team_shows_what_is_left_of_its_limits(world: World, visitors: Visitors):
    tenant = await world.tenant(limits=LIMITS)
    await tenant.generate()
    ada = await visitors.administrator()

    page = await ada.get("/console/tenants/acme/search")

    assert "10 requests per 1 d, 10 at once" in texts(page)
    assert "9 of 10" in texts(page)


async def test_a_team_administrator_sees_their_team_and_nothing_beside_it(world: World, visitors: Visitors):
    tenant = await world.tenant(key=ALL_SCOPES)
    other = await world.tenant("rival")
    at = ResourcePath(tenant.path.organization, tenant.path.team)
    await create_binding(world.database, CHANGE, at, f"apiKeys/{tenant.public_id}", Role.TEAM_ADMIN)
    await world.cache.refresh()
    eve = await visitors.signed_in(tenant.key)

    tree, own = await eve.get("/console/tenants"), await eve.get("/console/tenants/acme/search")
    elsewhere = await eve.get(f"/console/tenants/{other.path.organization}/search")
    above = await eve.get("/console/tenants/acme")

    assert "search" in texts(tree)
    assert "rival" not in texts(tree)
    assert "New organization" not in texts(tree)
    assert (own.status_code, elsewhere.status_code, above.status_code) == (200, 403, 403)
    assert "New key" in texts(own)
    assert "Suspend" not in texts(own)


async def test_a_search_that_finds_more_than_is_shown_says_so(
    visitors: Visitors, world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tree, "MAX_FOUND", 2)
    for number in range(3):
        await create_organization(world.database, CHANGE, ResourcePath(f"org-{number}"), OrganizationSettings())
    await world.cache.refresh()
    ada = await visitors.administrator()

    cut, whole = await ada.get("/console/tenants?q=org"), await ada.get("/console/tenants?q=org-1")

    assert "Only the first" in texts(cut)
    assert "Only the first" not in texts(whole)


@pytest.mark.slow
async def test_many_organizations_come_in_pages(visitors: Visitors, world: World):
    for number in range(21):
        await create_organization(world.database, CHANGE, ResourcePath(f"org-{number:02}"), OrganizationSettings())
    await world.cache.refresh()
    ada = await visitors.administrator()

    first = await ada.get("/console/tenants")
    found = await ada.get("/console/tenants?q=org-20")

    assert "org-19" in texts(first)
    assert "org-20" not in texts(first)
    assert "Next page" in texts(first)
    assert "org-20" in texts(found)
    assert "org-19" not in texts(found)
