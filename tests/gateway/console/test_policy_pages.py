"""Policies in a browser: rows that are added, a mistake, a conflict and a preview, as they are seen and by a reader."""

import re

import pytest
from playwright.async_api import Page, expect

from gateway.admin.what_if import engine as what_if_engine
from gateway.quota_terms import Mode
from gateway.store.records import QuotaPolicySettings, ResourcePath, TeamSettings
from gateway.store.teams import create_team
from tests.gateway.console.browser import LOOKS, Look, Visits, assert_accessible, assert_fits, screenshot
from tests.gateway.console.test_previews import served, was_refused
from tests.gateway.world import CHANGE, Tenant, World

TEAM = "/console/tenants/acme/search/policy"
NODE = ResourcePath("acme", "search")


async def opened(visits: Visits, key: str, look: Look, path: str = TEAM) -> Page:
    page = await visits.open(look)
    await page.goto(f"/console/login?next={path}")
    await page.fill("#credential", key)
    await page.click("main button[type=submit]")
    await page.wait_for_url(f"**{path}")
    return page


async def of_team(world: World, tenant: Tenant, slug: str) -> Tenant:
    """A key of another team beside the tenant's."""
    path = ResourcePath("acme", slug)
    made = await create_team(world.database, CHANGE, path, TeamSettings())
    return await world.key(path, tenant.organization_id, made.id)


async def seen(page: Page, name: str, look: Look) -> None:
    """Looked at, and in order for those who do not see it."""
    await screenshot(page, f"{name}-{look}")
    await assert_fits(page)
    await assert_accessible(page)


async def test_a_limit_is_added_and_its_mistake_is_told_beside_it(world: World, tenant: Tenant, visits: Visits):
    ada = (await world.administrator()).key
    page = await opened(visits, ada, LOOKS[0])

    await page.get_by_label("Counts").select_option("REQUESTS")
    await page.get_by_label("At most").first.fill("6o")
    await page.get_by_role("button", name="Another limit").click()
    await expect(page.locator("#limits .part")).to_have_count(2)
    await page.get_by_role("button", name="Save", exact=True).click()

    problem = page.locator("#limits-0-amount-problem")
    await expect(problem).to_have_text("must be a whole number, such as 100000")
    described = re.compile(r"^limits-0-amount-problem\s*$")
    await expect(page.locator("#limits-0-amount")).to_have_attribute("aria-describedby", described)
    await seen(page, "policy-mistake", LOOKS[0])
    await page.fill("#limits-0-amount", "60")
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("The policy was changed and is in force.")).to_be_visible()
    await expect(page.locator("#limits-0-amount")).to_have_value("60")


async def test_the_return_key_changes_nothing(world: World, tenant: Tenant, visits: Visits):
    page = await opened(visits, (await world.administrator()).key, LOOKS[0])
    revision = world.cache.current.revision

    await page.fill("#weight", "9")
    await page.press("#weight", "Enter")

    await expect(page.get_by_role("heading", name="Preview", exact=True)).to_be_visible()
    await expect(page.get_by_text("nothing to replay")).to_be_visible()
    await seen(page, "preview-nothing", LOOKS[0])
    await page.get_by_role("button", name="Back to the form").click()
    await expect(page.locator("#weight")).to_have_value("9")
    assert (await world.cache.refresh()).revision == revision


@pytest.mark.parametrize(
    "look", [LOOKS[0], *(pytest.param(look, marks=pytest.mark.slow) for look in LOOKS[1:])], ids=str
)
async def test_a_preview_and_a_conflict_are_seen(
    world: World, tenant: Tenant, visits: Visits, monkeypatch: pytest.MonkeyPatch, look: Look
):
    monkeypatch.setattr(what_if_engine, "NICE", ())
    # Both ask for more than the engine serves at once, so that weights decide who waits.
    for asking in (tenant, await of_team(world, tenant, "ads")):
        await served(world, asking, 40, every_s=0.1)
    await was_refused(world, tenant)
    page = await opened(visits, (await world.administrator()).key, look)
    await page.fill("#weight", "8")
    await page.select_option("#limits-0-dimension", "REQUESTS")
    await page.fill("#limits-0-amount", "36")
    await page.fill("#limits-0-period", "1h")
    await page.fill("#limits-0-burst", "36")

    await page.get_by_role("button", name="Preview", exact=True).click()

    await expect(page.get_by_role("heading", name="Who would have noticed")).to_be_visible(timeout=90_000)
    await expect(page.get_by_role("img", name="Refused at the door")).to_be_visible()
    await expect(page.get_by_text("5 more refused")).to_be_visible()
    for label, team in (("Wait less", "acme/search"), ("Wait longer", "acme/ads")):
        await expect(page.locator(".tile", has_text=label)).to_contain_text(team)
    await seen(page, "preview", look)
    await world.policy(NODE, QuotaPolicySettings(weight=3.0, mode=Mode.SHADOW))
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_role("heading", name="Somebody else has changed it")).to_be_visible()
    await seen(page, "conflict", look)
    await page.get_by_role("button", name="Save mine on top").click()
    await expect(page.get_by_text("The policy was changed and is in force.")).to_be_visible()
    (team,) = [team for team in (await world.cache.refresh()).teams.values() if team.slug == "search"]
    assert (team.weight, team.policy.mode, len(team.policy.limits)) == (8.0, Mode.SHADOW, 1)
    await page.get_by_role("link", name="Raise for a while").click()
    await seen(page, "grant", look)
    await page.goto("/console/classes/batch")
    await seen(page, "class", look)
    await page.goto(TEAM)
    await seen(page, "policy", look)
