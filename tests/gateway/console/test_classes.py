"""Priority classes in the console: listed, made, changed, in conflict, deleted."""

from tests.gateway.console.visitors import Visitors, hidden_fields, texts
from tests.gateway.world import Tenant, World


async def test_classes_are_listed_made_changed_and_deleted(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()
    page = await ada.get("/console/classes")
    for name in ("priority", "default", "batch"):
        assert name in texts(page)
    form = hidden_fields(await ada.get("/console/classes/-/new")) | {
        "name": "nightly",
        "rank": "300",
        "min_share": "2.5",
        "max_queue_wait": "10m",
    }
    for wrong, problem in (
        ({"name": "Nightly!"}, "must be"),
        ({"name": "batch"}, "is taken"),
        ({"min_share": "120"}, "must be from 0 to 100"),
        ({"rank": "first"}, "must be a whole number"),
    ):
        refused = await ada.send("/console/classes/-/new", form | wrong | {"request_id": ""})
        assert refused.status_code in (400, 409), wrong
        assert problem in texts(refused), wrong

    assert (await ada.send("/console/classes/-/new", form)).status_code == 303

    many = await ada.send("/console/classes/-/new", form | {"name": "late", "min_share": "99", "request_id": ""})
    assert many.status_code == 409
    assert "would be promised" in texts(many)
    record = (await world.cache.refresh()).classes["nightly"]
    assert (record.rank, record.min_share, record.preemptible) == (300, 0.025, False)
    edit = hidden_fields(await ada.get("/console/classes/nightly")) | {"rank": "301", "min_share": "2.5"}
    assert (await ada.send("/console/classes/nightly", edit)).status_code == 303
    assert (await world.cache.refresh()).classes["nightly"].rank == 301
    conflict = await ada.send("/console/classes/nightly", edit | {"rank": "400", "request_id": ""})
    assert conflict.status_code == 409
    assert "Rank both changed it 300 301 400 400" in texts(conflict)
    assert (await ada.send("/console/classes/nightly", hidden_fields(conflict) | {"action": "save"})).status_code == 303
    assert (await world.cache.refresh()).classes["nightly"].rank == 400
    assert (await ada.send("/console/classes/default/delete", {})).status_code == 409
    assert (await ada.send("/console/classes/nightly/delete", {})).status_code == 303
    assert "nightly" not in (await world.cache.refresh()).classes


async def test_a_class_that_there_is_not_is_not_found(tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()

    assert (await ada.get("/console/classes/nobody")).status_code == 404
