"""Policies in the console: looked at, changed, in conflict, by whom, and raised for a while."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import StoreUnavailableError
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension, KeyScope, Role
from gateway.store.records import ApiKeySettings, QuotaLimit, QuotaPolicySettings, ResourcePath
from gateway.store.roles import create_binding
from tests.gateway.console.visitors import Visitor, Visitors, hidden_fields, texts
from tests.gateway.world import CHANGE, Tenant, World

TEAM = "/console/tenants/acme/search/policy"
ORGANIZATION = "/console/tenants/acme/-/policy"
NODE = ResourcePath("acme", "search")
HOSTILE = "<script>alert(1)</script>"
REQUESTS = QuotaLimit(Dimension.REQUESTS, 600, 60_000, 100)


def row(number: int, amount: object, dimension: str = "REQUESTS", **more: object) -> dict[str, object]:
    fields = {"dimension": dimension, "amount": amount} | more
    return {f"limits-{number}-{name}": value for name, value in fields.items()}


async def key_with(world: World, tenant: Tenant, role: Role, place: ResourcePath) -> str:
    """A key of the tenant's team that has `role` at `place`."""
    scopes = tuple(scope for scope in KeyScope if scope is not KeyScope.ADMIN)
    made = await world.key(NODE, tenant.organization_id, tenant.team_id, ApiKeySettings(scopes=scopes))
    await create_binding(world.database, CHANGE, place, f"apiKeys/{made.public_id}", role)
    await world.cache.refresh()
    return made.key


async def opened(visitor: Visitor, path: str = TEAM) -> dict[str, str]:
    page = await visitor.get(path)
    assert page.status_code == 200, texts(page)
    return hidden_fields(page) | {"weight": "1"}


async def test_a_policy_is_changed_and_in_force(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    form = await opened(ada) | {
        "action": "save",
        "weight": "2.5",
        "mode": "SHADOW",
        "time_zone": "Europe/Berlin",
        "strict": "on",
        "budgets-0-window": "MONTH",
        "budgets-0-amount": "1,000,000",
        "costs-0-input": "4",
        "costs-0-cached": "1",
        "costs-0-output": "8",
        "costs-0-model": "large",
        **row(0, 600),
        **row(1, 8, "CONCURRENCY"),
        **row(2, 9000, "OUTPUT_TOKENS", period="1h", burst="500", model="large"),
    }

    answer = await ada.send(TEAM, form)

    assert (answer.status_code, answer.headers["location"]) == (303, TEAM)
    page = await ada.get(TEAM)
    assert "The policy was changed and is in force." in texts(page)
    (team,) = (await world.cache.refresh()).teams.values()
    assert (team.weight, team.policy.mode) == (2.5, Mode.SHADOW)
    assert {(each.dimension, each.amount, each.burst) for each in team.policy.limits} == {
        (Dimension.REQUESTS, 600, 100),
        (Dimension.CONCURRENCY, 8, None),
        (Dimension.OUTPUT_TOKENS, 9000, 500),
    }
    assert 'value="large"' in page.text


async def test_mistakes_come_back_beside_their_fields_with_everything_that_was_written(
    tenant: Tenant, visitors: Visitors
):
    ada = await visitors.administrator()
    form = await opened(ada) | {"action": "save", "weight": "heavy", "time_zone": "Mars/Olympus", **row(0, "many")}

    page = await ada.send(TEAM, form)

    assert page.status_code == 400
    for problem in ("must be a number, not below 0, with a point", "must be a whole number"):
        assert problem in texts(page)
    for written in ('value="heavy"', 'value="Mars/Olympus"', 'value="many"'):
        assert written in page.text
    page = await ada.send(TEAM, form | {"weight": "5000", **row(0, 60)})
    assert page.status_code == 400
    assert "must be the name of a time zone" in texts(page)
    page = await ada.send(TEAM, form | {"weight": "5000", "time_zone": "UTC", **row(0, 60), **row(1, 5)})
    assert page.status_code == 400
    assert "an earlier limit has the same dimension and model" in texts(page)


async def test_a_row_is_added_and_nothing_is_saved(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    form = await opened(ada) | {"action": "add-limits", **row(0, 60, model=HOSTILE)}
    revision = world.cache.current.revision

    page = await ada.send(TEAM, form)

    assert page.status_code == 200
    assert 'name="limits-1-amount"' in page.text
    assert HOSTILE not in page.text
    assert (await world.cache.refresh()).revision == revision


async def test_a_button_that_is_pressed_twice_saves_once(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    form = await opened(ada) | {"action": "save", "weight": "2"}

    first, second = await ada.send(TEAM, form), await ada.send(TEAM, form)

    assert (first.status_code, second.status_code) == (303, 303)


async def test_a_member_may_look_and_not_change(world: World, tenant: Tenant, visitors: Visitors):
    member = await visitors.signed_in(await key_with(world, tenant, Role.MEMBER, NODE))
    page = await member.get(TEAM)

    assert page.status_code == 200
    assert "You may look at this policy" in texts(page)
    assert 'value="save"' not in page.text
    for path, form in (
        (TEAM, {"action": "save", "weight": "9"}),
        (TEAM, {"action": "preview", "weight": "9"}),
        (f"{TEAM}/grants", {"amount": "5"}),
        (f"{TEAM}/grants/end", {"uid": "x"}),
        ("/console/classes/batch", {"rank": "1", "min_share": "0"}),
        ("/console/classes/-/new", {"name": "mine", "rank": "1", "min_share": "0"}),
        ("/console/classes/batch/delete", {}),
    ):
        assert (await member.send(path, form)).status_code == 403, path
    (team,) = (await world.cache.refresh()).teams.values()
    assert team.weight == 1


async def test_an_organizations_administrator_changes_its_teams_and_not_itself(
    world: World, tenant: Tenant, visitors: Visitors
):
    ola = await visitors.signed_in(await key_with(world, tenant, Role.ORG_ADMIN, ResourcePath("acme")))
    form = await opened(ola)
    answer = await ola.send(TEAM, form | {"action": "save", "weight": "2"})
    assert answer.status_code == 303
    page = await ola.get(TEAM)
    assert 'value="preview"' not in page.text
    assert "needs a role at the platform" in texts(page)
    assert (await ola.send(TEAM, await opened(ola) | {"action": "preview", "weight": "3"})).status_code == 403

    above = await opened(ola, ORGANIZATION)

    assert (await ola.send(ORGANIZATION, above | {"action": "save", "weight": "2"})).status_code == 403
    assert (await ola.get("/console/tenants/other/-/policy")).status_code in (403, 404)
    for form in ({"action": "edit"}, {}):
        assert (await ola.send("/console/tenants/other/-/policy", form)).status_code in (403, 404)
    assert (await ola.get("/console/tenants/-/-/policy")).status_code == 404


async def test_a_key_gets_a_policy_of_its_own_and_loses_it(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    page_of_key = f"/console/tenants/acme/search/keys/{tenant.public_id}/policy"
    form = await opened(ada, page_of_key)
    assert form["etag"] == ""
    assert 'name="weight"' not in (await ada.get(page_of_key)).text

    answer = await ada.send(page_of_key, form | {"action": "save", **row(0, 2, "CONCURRENCY")})

    assert answer.status_code == 303, texts(answer)
    key = (await world.cache.refresh()).keys[tenant.public_id]
    assert [each.amount for each in key.policy.limits] == [2]
    again = await ada.send(page_of_key, form | {"action": "save", "request_id": "", **row(0, 3, "CONCURRENCY")})
    assert again.status_code == 409
    etag = (await opened(ada, page_of_key))["etag"]
    assert (await ada.send(f"{page_of_key}/delete", {"etag": etag})).status_code == 303
    assert (await world.cache.refresh()).keys[tenant.public_id].policy is None


async def test_a_limit_is_raised_for_a_launch_and_ended(world: World, tenant: Tenant, visitors: Visitors):
    await world.policy(NODE, QuotaPolicySettings(limits=(REQUESTS,)))
    ada = await visitors.administrator()
    page = await ada.get(f"{TEAM}/grants")
    until = datetime.now(UTC) + timedelta(hours=3)
    form = hidden_fields(page) | {
        "raised": "limit/1/",
        "amount": "6,000",
        "until": until.strftime("%Y-%m-%dT%H:%M"),
        "reason": f"launch {HOSTILE}",
    }
    wrong = await ada.send(f"{TEAM}/grants", form | {"amount": "5"})
    assert wrong.status_code == 400
    assert "the limit on requests is 600 already" in texts(wrong)
    wrong = await ada.send(f"{TEAM}/grants", form | {"until": "2020-01-01T00:00", "reason": ""})
    assert wrong.status_code == 400

    answers = [await ada.send(f"{TEAM}/grants", form) for _ in range(2)]  # pressed twice

    assert [answer.status_code for answer in answers] == [303, 303]
    (team,) = (await world.cache.refresh()).teams.values()
    (granted,) = team.policy.grants
    assert granted.amount == 6000
    page = await ada.get(TEAM)
    assert "requests to 6,000" in texts(page)
    assert HOSTILE not in page.text
    assert (await ada.send(f"{TEAM}/grants/end", {"uid": str(granted.id)})).status_code == 303
    (team,) = (await world.cache.refresh()).teams.values()
    assert team.policy.grants == ()


async def test_a_policy_without_limits_has_nothing_to_raise(tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()

    assert "no limit and no budget that could be raised" in texts(await ada.get(f"{TEAM}/grants"))


@pytest.mark.parametrize("path", ["/console/tenants/nobody/-/policy", "/console/tenants/acme/nobody/policy"])
async def test_a_policy_of_nobody_is_not_found(tenant: Tenant, visitors: Visitors, path: str):
    ada = await visitors.administrator()

    assert (await ada.get(path)).status_code == 404


async def test_a_database_that_is_away_loses_nothing_that_was_written(
    world: World, tenant: Tenant, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
):
    ada = await visitors.administrator()
    form = await opened(ada) | {"action": "save", "weight": "2", **row(0, 60)}

    async def away(*_args: object) -> None:
        raise StoreUnavailableError

    monkeypatch.setattr("gateway.admin.quota_policies.QuotaPolicies.update", away)

    page = await ada.send(TEAM, form)

    assert page.status_code == 503
    assert "the database cannot be reached now" in texts(page)
    assert 'name="limits-0-amount" value="60"' in page.text
