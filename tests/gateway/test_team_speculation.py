"""Drafts that an administrator has turned off for a team: what its requests say to the engine."""

from dataclasses import replace

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.store.records import ResourcePath, TeamSettings
from gateway.store.teams import update_team
from tests.gateway.world import CHANGE, Tenant, World


async def test_drafts_are_verified_only_where_both_the_team_and_its_request_allow_them(world: World) -> None:
    for is_off_for_team in (False, True):
        tenant = await world.tenant(
            f"off-{is_off_for_team}".lower(), team=TeamSettings(speculation_disabled=is_off_for_team)
        )
        for asked in (None, True, False):
            await tenant.generate(sampling=pb.SamplingOptions(speculation=asked))

            start = world.engine.calls[-1].start
            is_off = start.HasField("speculation") and not start.speculation
            assert is_off is (is_off_for_team or asked is False)


async def test_a_team_that_has_drafts_turned_off_has_none_from_then_on(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    path = ResourcePath(tenant.path.organization, tenant.path.team)
    await update_team(world.database, CHANGE, path, lambda old: replace(old, speculation_disabled=True))
    await world.cache.refresh()
    await tenant.generate()

    assert [call.start.HasField("speculation") for call in world.engine.calls] == [False, True]
