"""A headless Chromium as people use one, and the rules that no page of the console may break.

A page is opened in a context of its own: no cookie and no cache of another test. What it does is watched from the first
request on; `Visits.close` tells of every broken rule at once.
"""

import os
import re
from collections import abc
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request

# A directory that every screenshot is written to; without it none is taken.
SCREENSHOTS_VARIABLE = "SCREENSHOTS"
WIDE, NARROW = 1280, 390
HEIGHTS = {WIDE: 900, NARROW: 844}
PATIENCE_MS = 20_000.0
GRAVE = ("serious", "critical")
# What the browser makes of pages that it was given, without asking anybody.
INNER_SCHEMES = ("about", "blob", "data")
TELL_OF_CSP = """
addEventListener("securitypolicyviolation", (event) =>
  tellOfViolation(`${event.effectiveDirective} blocked ${event.blockedURI || "inline"} in ${location.pathname}`));
"""


@dataclass(frozen=True)
class Look:
    """How somebody looks at the console."""

    width: int = WIDE
    scheme: Literal["light", "dark"] = "light"

    def __str__(self) -> str:
        return f"{self.width}-{self.scheme}"


LOOKS = tuple(Look(width, scheme) for width in (WIDE, NARROW) for scheme in ("light", "dark"))


@dataclass
class Guard:
    """What the pages of one context did that they may not."""

    origin: str
    faults: list[str] = field(default_factory=list)
    _documents: set[str] = field(default_factory=set)

    async def watch(self, context: BrowserContext) -> None:
        """Every page of `context` is watched from now on."""
        await context.expose_function("tellOfViolation", lambda text: self.faults.append(f"content policy: {text}"))
        await context.add_init_script(TELL_OF_CSP)
        context.on("request", self._request)
        context.on("console", self._message)
        context.on("weberror", lambda error: self.faults.append(f"script error: {error.error}"))

    def _request(self, request: Request) -> None:
        if request.is_navigation_request():
            self._documents.add(request.url)
        parts = urlsplit(request.url)
        if parts.scheme not in INNER_SCHEMES and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.faults.append(f"request to another origin: {request.url}")

    def _message(self, message: ConsoleMessage) -> None:
        # A page that answers 403 or 409 is no fault; the browser writes an error for it all the same.
        is_status = message.text.startswith("Failed to load resource: the server responded with a status of 4")
        if is_status and message.location["url"] in self._documents:
            return
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text} ({message.location['url']})")


class Visits:
    """Pages at one origin. Close it: that is where broken rules come out."""

    def __init__(self, browser: Browser, origin: str) -> None:
        self._browser = browser
        self._origin = origin
        self._visits: list[tuple[BrowserContext, Guard]] = []

    async def open(self, look: Look = Look(), **options: object) -> Page:
        """A blank page, logged in as nobody; paths are relative to the origin. `options`: of `new_context`."""
        context = await self._browser.new_context(
            base_url=self._origin,
            viewport={"width": look.width, "height": HEIGHTS[look.width]},
            color_scheme=look.scheme,
            reduced_motion="reduce",
            accept_downloads=True,
            **options,
        )
        context.set_default_timeout(PATIENCE_MS)
        guard = Guard(self._origin)
        self._visits.append((context, guard))
        await guard.watch(context)
        return await context.new_page()

    def faults(self, page: Page) -> list[str]:
        """The rules that `page` and others of its context have broken; a test that breaks them on purpose clears it."""
        return next(guard.faults for context, guard in self._visits if context is page.context)

    async def close(self) -> None:
        """No page is left. Raises AssertionError if one of them broke a rule."""
        for context, _ in self._visits:
            await context.close()
        faults = [fault for _, guard in self._visits for fault in guard.faults]
        assert not faults, "\n".join(faults)


async def assert_accessible(page: Page) -> None:
    """axe-core finds nothing serious or critical on the page as it is now."""
    found = await Axe().run(page)
    grave = [violation for violation in found.response["violations"] if violation["impact"] in GRAVE]
    assert not grave, "\n".join([page.url, *map(_violation_text, grave)])


async def assert_fits(page: Page) -> None:
    """Nobody has to scroll sideways: the page is no wider than its window, a wide table scrolls inside itself."""
    document, window = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert document <= window, f"{page.url} is {document} px wide in a window of {window} px"


async def reached_by_keyboard(page: Page, max_presses: int = 200) -> list[str]:
    """What the Tab key comes to, in order: the `name` or `id` of fields, the text of links and buttons.

    Ends where the focus leaves the page. Each of them must show that it has the focus.
    """
    reached: list[str] = []
    for _ in range(max_presses):
        await page.keyboard.press("Tab")
        name, is_shown, has_parts = await page.evaluate(FOCUSED)
        if not name:
            return reached
        if has_parts and reached and reached[-1] == name:
            continue  # the day, the month, the button of a calendar: those are the browser's own
        assert is_shown, f"nothing shows that {name!r} has the focus"
        reached.append(name)
    raise AssertionError(f"the focus never leaves the page: {reached}")


async def screenshot(page: Page, name: str) -> None:
    """The whole page is in the directory of SCREENSHOTS as NAME.png; does nothing where that is not set."""
    if directory := os.environ.get(SCREENSHOTS_VARIABLE):
        path = Path(directory) / f"{re.sub(r'[^-.a-zA-Z0-9]+', '-', name).strip('-')}.png"
        await page.screenshot(path=path, full_page=True)


def _violation_text(violation: abc.Mapping[str, object]) -> str:
    nodes = violation["nodes"]
    where = "; ".join(f"{node['target']} {node['html'][:200]} {node['failureSummary']}" for node in nodes[:5])
    return f"{violation['impact']} {violation['id']}: {violation['help']}: {where}"


# An outline or a shadow, of it or of what holds it, is what shows the focus.
FOCUSED = """
() => {
  const element = document.activeElement;
  if (!element || element === document.body || element === document.documentElement) return ["", false, false];
  const shows = (candidate) => {
    const style = getComputedStyle(candidate);
    return (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0) || style.boxShadow !== "none";
  };
  const name = element.name || element.id || element.getAttribute("aria-label") || element.textContent.trim()
    || element.tagName;
  const isShown = shows(element) || (element.parentElement !== null && shows(element.parentElement));
  return [name, isShown, ["date", "datetime-local", "month", "time", "week"].includes(element.type)];
}
"""
