"""Forms that others would like our visitors to send."""

import pytest

from tests.gateway.console.visitors import Visitor, Visitors, hidden_fields, texts
from tests.gateway.world import World

NEW = {"id": "evil", "display_name": ""}
ELSEWHERE = (
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "none"},
)


async def organizations(visitor: Visitor) -> str:
    return texts(await visitor.get("/console/tenants"))


async def test_a_form_from_elsewhere_changes_nothing(visitors: Visitors):
    ada = await visitors.administrator()

    for headers in ELSEWHERE:
        answer = await ada.send("/console/tenants/-/new", NEW, headers=headers)
        assert answer.status_code == 403, headers
        assert "REQUEST_FORGED" in texts(answer)

    assert "evil" not in await organizations(ada)


@pytest.mark.slow
async def test_a_form_of_which_nobody_says_where_it_comes_from_changes_nothing(visitors: Visitors):
    ada = await visitors.administrator()
    token = hidden_fields(await ada.get("/console/tenants"))["csrf"]

    answer = await ada.client.post("/console/tenants/-/new", data=NEW | {"csrf": token})

    assert answer.status_code == 403


async def test_a_form_with_a_token_of_nobody_changes_nothing(visitors: Visitors):
    ada = await visitors.administrator()

    for token in ("", "0" * 64, "é"):
        answer = await ada.send("/console/tenants/-/new", NEW, csrf=token)
        assert answer.status_code == 403, token

    assert "evil" not in await organizations(ada)


async def test_a_token_of_another_session_is_none(visitors: Visitors):
    ada, eve = await visitors.administrator(), await visitors.administrator()
    token = hidden_fields(await eve.get("/console/tenants"))["csrf"]

    answer = await ada.send("/console/tenants/-/new", NEW, csrf=token)

    assert answer.status_code == 403


async def test_nobody_is_signed_in_by_a_form_of_somebody_else(world: World, visitors: Visitors):
    admin = await world.administrator()
    victim, attacker = visitors.somebody(), visitors.somebody()
    fields = hidden_fields(await attacker.get("/console/login")) | {"credential": admin.key}

    without_page = await victim.client.post("/console/login", data=fields, headers={"origin": victim.origin})
    await victim.get("/console/login")
    with_page = await victim.client.post("/console/login", data=fields, headers={"origin": victim.origin})

    assert (without_page.status_code, with_page.status_code) == (403, 403)
    assert "evenflow_session" not in victim.client.cookies


@pytest.mark.slow
async def test_json_is_no_form(visitors: Visitors):
    ada = await visitors.administrator()
    token = hidden_fields(await ada.get("/console/tenants"))["csrf"]

    answer = await ada.client.post("/console/tenants/-/new", json=NEW | {"csrf": token}, headers={"origin": ada.origin})

    assert answer.status_code == 400
