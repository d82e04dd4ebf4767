"""The overview in a browser: it keeps itself up to date, until somebody pauses it or may not see it any more."""

from playwright.async_api import Page, expect

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1 import admin_pb2_grpc
from tests.gateway.console.browser import Visits
from tests.gateway.console.busy import be_busy
from tests.gateway.world import Tenant, World


async def sign_in(page: Page, key: str) -> None:
    await page.goto("/console/login")
    await page.fill("#credential", key)
    await page.press("#credential", "Enter")
    await page.wait_for_url("**/console/overview")


def tile(page: Page, title: str):
    return page.locator(".tile", has=page.get_by_text(title, exact=True)).locator("dd").first


async def test_figures_change_by_themselves_until_the_key_is_revoked(world: World, visits: Visits, tenant: Tenant):
    be_busy(world, tenant, await world.tenant("globex"))
    page, owner, boss = await visits.open(), await world.administrator(), await world.administrator()
    await sign_in(page, owner.key)
    await expect(tile(page, "Waiting")).to_have_text("2")
    await page.locator("#tokens summary").click()

    world.engine.tenants[0].waiting = 41
    await expect(tile(page, "Waiting")).to_have_text("42")
    await expect(page.locator("#tokens details")).to_have_attribute("open", "")

    await page.get_by_role("button", name="Pause updates").click()
    world.engine.tenants[0].waiting = 98
    await page.get_by_role("button", name="Resume updates").click()
    await expect(tile(page, "Waiting")).to_have_text("99")

    stub = admin_pb2_grpc.AdminServiceStub(boss.channel)
    await stub.RevokeApiKey(pb.RevokeApiKeyRequest(name=f"apiKeys/{owner.public_id}"), metadata=boss.metadata)
    await expect(page.locator(".live-state")).to_contain_text("Updates have ended")
    world.engine.tenants[0].waiting = 7
    await page.get_by_role("link", name="Queue", exact=True).click()
    await page.wait_for_url("**/console/login**")


SENT_TWICE = """() => {
  const shown = document.createElement("div");
  shown.id = "probe";
  document.body.append(shown);
  const html = '<div id="probe"><time datetime="2026-11-30T10:00:00+00:00">10:00</time></div>';
  replaceParts(html);
  const first = document.getElementById("probe");
  replaceParts(html);
  const second = document.getElementById("probe");
  replaceParts(html.replace(">10:00", ">10:01"));
  const third = document.getElementById("probe");
  return [first.querySelector("time").title !== "", first === second, second === third, third.textContent];
}"""


async def test_what_is_sent_again_as_it_was_is_left_alone(world: World, visits: Visits, tenant: Tenant):
    page, owner = await visits.open(), await world.administrator()
    await sign_in(page, owner.key)

    assert await page.evaluate(SENT_TWICE) == [True, True, False, "10:01"]


async def test_everything_is_there_without_a_script(world: World, visits: Visits, tenant: Tenant):
    be_busy(world, tenant)
    page, owner = await visits.open(java_script_enabled=False), await world.administrator()
    await sign_in(page, owner.key)

    await expect(tile(page, "Running")).to_have_text("1")
    world.engine.tenants[0].running = 5
    await page.wait_for_timeout(1000)  # a reading is at most a second old
    await page.reload()
    await expect(tile(page, "Running")).to_have_text("5")
    await expect(page.get_by_role("button", name="Pause updates")).to_have_count(0)
