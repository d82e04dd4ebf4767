"""Policies are switched on the engines by an administrator only, all or none that can be reached, and on record."""

import pytest
from sqlalchemy import select

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.status import PolicyChoice
from gateway.store.audit import ChainIntact, verify_chain
from gateway.store.journal_models import AuditEventRow
from tests.admin.service import AdminService, Refused, bearer


def request_for(name: str = "vtc", **fields) -> pb.SetSchedulingPolicyRequest:
    return pb.SetSchedulingPolicyRequest(scheduling_policy=name, **fields)


async def switch(service: AdminService, name: str = "vtc", **fields) -> pb.SetSchedulingPolicyResponse:
    return await service.call(service.stub.SetSchedulingPolicy, request_for(name, **fields))


async def recorded_switches(service: AdminService) -> list[AuditEventRow]:
    async with service.database.session() as session:
        events = select(AuditEventRow).where(AuditEventRow.action == "engines.setSchedulingPolicy")
        return list(await session.scalars(events))


def policies(scheduling: str, options: dict, preemption: str = "over_served", preemption_options=None) -> dict:
    """What the record says of one engine."""
    return {
        "scheduling_policy": scheduling,
        "scheduling_options": options,
        "preemption_policy": preemption,
        "preemption_options": preemption_options or {},
    }


def switched(service: AdminService) -> list[list[str]]:
    """Per engine, the scheduling policies that it took."""
    return [
        [choice.scheduling_policy for choice, validate_only in engine.told if not validate_only]
        for engine in service.engines
    ]


async def test_every_engine_takes_the_policies_with_their_options(service: AdminService):
    answer = await switch(
        service,
        scheduling_options={"slack": "1"},
        preemption_policy="latest_arrival",
        preemption_options={"x": "2"},
    )

    assert [one.engine for one in answer.switches] == ["unix:/e.sock", "unix:/gone.sock"]
    assert answer.switches[0].previous_scheduling_policy == "fair"
    assert answer.switches[0].previous_preemption_policy == "over_served"
    assert dict(answer.switches[0].previous_scheduling_options) == {"mode": "strict"}
    assert dict(answer.switches[0].previous_preemption_options) == {}
    choice = PolicyChoice("vtc", {"slack": "1"}, "latest_arrival", {"x": "2"})
    assert all(engine.told[-1] == (choice, False) for engine in service.engines)


async def test_switch_is_in_the_audit_chain_with_what_was_before(service: AdminService):
    await switch(service, engine="unix:/e.sock", scheduling_options={"slack": "1"})

    (event,) = await recorded_switches(service)
    assert event.resource == "engines/unix:/e.sock"
    before = policies("fair", {"mode": "strict"})
    assert event.before == {"unix:/e.sock": before}
    assert event.after == {"unix:/e.sock": policies("vtc", {"slack": "1"})}
    assert isinstance(await verify_chain(service.database), ChainIntact)
    assert switched(service) == [["vtc"], []]


async def test_policy_that_stays_is_on_record_with_its_options(service: AdminService):
    await switch(service, "", preemption_policy="latest_arrival", preemption_options={"x": "2"})

    (event,) = await recorded_switches(service)
    now = policies("fair", {"mode": "strict"}, "latest_arrival", {"x": "2"})
    assert event.after == {"unix:/e.sock": now, "unix:/gone.sock": now}


async def test_validate_only_asks_and_changes_nothing(service: AdminService):
    answer = await switch(service, validate_only=True)

    assert len(answer.switches) == 2
    assert switched(service) == [[], []]
    assert all(engine.told for engine in service.engines)
    assert await recorded_switches(service) == []


async def test_policy_that_an_engine_cannot_take_is_taken_by_none(service: AdminService):
    refused = await service.refused(service.stub.SetSchedulingPolicy, request_for("bad"))

    assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("scheduling_policy",))
    assert switched(service) == [[], []]
    assert await recorded_switches(service) == []


async def test_engine_that_goes_away_is_told_of_and_the_others_are_on_record(service: AdminService):
    service.engines[1].is_away = True

    refused = await service.refused(service.stub.SetSchedulingPolicy, request_for())

    assert (refused.code, refused.reason) == ("UNAVAILABLE", "NO_ENGINE")
    (event,) = await recorded_switches(service)
    assert (list(event.before), list(event.after)) == (["unix:/e.sock"], ["unix:/e.sock"])


async def test_nothing_is_on_record_where_no_engine_switched(service: AdminService):
    for engine in service.engines:
        engine.is_away = True

    refused = await service.refused(service.stub.SetSchedulingPolicy, request_for())

    assert refused.reason == "NO_ENGINE"
    assert await recorded_switches(service) == []


async def test_retry_of_a_switch_does_not_switch_again(service: AdminService):
    for _ in range(2):
        await switch(service, request_id="3f0e0a5c-33a4-4d53-9d55-1a64b7c2f4a1")

    assert switched(service) == [["vtc"], ["vtc"]]
    assert len(await recorded_switches(service)) == 1


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (pb.SetSchedulingPolicyRequest(), Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("scheduling_policy",))),
        (request_for(engine="unix:/no.sock"), Refused("NOT_FOUND", "RESOURCE_NOT_FOUND", ())),
    ],
)
async def test_request_that_names_nothing_is_refused(service: AdminService, request_, expected: Refused):
    assert await service.refused(service.stub.SetSchedulingPolicy, request_) == expected


async def test_key_of_a_team_may_not_switch(service: AdminService):
    await service.create_org()
    await service.create_team()
    key = await service.create_key()

    refused = await service.refused(service.stub.SetSchedulingPolicy, request_for(), bearer(key.secret))

    assert refused.code == "PERMISSION_DENIED"
    assert switched(service) == [[], []]
