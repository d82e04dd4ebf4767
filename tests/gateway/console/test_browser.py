"""The harness itself: each rule lets an honest page pass and catches one that breaks it."""

from collections import abc

import pytest
import pytest_asyncio
from playwright.async_api import Browser
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from gateway.http.door import HttpDoor
from tests.gateway.console import browser
from tests.gateway.console.browser import LOOKS, NARROW, Look, Visits, assert_accessible, assert_fits
from tests.programs import REQUIRE_VARIABLE, find_program

POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: http://localhost:9"
HONEST = "<h1>Ünflow</h1><p>text</p><form><label>Name <input name=name></label><button>Save</button></form>"
SCRIPTS = {
    "fine.js": "document.documentElement.dataset.ran = 'yes'",
    "throws.js": "throw new Error('broken')",
    "warns.js": "console.warn('odd')",
    "errs.js": "console.error('wrong')",
}
STYLES = {
    "plain.css": "body { color: black; background: white }",
    "unlit.css": "input:focus, button:focus { outline: none }",
}


def document(body: str, head: str = "") -> str:
    return (
        f'<!doctype html><html lang=en><head><meta name=viewport content="width=device-width"><title>t</title>'
        f"<link rel=icon href=data:,>{head}</head><body><main>{body}</main></body></html>"
    )


class Site:
    """A page that a test writes, under a strict policy."""

    def __init__(self) -> None:
        self.html = document(HONEST)
        self.status = 200

    def app(self) -> Starlette:
        async def page(_: Request) -> Response:
            return HTMLResponse(self.html, self.status, {"content-security-policy": POLICY})

        async def asset(request: Request) -> Response:
            name = request.path_params["name"]
            kind = "text/javascript" if name in SCRIPTS else "text/css"
            text = (SCRIPTS | STYLES).get(name)
            return Response(status_code=404) if text is None else PlainTextResponse(text, media_type=kind)

        return Starlette(routes=[Route("/", page), Route("/assets/{name}", asset)])


@pytest.fixture
def site() -> Site:
    return Site()


@pytest_asyncio.fixture(loop_scope="session")
async def visits(chromium: Browser, site: Site) -> abc.AsyncIterator[Visits]:
    door = HttpDoor(("127.0.0.1", 0), site.app(), max_connections=20)
    await door.start()
    opened = Visits(chromium, f"http://{door.address}")
    yield opened
    try:
        await opened.close()
    finally:
        await door.stop(0)


def script(name: str) -> str:
    return document(HONEST, f'<script src="/assets/{name}" defer></script>')


@pytest.mark.parametrize("look", LOOKS, ids=str)
async def test_honest_page_breaks_no_rule(visits: Visits, site: Site, look: Look):
    site.html = script("fine.js")
    page = await visits.open(look)

    await page.goto("/")

    await assert_accessible(page)
    await assert_fits(page)
    assert await page.evaluate("document.documentElement.dataset.ran") == "yes"
    assert await page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches") == (look.scheme == "dark")
    assert await page.evaluate("innerWidth") == look.width
    assert visits.faults(page) == []


@pytest.mark.parametrize(
    ("html", "told"),
    [
        (document("<img src=http://localhost:9/x.png alt=x>"), "request to another origin: http://localhost:9/x.png"),
        (document("<img src=//example.invalid/x.png alt=x>"), "content policy: img-src blocked http://example.invalid"),
        (document("<p style='color: red'>x</p>"), "content policy: style-src-attr blocked inline"),
        (document("<script>1</script>"), "content policy: script-src-elem blocked inline"),
        (script("throws.js"), "script error: broken"),
        (script("errs.js"), "console error: wrong"),
        (script("warns.js"), "console warning: odd"),
        (script("missing.js"), "console error: Failed to load resource"),
    ],
)
async def test_page_that_breaks_a_rule_is_caught(visits: Visits, site: Site, html: str, told: str):
    site.html = html
    page = await visits.open()

    await page.goto("/")
    await page.wait_for_load_state("networkidle")

    faults = visits.faults(page)
    assert [fault for fault in faults if fault.startswith(told)] != [], faults
    faults.clear()


async def test_broken_rules_come_out_when_the_visits_end(chromium: Browser, visits: Visits, site: Site):
    site.html = script("errs.js")
    page = await visits.open()
    await page.goto("/")

    with pytest.raises(AssertionError, match="console error: wrong"):
        await visits.close()

    visits.faults(page).clear()


async def test_page_that_is_refused_is_no_fault(visits: Visits, site: Site):
    site.status = 409
    page = await visits.open()

    answer = await page.goto("/")

    assert answer is not None
    assert answer.status == 409


async def test_field_without_a_label_is_not_accessible(visits: Visits, site: Site):
    site.html = document("<h1>x</h1><input name=name>")
    page = await visits.open()
    await page.goto("/")

    with pytest.raises(AssertionError, match="critical label"):
        await assert_accessible(page)


async def test_page_wider_than_its_window_does_not_fit(visits: Visits, site: Site):
    site.html = document("<pre>" + "x" * 1000 + "</pre>")
    page = await visits.open(Look(NARROW))
    await page.goto("/")

    with pytest.raises(AssertionError, match="in a window of 390 px"):
        await assert_fits(page)


async def test_keyboard_reaches_every_field_that_shows_it(visits: Visits, site: Site):
    page = await visits.open()
    await page.goto("/")
    assert await browser.reached_by_keyboard(page) == ["name", "Save"]

    site.html = document(HONEST, "<link rel=stylesheet href=/assets/unlit.css>")
    await page.goto("/")
    with pytest.raises(AssertionError, match="nothing shows that 'name' has the focus"):
        await browser.reached_by_keyboard(page)


async def test_screenshots_are_taken_where_a_directory_is_named(
    visits: Visits, site: Site, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    page = await visits.open(Look(NARROW, "dark"))
    await page.goto("/")
    await browser.screenshot(page, "not wanted")
    monkeypatch.setenv(browser.SCREENSHOTS_VARIABLE, str(tmp_path))

    await browser.screenshot(page, "tenants/acme & co 390-dark")

    assert [path.name for path in tmp_path.iterdir()] == ["tenants-acme-co-390-dark.png"]


def test_missing_program_skips_a_test_and_fails_it_where_none_may_be_skipped(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(REQUIRE_VARIABLE, raising=False)
    with pytest.raises(pytest.skip.Exception, match="no-such-program is not installed: make browsers"):
        find_program("no-such-program")

    monkeypatch.setenv(REQUIRE_VARIABLE, "1")
    with pytest.raises(pytest.fail.Exception, match="make browsers"):
        find_program("no-such-program")
    assert find_program("no-such-program", "sh").endswith("/sh")
