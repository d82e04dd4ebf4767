"""Administrators at the same time: nobody's change is lost, and a retry is the first call."""

import asyncio
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.audit import ChainIntact, verify_chain
from tests.admin.service import AdminService

ORG = "organizations/acme"


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


async def test_of_updates_with_one_etag_exactly_one_is_made(tenant: AdminService):
    etag = (await tenant.call(tenant.stub.GetOrganization, pb.GetOrganizationRequest(name=ORG))).etag
    requests = [
        pb.UpdateOrganizationRequest(organization=pb.Organization(name=ORG, display_name=f"name {n}", etag=etag))
        for n in range(6)
    ]

    answers = await asyncio.gather(
        *(tenant.call(tenant.stub.UpdateOrganization, request) for request in requests), return_exceptions=True
    )

    (made,) = [answer for answer in answers if isinstance(answer, pb.Organization)]
    refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
    assert {answer.code() for answer in refused} == {grpc.StatusCode.ABORTED}
    assert len(refused) == 5
    assert await tenant.call(tenant.stub.GetOrganization, pb.GetOrganizationRequest(name=ORG)) == made


async def test_updates_of_different_fields_at_the_same_time_are_all_kept(tenant: AdminService):
    team = f"{ORG}/teams/search"
    requests = [
        pb.UpdateTeamRequest(team=pb.Team(name=team, display_name="new")),
        pb.UpdateTeamRequest(team=pb.Team(name=team, state=pb.STATE_SUSPENDED)),
        pb.UpdateTeamRequest(team=pb.Team(name=team, default_priority_class="priorityClasses/batch")),
    ]

    await asyncio.gather(*(tenant.call(tenant.stub.UpdateTeam, request) for request in requests))

    kept = await tenant.call(tenant.stub.GetTeam, pb.GetTeamRequest(name=team))
    assert (kept.display_name, kept.state) == ("new", pb.STATE_SUSPENDED)
    assert kept.default_priority_class == "priorityClasses/batch"


@pytest.mark.parametrize("noun", ["organization", "team", "key", "class", "policies"])
async def test_retries_at_the_same_time_make_one_change(tenant: AdminService, noun: str):
    request_id = str(uuid4())
    method, request = {
        "organization": (
            tenant.stub.CreateOrganization,
            pb.CreateOrganizationRequest(organization_id="other", request_id=request_id),
        ),
        "team": (tenant.stub.CreateTeam, pb.CreateTeamRequest(parent=ORG, team_id="ads", request_id=request_id)),
        "key": (
            tenant.stub.CreateApiKey,
            pb.CreateApiKeyRequest(parent=f"{ORG}/teams/search", request_id=request_id),
        ),
        "class": (
            tenant.stub.CreatePriorityClass,
            pb.CreatePriorityClassRequest(priority_class_id="urgent", request_id=request_id),
        ),
        "policies": (
            tenant.stub.ApplyPolicies,
            pb.ApplyPoliciesRequest(
                entries=[pb.PolicyEntry(organization=pb.Organization(name="organizations/other"))],
                request_id=request_id,
            ),
        ),
    }[noun]
    revision = tenant.cache.current.revision

    answers = await asyncio.gather(*(tenant.call(method, request) for _ in range(5)))

    assert (await tenant.cache.refresh()).revision == revision + 1
    if noun == "key":
        assert sum(bool(answer.secret) for answer in answers) == 1
    if noun != "policies":
        assert len({answer.name for answer in answers}) == 1


async def test_request_id_of_another_request_is_refused(tenant: AdminService):
    request_id = str(uuid4())
    first = pb.CreatePriorityClassRequest(priority_class_id="a", request_id=request_id)
    second = pb.CreatePriorityClassRequest(priority_class_id="b", request_id=request_id)
    await tenant.call(tenant.stub.CreatePriorityClass, first)

    refused = await tenant.refused(tenant.stub.CreatePriorityClass, second)

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "REQUEST_ID_REUSED")


async def test_chain_is_intact_after_many_changes_at_the_same_time(tenant: AdminService):
    await asyncio.gather(*(tenant.create_team(f"t{n}") for n in range(6)))
    await asyncio.gather(
        *(tenant.call(tenant.stub.DeleteTeam, pb.DeleteTeamRequest(name=f"{ORG}/teams/t{n}")) for n in range(0, 6, 2)),
        *(tenant.create_key(f"{ORG}/teams/t{n}") for n in range(1, 6, 2)),
    )

    assert await verify_chain(tenant.database) == ChainIntact(3 + 6 + 6)
