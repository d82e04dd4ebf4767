"""Keys in the console: shown once, rotated, revoked, changed."""

import re

import pytest

from gateway.store.enums import KeyScope, Role
from gateway.store.records import ApiKeySettings, ResourcePath
from gateway.store.roles import create_binding
from tests.gateway.console.visitors import Visitor, Visitors, hidden_fields, texts
from tests.gateway.world import CHANGE, Tenant, World, refused

KEYS = "/console/tenants/acme/search/keys"
NEW = {"display_name": "nightly", "scopes": ["inference", "quota.read"], "lifetime": "30"}


def shown_key(text: str) -> str:
    found = re.search(r"ef_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{43}_[0-9A-Za-z]{6}", text)
    assert found is not None, text
    return found[0]


async def made(ada: Visitor, **fields) -> tuple[str, str]:
    """A new key, as it was shown, and where its page is."""
    answer = await ada.send(f"{KEYS}/new", NEW | fields)
    assert answer.status_code == 200, texts(answer)
    key = shown_key(answer.text)
    return key, f"{KEYS}/{key.split('_')[2]}"


async def test_a_new_key_is_shown_once_and_works(world: World, visitors: Visitors):
    tenant = await world.tenant()
    ada = await visitors.administrator()

    key, page = await made(ada)

    later = "".join([(await ada.get(path)).text for path in (page, KEYS.removesuffix("/keys"), f"{page}/edit")])
    assert "nightly" in later
    assert key.split("_")[3] not in later
    await Tenant(tenant.path, tenant.organization_id, tenant.team_id, tenant.key_id, "", key, tenant.channel).generate()


async def test_a_form_that_is_sent_twice_shows_no_secret_the_second_time(world: World, visitors: Visitors):
    await world.tenant()
    ada = await visitors.administrator()
    fields = hidden_fields(await ada.get(f"{KEYS}/new")) | NEW

    first, second = await ada.send(f"{KEYS}/new", fields), await ada.send(f"{KEYS}/new", fields)

    assert shown_key(first.text)
    assert "ef_live_" not in second.text
    assert "It was shown before" in texts(second)


async def test_a_key_that_was_rotated_works_with_both_secrets_until_the_old_one_ends(world: World, visitors: Visitors):
    await world.tenant()
    ada = await visitors.administrator()
    key, page = await made(ada)

    answer = await ada.send(f"{page}/rotate", {"grace": "24"})
    shown = await ada.get(page)
    without_grace = await ada.send(f"{page}/rotate", {"grace": "5000"})

    assert shown_key(answer.text).split("_")[2] == key.split("_")[2]
    assert shown_key(answer.text) != key
    assert "The old secret works until" in texts(answer)
    assert "two secrets" in texts(shown)
    assert without_grace.status_code == 400


async def test_a_revoked_key_is_refused_and_its_page_says_why(world: World, visitors: Visitors):
    tenant = await world.tenant()
    ada = await visitors.administrator()
    page = f"{KEYS}/{tenant.public_id}"

    answer = await ada.send(f"{page}/revoke", {"reason": "it leaked", "abort_inflight": "on"})

    assert answer.status_code == 303
    assert (await refused(tenant.generate())).info.reason == "KEY_REVOKED"
    after = await ada.get(page)
    assert "it leaked" in texts(after)
    assert "Rotate" not in texts(after)


async def test_a_key_is_changed_and_wrong_networks_are_told_at_their_field(world: World, visitors: Visitors):
    await world.tenant()
    ada = await visitors.administrator()
    _, page = await made(ada)
    fields = hidden_fields(await ada.get(f"{page}/edit")) | {"scopes": ["inference"], "models": "small large"}

    wrong = await ada.send(f"{page}/edit", fields | {"cidrs": "10.0.0.0/8 10.0.0.1/8"})
    odd = [await ada.send(path, fields | {"lifetime": "91"}) for path in (f"{page}/edit", f"{KEYS}/new")]
    right = await ada.send(f"{page}/edit", fields | {"cidrs": "10.0.0.0/8", "display_name": "changed"})

    assert wrong.status_code == 400
    assert 'id="cidrs-problem"' in wrong.text
    assert [answer.status_code for answer in odd] == [400, 400]
    assert all('id="lifetime-problem"' in answer.text for answer in odd)
    assert right.status_code == 303
    after = texts(await ada.get(page))
    assert "small, large" in after
    assert "10.0.0.0/8" in after
    assert "quota.read" not in after


@pytest.mark.slow
async def test_a_deleted_key_comes_back(world: World, visitors: Visitors):
    tenant = await world.tenant()
    ada = await visitors.administrator()
    page = f"{KEYS}/{tenant.public_id}"

    deleted = await ada.send(f"{page}/delete")
    shown = await ada.get(page)
    back = await ada.send(f"{page}/undelete")

    assert (deleted.status_code, back.status_code) == (303, 303)
    assert "Bring it back" in texts(shown)
    await tenant.generate()


async def test_a_platform_key_is_made_and_signs_in(visitors: Visitors):
    ada = await visitors.administrator()

    answer = await ada.send("/console/platform-keys/new", {"scopes": ["admin.read"], "lifetime": "7"})

    reader = await visitors.signed_in(shown_key(answer.text))
    page = await reader.get("/console/platform-keys")
    assert page.status_code == 200
    assert "New platform key" not in texts(page)
    assert (await reader.send("/console/tenants/-/new", {"id": "acme"})).status_code == 403


@pytest.mark.slow
async def test_a_key_that_is_none_is_a_page_that_says_so(world: World, visitors: Visitors):
    await world.tenant()
    ada = await visitors.administrator()

    for path in (f"{KEYS}/nonsense", f"{KEYS}/aaaaaaaaaaaa", "/console/platform-keys/aaaaaaaaaaaa"):
        page = await ada.get(path)
        assert page.status_code in (400, 404), path
        assert "<nav" in page.text


async def test_a_team_administrator_makes_keys_of_their_team_only(world: World, visitors: Visitors):
    scopes = (KeyScope.INFERENCE, KeyScope.ADMIN_READ, KeyScope.ADMIN_KEYS)
    tenant = await world.tenant(key=ApiKeySettings(scopes=scopes))
    await world.tenant("rival")
    at = ResourcePath("acme", "search")
    await create_binding(world.database, CHANGE, at, f"apiKeys/{tenant.public_id}", Role.TEAM_ADMIN)
    await world.cache.refresh()
    eve = await visitors.signed_in(tenant.key)

    own = await eve.send(f"{KEYS}/new", NEW)
    elsewhere = await eve.send("/console/tenants/rival/search/keys/new", NEW)
    more_than_they_have = await eve.send(f"{KEYS}/new", NEW | {"scopes": ["admin.system"]})

    assert shown_key(own.text)
    assert (elsewhere.status_code, more_than_they_have.status_code) == (403, 403)
