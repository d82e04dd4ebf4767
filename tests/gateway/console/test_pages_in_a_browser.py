"""Every page of the console as somebody sees it who looks: both widths, both colour schemes, with keyboard and reader.

A page that is new is looked at, too: the paths are those of the console's own table of routes.
"""

import re

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from gateway.console.pages import ROUTES
from gateway.console.routes import ROOT
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit, TeamSettings
from tests.gateway.console.browser import (
    LOOKS,
    NARROW,
    Look,
    Visits,
    assert_accessible,
    assert_fits,
    reached_by_keyboard,
    screenshot,
)
from tests.gateway.console.busy import IDS, be_busy
from tests.gateway.world import Tenant, World, refused

# No pages: streams, a download, whatever is none, and where everybody is led on from.
NO_PAGES = ("/live/overview", "/live/queue", "/usage.csv", "/{path:path}", "/")
MARKUP = "<script>alert(1)</script> & Söhne “GmbH”"
# Of each kind one: live, a list, a form, a change of what is in force.
SHORT = ("/overview", "/tenants/acme/search", "/tenants/acme/search/keys/new", "/tenants/acme/search/policy")


@pytest_asyncio.fixture(loop_scope="session")
async def tenant(world: World) -> Tenant:
    """Among others with long and odd names: one that works, and was refused something for its limit."""
    tenant = await world.tenant(limits=(QuotaLimit(Dimension.REQUESTS, 2, 3_600_000, 2),))
    for slug, team in (("globex", TeamSettings(display_name=MARKUP)), ("x" * 63, TeamSettings(display_name="y" * 200))):
        other = await world.tenant(slug, team=team)
    be_busy(world, tenant, other)
    await tenant.generate()
    await tenant.generate()
    await refused(tenant.generate())
    await world.settled()
    await world.denials_written()
    return tenant


@pytest_asyncio.fixture(loop_scope="session")
async def administrator(world: World) -> Tenant:
    return await world.administrator()


async def signed_in(visits: Visits, administrator: Tenant, look: Look) -> Page:
    page = await visits.open(look)
    await page.goto(f"{ROOT}/login")
    await page.fill("#credential", administrator.key)
    await page.click("button[type=submit]")
    await page.wait_for_url(lambda url: "/login" not in url)
    return page


async def paths(page: Page, tenant: Tenant, administrator: Tenant) -> dict[str, str]:
    """One for each page of the console, below its root, by its route's."""
    await page.goto(f"{ROOT}/audit")
    event = await page.locator(f"tbody a[href^='{ROOT}/audit/']").first.get_attribute("href")
    assert event is not None
    names = {
        "org": "acme",
        "team": "search",
        "event_id": event.rpartition("/")[2],
        "generation_id": IDS[0],
        "name": "default",
    }
    found = {}
    for route in ROUTES:
        if route.verb == "GET" and route.path not in NO_PAGES:
            key = administrator if route.path.startswith("/platform-keys") else tenant
            found[route.path] = _filled(route.path, names | {"key": key.public_id})
    return found


def _filled(path: str, names: dict[str, str]) -> str:
    query = f"?id={IDS[0]}" if path == "/queue/end" else ""
    return re.sub(r"\{(\w+)\}", lambda match: names[match[1]], path) + query


async def look_at(page: Page, path: str, look: Look, name: str) -> list[str]:
    """What is wrong with a page: everything, so that one run tells all. `name` is its picture's."""
    answer = await page.goto(ROOT + path)
    assert answer is not None
    wrong = [] if answer.ok else [f"{path}: status {answer.status}"]
    for check in (assert_accessible(page), assert_fits(page), _has_one_heading(page), _has_named_tables(page)):
        try:
            await check
        except AssertionError as error:
            wrong.append(f"{path} at {look}: {error}")
    await screenshot(page, f"{name}-{look}")
    return wrong


async def _has_one_heading(page: Page) -> None:
    await expect(page.locator("h1")).to_have_count(1)


async def _has_named_tables(page: Page) -> None:
    """What scrolls by itself is a region with a name, which the keyboard reaches."""
    assert await page.evaluate(UNNAMED) == []


@pytest.mark.parametrize("look", [Look(), Look(NARROW, "dark")], ids=str)
async def test_pages_look_right(visits: Visits, tenant: Tenant, administrator: Tenant, look: Look):
    page = await signed_in(visits, administrator, look)

    assert [fault for path in SHORT for fault in await look_at(page, path, look, path)] == []


async def test_tables_that_everybody_reads_need_no_scrolling(visits: Visits, tenant: Tenant, administrator: Tenant):
    for look, paths_seen in ((Look(), ("/audit",)), (Look(NARROW), ("/audit", "/settings"))):
        page = await signed_in(visits, administrator, look)
        for path in paths_seen:
            await page.goto(ROOT + path)
            assert await page.evaluate(OVERFLOWS) == [0], (path, look)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("look", LOOKS, ids=str)
async def test_every_page_looks_right(visits: Visits, tenant: Tenant, administrator: Tenant, look: Look):
    page = await signed_in(visits, administrator, look)
    found = await paths(page, tenant, administrator)

    wrong = [fault for name, path in found.items() for fault in await look_at(page, path, look, name)]

    assert len(found) >= 25
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_field_of_every_page_is_reached_by_keyboard(visits: Visits, tenant: Tenant, administrator: Tenant):
    page = await signed_in(visits, administrator, Look())
    wrong = []
    for path in (await paths(page, tenant, administrator)).values():
        await page.goto(ROOT + path)
        try:
            await require_reached(page)
        except AssertionError as error:
            wrong.append(f"{path}: {error}")

    assert wrong == []


async def require_reached(page: Page) -> None:
    """Tab comes to every field, but for those that a group has one stop for, and shows where it is."""
    expected = await page.evaluate(FIELDS)
    reached = await reached_by_keyboard(page)
    assert set(expected) <= set(reached), f"not reached: {sorted(set(expected) - set(reached))}"


async def test_first_stop_of_the_keyboard_skips_the_navigation(visits: Visits, tenant: Tenant, administrator: Tenant):
    page = await signed_in(visits, administrator, Look())
    await page.goto(f"{ROOT}/tenants")

    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")

    assert await page.evaluate("document.activeElement.id") == "content"


async def test_names_with_markup_are_text(visits: Visits, tenant: Tenant, administrator: Tenant):
    page = await signed_in(visits, administrator, Look())

    await page.goto(f"{ROOT}/tenants/globex/search")

    await expect(page.get_by_text(MARKUP).first).to_be_visible()
    assert await page.locator("script:not([src])").count() == 0


def test_what_is_named_as_no_page_is_served():
    assert set(NO_PAGES) <= {route.path for route in ROUTES if route.verb == "GET"}


UNNAMED = """
() => [...document.querySelectorAll(".scroll")]
  .filter((each) => each.getAttribute("role") !== "region" || each.tabIndex !== 0
    || !(each.ariaLabel || document.getElementById(each.getAttribute("aria-labelledby"))))
  .map((each) => each.outerHTML.slice(0, 200))
"""
OVERFLOWS = "() => [...document.querySelectorAll('.scroll')].map((each) => each.scrollWidth - each.clientWidth)"
FIELDS = """
() => [...document.querySelectorAll("main :is(input, select, textarea, button)")]
  .filter((each) => each.checkVisibility() && !each.disabled && each.type !== "hidden")
  .map((each) => each.name || each.id || each.getAttribute("aria-label") || each.textContent.trim())
"""
