"""Two people change one policy: what the second one sees, and what saving on top of the first makes of it."""

import pytest

from gateway.store.enums import Dimension
from gateway.store.records import QuotaPolicySettings
from tests.gateway.console.test_policies import NODE, REQUESTS, TEAM, opened, row
from tests.gateway.console.visitors import Visitors, hidden_fields, texts
from tests.gateway.world import Tenant, World


async def test_a_conflict_shows_all_versions_and_is_saved_on_top(world: World, tenant: Tenant, visitors: Visitors):
    await world.policy(NODE, QuotaPolicySettings(limits=(REQUESTS,)))
    ada, ben = await visitors.administrator(), await visitors.administrator()
    of_ada, of_ben = await opened(ada), await opened(ben)
    await ben.send(TEAM, of_ben | {"action": "save", "weight": "3", **row(0, 600), **row(1, 4, "CONCURRENCY")})

    page = await ada.send(TEAM, of_ada | {"action": "save", "weight": "7", **row(0, 1200)})

    assert page.status_code == 409
    told = texts(page)
    assert "Somebody else has changed it" in told
    assert "Weight both changed it 1 3 7 7" in told
    assert "Changed last by apiKeys/" in told
    assert "Limit: concurrency none 4 at once none 4 at once" in told
    assert "600 per minute, 100 at once 600 per minute, 100 at once 1,200 per minute" in told
    (team,) = (await world.cache.refresh()).teams.values()
    assert team.weight == 3

    answer = await ada.send(TEAM, hidden_fields(page) | {"action": "save"})

    assert answer.status_code == 303, texts(answer)
    (team,) = (await world.cache.refresh()).teams.values()
    assert team.weight == 7
    assert {each.dimension: each.amount for each in team.policy.limits} == {
        Dimension.REQUESTS: 1200,
        Dimension.CONCURRENCY: 4,
    }


async def test_what_both_wanted_is_in_force_and_nothing_is_left_to_save(
    world: World, tenant: Tenant, visitors: Visitors
):
    ada, ben = await visitors.administrator(), await visitors.administrator()
    of_ada, of_ben = await opened(ada), await opened(ben)
    same = {"action": "save", "weight": "3", **row(0, 600)}
    await ben.send(TEAM, of_ben | same)

    page = await ada.send(TEAM, of_ada | same)

    assert page.status_code == 409
    told = texts(page)
    assert "What you wanted is in force already" in told
    assert "Weight both want the same 1 3 3 3" in told
    assert "Nothing of yours was saved" not in told
    assert 'value="save"' not in page.text


@pytest.mark.parametrize("base", ["", "{", '{"mode": 99}', '{"limits": [{"period": "9e9s"}]}', "[]", '{"uid": 7}'])
async def test_a_form_that_no_page_has_written_is_compared_with_what_is_there(
    world: World, tenant: Tenant, visitors: Visitors, base: str
):
    ada = await visitors.administrator()
    form = await opened(ada) | {"action": "save", "weight": "7", "base": base, "etag": "0"}

    page = await ada.send(TEAM, form)

    assert page.status_code == 409
    assert "Weight 1 1 7 7" in texts(page)


async def test_one_goes_on_editing_after_a_conflict(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    form = await opened(ada)
    await world.policy(NODE, QuotaPolicySettings(weight=4.0))
    conflict = await ada.send(TEAM, form | {"action": "save", "weight": "1", **row(0, 60)})

    page = await ada.send(TEAM, hidden_fields(conflict) | {"action": "edit"})

    assert page.status_code == 200
    assert 'name="weight" type="text" value="4"' in page.text
    assert 'name="limits-0-amount" value="60"' in page.text
