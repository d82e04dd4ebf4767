"""ApplyPolicies: many changes in one, or none of them; a second time, nothing."""

import json

from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.audit import ChainIntact, verify_chain
from tests.admin.service import AdminService, Refused

TEAM = "organizations/acme/teams/search"


def limit(amount: int) -> pb.QuotaLimit:
    return pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_REQUESTS, limit=amount)


def entries(amount: int = 60) -> list[pb.PolicyEntry]:
    """A class, an organization, a team and both of their policies."""
    return [
        pb.PolicyEntry(priority_class=pb.PriorityClass(name="priorityClasses/nightly", rank=300, preemptible=True)),
        pb.PolicyEntry(organization=pb.Organization(name="organizations/acme", display_name="Acme")),
        pb.PolicyEntry(quota_policy=pb.QuotaPolicy(name="organizations/acme/quotaPolicies/default", weight=2)),
        pb.PolicyEntry(team=pb.Team(name=TEAM, priority_class_grants=["priorityClasses/nightly"])),
        pb.PolicyEntry(quota_policy=pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default", limits=[limit(amount)])),
    ]


async def apply(service: AdminService, wanted: list[pb.PolicyEntry], **fields) -> pb.ApplyPoliciesResponse:
    return await service.call(service.stub.ApplyPolicies, pb.ApplyPoliciesRequest(entries=wanted, **fields))


def differences(response: pb.ApplyPoliciesResponse) -> dict[str, bool]:
    """What differs, and whether it is new."""
    return {change.name: change.created for change in response.changes}


async def test_everything_is_made_in_one_revision(service: AdminService):
    before = service.cache.current.revision

    response = await apply(service, entries())

    team = await service.call(service.stub.GetTeam, pb.GetTeamRequest(name=TEAM))
    policy = await service.call(
        service.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=f"{TEAM}/quotaPolicies/default")
    )
    assert differences(response) == {
        "priorityClasses/nightly": True,
        "organizations/acme": True,
        "organizations/acme/quotaPolicies/default": False,
        TEAM: True,
        f"{TEAM}/quotaPolicies/default": False,
    }
    assert list(team.priority_class_grants) == ["priorityClasses/nightly"]
    assert policy.limits[0].limit == 60
    assert service.cache.current.revision == before + 1
    assert await verify_chain(service.database) == ChainIntact(6)  # the administrator's key was the first change


async def test_second_time_nothing_differs_and_nothing_is_changed(service: AdminService):
    await apply(service, entries())
    revision = service.cache.current.revision

    response = await apply(service, entries())

    assert list(response.changes) == []
    assert service.cache.current.revision == revision


async def test_difference_has_what_was_and_what_is(service: AdminService):
    await apply(service, entries())

    (change,) = (await apply(service, entries(90))).changes

    (field,) = change.fields
    assert (change.name, field.path) == (f"{TEAM}/quotaPolicies/default", "limits")
    assert [json.loads(side)[0]["amount"] for side in (field.before, field.after)] == [60, 90]


async def test_dry_run_says_the_same_and_keeps_nothing(service: AdminService):
    would_be = await apply(service, entries(), validate_only=True)
    revision = service.cache.current.revision
    listed = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest())
    made = await apply(service, entries())

    assert list(would_be.changes) == list(made.changes)
    assert (await service.cache.refresh()).revision == revision + 1
    assert list(listed.organizations) == []


async def test_what_was_changed_since_the_dry_run_is_not_overwritten(service: AdminService):
    dry_run = await apply(service, entries(), validate_only=True)
    await service.create_org("other")

    request = pb.ApplyPoliciesRequest(entries=entries(), etag=dry_run.etag)
    refused = await service.refused(service.stub.ApplyPolicies, request)
    again = await apply(service, entries(), validate_only=True)
    applied = await apply(service, entries(), etag=again.etag)

    assert (refused.code, refused.reason) == ("ABORTED", "ETAG_MISMATCH")
    assert len(applied.changes) == 5


async def test_one_refusal_undoes_all_and_names_its_entry(service: AdminService):
    for index, bad, path in (
        (4, pb.PolicyEntry(quota_policy=pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default", weight=-1)), ".weight"),
        (4, pb.PolicyEntry(team=pb.Team(name=TEAM, default_priority_class="priorityClasses/ghost")), ""),
        (0, pb.PolicyEntry(), ".resource"),
        (1, pb.PolicyEntry(organization=pb.Organization(name="acme")), ".name"),
    ):
        wanted = entries()
        wanted[index] = bad

        refused = await service.refused(service.stub.ApplyPolicies, pb.ApplyPoliciesRequest(entries=wanted))

        assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_FIELD"), bad
        assert refused.fields[0].startswith(f"entries[{index}].")
        assert path in refused.fields[0]
        listed = await service.call(service.stub.ListOrganizations, pb.ListOrganizationsRequest())
        assert list(listed.organizations) == []


async def test_team_of_an_organization_that_does_not_exist_is_refused(service: AdminService):
    refused = await service.refused(service.stub.ApplyPolicies, pb.ApplyPoliciesRequest(entries=entries()[3:]))

    assert refused == Refused("NOT_FOUND", "RESOURCE_NOT_FOUND", ())


async def test_mask_empties_a_list_and_leaves_the_rest(service: AdminService):
    await apply(service, entries())
    policy = pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default")

    entry = pb.PolicyEntry(quota_policy=policy, update_mask=FieldMask(paths=["limits"]))
    (change,) = (await apply(service, [entry])).changes

    assert [field.path for field in change.fields] == ["limits"]


async def test_each_change_is_an_event_of_its_own(service: AdminService):
    await apply(service, entries())

    listed = await service.call(service.stub.ListAuditEvents, pb.ListAuditEventsRequest(filter="revision > 1"))

    assert [event.action for event in listed.audit_events] == [
        "priorityClasses.create",
        "organizations.create",
        "quotaPolicies.update",
        "teams.create",
        "quotaPolicies.update",
    ]
    assert len({event.revision for event in listed.audit_events}) == 1
