"""The console over TLS, in a browser: cookies that go nowhere else, and everything that works without it."""

from pathlib import Path

import pytest_asyncio
from playwright.async_api import Browser, expect

from tests.auth.certificates import Authority, write
from tests.gateway.console.browser import Visits
from tests.gateway.console.busy import be_busy
from tests.gateway.console.test_live_in_a_browser import sign_in, tile
from tests.gateway.world import World


@pytest_asyncio.fixture(loop_scope="session")
async def tls_world(closed_world: World, tmp_path: Path) -> World:
    certificate, key = Authority().issue("gateway")
    closed_world.options["tls_cert"] = str(write(tmp_path / "tls.pem", certificate))
    closed_world.options["tls_key"] = str(write(tmp_path / "tls.key", key))
    await closed_world.open()
    await closed_world.serving()
    return closed_world


async def test_over_tls_cookies_are_secure_and_forms_and_streams_work(tls_world: World, chromium: Browser):
    visits = Visits(chromium, f"https://{tls_world.live.http_address}")
    page = await visits.open(ignore_https_errors=True)
    owner, tenant = await tls_world.administrator(), await tls_world.tenant()
    be_busy(tls_world, tenant)

    await sign_in(page, owner.key)
    cookies = {cookie["name"]: cookie for cookie in await page.context.cookies()}
    tls_world.engine.tenants[0].waiting = 41
    await expect(tile(page, "Waiting")).to_have_text("41")
    await page.goto("/console/tenants/-/new")
    await page.fill("#id", "globex")
    await page.press("#id", "Enter")
    await page.wait_for_url("**/console/tenants/globex")
    await page.get_by_role("button", name="Sign out").click()
    await page.wait_for_url("**/console/login")

    assert set(cookies) == {"__Host-evenflow_session", "__Host-evenflow_visitor"}
    for cookie in cookies.values():
        assert (cookie["secure"], cookie["httpOnly"], cookie["sameSite"]) == (True, True, "Strict")
        assert (cookie["path"], cookie["domain"]) == ("/", "127.0.0.1")
    assert "__Host-evenflow_session" not in {cookie["name"] for cookie in await page.context.cookies()}
    await visits.close()
