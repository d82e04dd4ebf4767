"""Signing in and out: who gets in, what the session is worth, and when it ends."""

from datetime import timedelta

import httpx2
import pytest

from gateway.console.sign_in.login import own_path
from gateway.console.sign_in.login_limits import PER_ADDRESS, LoginLimits, TooManyLoginsError
from gateway.store.enums import KeyScope, Role
from gateway.store.key_ends import Rotation, revoke_key, rotate_key
from gateway.store.records import ApiKeySettings, KeySecret, ResourcePath
from gateway.store.roles import create_binding, delete_binding
from tests.gateway.console.visitors import Visitors, hidden_fields, texts
from tests.gateway.world import CHANGE, World

READER = ApiKeySettings(scopes=(KeyScope.INFERENCE, KeyScope.ADMIN_READ))


async def test_an_administrator_signs_in_and_sees_the_tenants(world: World, visitors: Visitors):
    await world.tenant()
    ada = await visitors.administrator()

    home, page = await ada.get("/console/"), await ada.get("/console/tenants")

    assert (home.status_code, page.status_code) == (200, 200)
    assert "acme" in texts(page)


async def test_whoever_is_not_signed_in_is_asked_to_and_then_gets_what_they_asked_for(world: World, visitors: Visitors):
    admin = await world.administrator()
    somebody = visitors.somebody()

    asked = await somebody.client.get("/console/tenants?q=a&deleted=on")
    page = await somebody.get(asked.headers["location"])
    answer = await somebody.client.post(
        "/console/login",
        data=hidden_fields(page) | {"credential": admin.key},
        headers={"origin": somebody.origin},
    )

    assert asked.status_code == 303
    assert answer.headers["location"] == "/console/tenants?q=a&deleted=on"


async def test_a_session_is_a_strict_cookie_without_the_key(world: World, visitors: Visitors):
    admin = await world.administrator()
    somebody = visitors.somebody()

    answer = await somebody.sign_in(admin.key)

    cookie = next(each for each in answer.headers.get_list("set-cookie") if each.startswith("evenflow_session="))
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    secret = admin.key.split("_")[3]
    assert secret not in "".join(answer.headers.values())
    assert secret not in "".join(somebody.client.cookies.values())


async def test_what_is_no_credential_is_refused_in_one_text(visitors: Visitors):
    somebody = visitors.somebody()

    for credential in ("", "nonsense", "ef_live_", "a.b.c", "é" * 9000):
        answer = await somebody.sign_in(credential)
        assert answer.status_code == 401, credential
        assert "no valid key or token" in texts(answer)
        assert "evenflow_session" not in answer.headers.get("set-cookie", "")


async def test_a_key_that_may_read_nothing_does_not_get_in(world: World, visitors: Visitors):
    tenant = await world.tenant()

    answer = await visitors.somebody().sign_in(tenant.key)

    assert answer.status_code == 403
    assert "a role that may read" in texts(answer)


async def test_a_session_ends_when_its_key_is_revoked(world: World, visitors: Visitors):
    admin = await world.administrator()
    await world.administrator()  # the last one cannot be revoked
    ada = await visitors.signed_in(admin.key)
    before = await ada.get("/console/tenants")

    await revoke_key(world.database, CHANGE, admin.path, "")
    await world.cache.refresh()
    after = await ada.get("/console/tenants")

    assert before.url.path == "/console/tenants"
    assert after.url.path == "/console/login"
    assert "evenflow_session" not in ada.client.cookies


@pytest.mark.slow
async def test_a_session_ends_when_the_secret_that_opened_it_was_replaced(world: World, visitors: Visitors):
    admin = await world.administrator()
    ada = await visitors.signed_in(admin.key)

    rotation = Rotation(KeySecret(b"n" * 32, 1), timedelta(), discards_newest=False)
    await rotate_key(world.database, CHANGE, admin.path, rotation)
    await world.cache.refresh()

    assert (await ada.get("/console/tenants")).url.path == "/console/login"


async def test_a_role_that_is_taken_away_is_gone_from_an_open_session(world: World, visitors: Visitors):
    tenant = await world.tenant(key=READER)
    at = ResourcePath(tenant.path.organization, tenant.path.team)
    binding = await create_binding(world.database, CHANGE, at, f"apiKeys/{tenant.public_id}", Role.TEAM_ADMIN)
    await world.cache.refresh()
    eve = await visitors.signed_in(tenant.key)
    before = await eve.get("/console/tenants/acme/search")

    await delete_binding(world.database, CHANGE, at, binding.id)
    await world.cache.refresh()

    assert before.status_code == 200
    assert (await eve.get("/console/tenants/acme/search")).status_code == 403


async def test_signing_out_needs_the_form_and_ends_the_session(visitors: Visitors):
    ada = await visitors.administrator()

    link = await ada.get("/console/logout")
    answer = await ada.send("/console/logout")
    after = await ada.get("/console/tenants")

    assert link.status_code in (404, 405)
    assert answer.headers["location"] == "/console/login"
    assert after.url.path == "/console/login"


async def test_attempts_are_limited_by_address(visitors: Visitors):
    somebody = visitors.somebody()

    answers = [await somebody.sign_in("nonsense") for _ in range(PER_ADDRESS.amount + 1)]

    assert [answer.status_code for answer in answers] == [401] * PER_ADDRESS.amount + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60
    assert "too many attempts" in texts(answers[-1])


async def test_whoever_waits_as_long_as_they_are_told_may_try_again(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
):
    async def refuse(*_):
        raise TooManyLoginsError(10.2)

    monkeypatch.setattr(LoginLimits, "require", refuse)
    answer = await visitors.somebody().sign_in("nonsense")

    assert answer.headers["retry-after"] == "11"
    assert "in 11 seconds" in texts(answer)


async def signed_in_from(visitors: Visitors, address: str, credential: str) -> httpx2.Response:
    """The answer to the form, through a proxy that was asked by https; no jar would send its cookies in plain."""
    somebody = visitors.somebody(headers={"x-forwarded-for": address, "x-forwarded-proto": "https"})
    page = await somebody.client.get("/console/login")
    cookies = "; ".join(f"{cookie.name}={cookie.value}" for cookie in page.cookies.jar)
    fields = hidden_fields(page) | {"credential": credential}
    headers = {"origin": somebody.origin, "cookie": cookies}
    return await somebody.client.post("/console/login", data=fields, headers=headers)


async def test_behind_a_trusted_proxy_it_is_the_client_whose_attempts_and_scheme_count(closed_world: World):
    closed_world.options["trusted_proxies"] = "127.0.0.0/8"
    await closed_world.open()
    visitors, admin = Visitors(closed_world), await closed_world.administrator()

    answers = [await signed_in_from(visitors, "192.0.2.1", "nonsense") for _ in range(PER_ADDRESS.amount + 1)]
    other = await signed_in_from(visitors, "192.0.2.2", admin.key)

    assert [answer.status_code for answer in answers] == [401] * PER_ADDRESS.amount + [429]
    assert other.status_code == 303
    (cookie,) = [each for each in other.headers.get_list("set-cookie") if "evenflow_session" in each]
    assert cookie.startswith("__Host-evenflow_session=")
    assert "Secure" in cookie.split("; ")
    await visitors.close()


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.example/",
        "//evil.example/",
        "/\\evil.example",
        "/console//evil.example",
        "/console/../v1/models",
        "/console/%2e%2E/v1/models",
        "/console/\\evil",
        "/console/\nx",
        "javascript:alert(1)",
        "/v1/models",
        "/console/login?next=/console/login",
        "",
        "/consolee/",
    ],
)
def test_nobody_is_sent_anywhere_but_to_a_page_of_ours(path: str):
    assert own_path(path) == "/console/"


def test_a_page_of_ours_is_where_one_is_sent():
    assert own_path("/console/tenants/acme?page=x%2Fy") == "/console/tenants/acme?page=x%2Fy"
