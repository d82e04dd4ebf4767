"""An edited weight reaches every engine with the revision that set it, at once and after an absence."""

import pytest

from gateway.errors import NoEngineError
from gateway.propagation import changed_nodes, tell
from gateway.store.records import QuotaPolicySettings, ResourcePath
from gateway.store.snapshot import EMPTY_SNAPSHOT
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.world import Tenant, World, eventually

TEAM = ResourcePath("acme", "search")


def nodes(tenant: Tenant) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The paths of organization and team as engines know them."""
    return (str(tenant.organization_id),), (str(tenant.organization_id), str(tenant.team_id))


async def set_weight(world: World, path: ResourcePath, weight: float) -> int:
    """The weight is committed; returns the revision that did it."""
    await world.policy(path, QuotaPolicySettings(weight=weight))
    return world.cache.current.revision


async def test_edited_weight_reaches_the_engine_with_its_revision(world: World, tenant: Tenant) -> None:
    organization, team = nodes(tenant)

    of_team = await set_weight(world, TEAM, 3.0)
    of_organization = await set_weight(world, ResourcePath("acme"), 0.5)

    await eventually(lambda: world.engine.weights.get(organization) == (0.5, of_organization))
    assert world.engine.weights[team] == (3.0, of_team)


async def test_engine_knows_the_classes_of_the_store(world: World) -> None:
    await eventually(lambda: world.engine.classes)

    assert set(world.engine.classes) == {"priority", "default", "batch"}
    assert world.engine.classes["priority"].rank < world.engine.classes["batch"].rank


async def test_only_what_changed_is_told(world: World, tenant: Tenant) -> None:
    _, team = nodes(tenant)
    await eventually(lambda: team in world.engine.weights)
    world.engine.weights.clear()

    revision = await set_weight(world, TEAM, 7.0)

    await eventually(lambda: world.engine.weights)
    assert world.engine.weights == {team: (7.0, revision)}


async def test_change_that_is_no_weight_and_no_class_is_not_told(world: World, tenant: Tenant) -> None:
    organization, team = nodes(tenant)
    await eventually(lambda: {organization, team} <= set(world.engine.weights))
    before = world.cache.current
    await world.key(TEAM, tenant.organization_id, tenant.team_id)

    assert world.cache.current.revision > before.revision
    assert changed_nodes(before, world.cache.current) == []
    assert before.classes is world.cache.current.classes


async def test_engine_that_comes_back_is_told_everything(world: World, tenant: Tenant) -> None:
    organization, team = nodes(tenant)
    revision = await set_weight(world, TEAM, 3.0)
    await eventually(lambda: world.engine.weights.get(team) == (3.0, revision))
    await world.engine.stop()
    world.engine.weights.clear()

    await world.engine.start()

    await eventually(lambda: world.engine.weights.get(team) == (3.0, revision))
    assert organization in world.engine.weights


async def test_engine_that_is_away_holds_up_no_other_one(closed_world: World, second_engine: FakeEngine) -> None:
    closed_world.options["engine"] = f"{closed_world.engine.address},{second_engine.address}"
    await closed_world.engine.stop()
    await closed_world.open()
    await closed_world.serving()
    tenant = await closed_world.tenant()
    _, team = nodes(tenant)

    revision = await set_weight(closed_world, TEAM, 2.0)

    await eventually(lambda: second_engine.weights.get(team) == (2.0, revision))
    assert closed_world.engine.weights == {}


async def test_many_nodes_travel_in_several_messages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.engine_client.client.NODES_PER_MESSAGE", 2)
    tenants = [await world.tenant(slug) for slug in ("a", "b", "c")]
    (engine,) = world.live._models.engines
    world.engine.weights.clear()

    await tell(engine, EMPTY_SNAPSHOT, world.cache.current)

    assert set(world.engine.weights) == {path for tenant in tenants for path in nodes(tenant)}


async def test_engine_that_is_away_is_said_to_be(world: World, tenant: Tenant) -> None:
    (engine,) = world.live._models.engines
    await world.engine.stop()

    with pytest.raises(NoEngineError):
        await tell(engine, EMPTY_SNAPSHOT, world.cache.current)
