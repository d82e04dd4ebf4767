"""Administrators' keys: made by administrators, as powerful as their scopes, and never all gone."""

from collections import abc
from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from tests.admin.service import AdminService, Refused, bearer

TEAM = "organizations/acme/teams/search"


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


async def create(service: AdminService, *scopes: str, parent: str = "-", **fields) -> pb.ApiKey:
    request = pb.CreateApiKeyRequest(parent=parent, api_key=pb.ApiKey(scopes=scopes, **fields))
    return await service.call(service.stub.CreateApiKey, request)


def own_name(service: AdminService) -> str:
    return f"apiKeys/{api_key.parse(service.admin_key).public_id}"


def change_of(name: str, *paths: str, **fields) -> pb.UpdateApiKeyRequest:
    return pb.UpdateApiKeyRequest(api_key=pb.ApiKey(name=name, **fields), update_mask=FieldMask(paths=paths))


@pytest.mark.parametrize("parent", ["", "-"])
async def test_second_administrators_key_may_do_what_the_first_may(tenant: AdminService, parent: str):
    key = await create(tenant, parent=parent)

    made = await tenant.call(
        tenant.stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="globex"), bearer(key.secret)
    )

    assert key.name == f"apiKeys/{api_key.parse(key.secret).public_id}"
    assert list(key.scopes) == ["admin"]
    assert key.HasField("expire_time")
    assert made.name == "organizations/globex"


async def test_platform_key_with_fewer_scopes_does_what_they_say_without_a_role(tenant: AdminService):
    reader = bearer((await create(tenant, "admin.read")).secret)

    audit = await tenant.call(tenant.stub.ListAuditEvents, pb.ListAuditEventsRequest(), reader)
    refused = await tenant.refused(
        tenant.stub.CreateOrganization, pb.CreateOrganizationRequest(organization_id="globex"), reader
    )

    assert audit.audit_events
    assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "SCOPE_NOT_GRANTED")


async def test_nobody_makes_or_takes_over_a_platform_key_that_can_do_more_than_they_can(tenant: AdminService):
    keeper = bearer((await create(tenant, "admin.read", "admin.keys")).secret)
    other = await create(tenant)
    team_key = await tenant.create_key(scopes=["admin.read", "admin.keys"])
    binding = pb.RoleBinding(principal=f"apiKeys/{team_key.name.rpartition('/')[2]}", role=pb.ROLE_ORG_ADMIN)
    request = pb.CreateRoleBindingRequest(parent="organizations/acme", role_binding=binding)
    await tenant.call(tenant.stub.CreateRoleBinding, request)
    calls: abc.Sequence = (
        (tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(parent="-"), keeper, "SCOPE_NOT_GRANTED"),
        (tenant.stub.RotateApiKey, pb.RotateApiKeyRequest(name=other.name), keeper, "SCOPE_NOT_GRANTED"),
        (tenant.stub.UpdateApiKey, change_of(other.name, "display_name"), keeper, "SCOPE_NOT_GRANTED"),
        (tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(parent="-"), bearer(team_key.secret), "ROLE_NOT_GRANTED"),
        (tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(), bearer(team_key.secret), "ROLE_NOT_GRANTED"),
    )

    for method, request, who, reason in calls:
        assert (await tenant.refused(method, request, who)).reason == reason, request


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"scopes": ["inference"]}, "api_key.scopes[0]"),
        ({"scopes": ["admin.read", "quota.read"]}, "api_key.scopes[1]"),
        ({"model_grants": ["small"]}, "api_key.model_grants"),
        ({"priority_class_grants": ["priorityClasses/batch"]}, "api_key.priority_class_grants"),
    ],
)
async def test_platform_key_is_for_no_inference(tenant: AdminService, fields: dict, path: str):
    request = pb.CreateApiKeyRequest(parent="-", api_key=pb.ApiKey(**fields))

    assert await tenant.refused(tenant.stub.CreateApiKey, request) == Refused(
        "INVALID_ARGUMENT", "INVALID_FIELD", (path,)
    )


async def test_key_that_cannot_do_everything_does_not_stand_in_for_an_administrator(tenant: AdminService):
    reader = await create(tenant, "admin.read", "admin.keys")
    own = pb.RevokeApiKeyRequest(name=own_name(tenant))

    refused = await tenant.refused(tenant.stub.RevokeApiKey, own)
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=reader.name))
    successor = await create(tenant)
    revoked = await tenant.call(tenant.stub.RevokeApiKey, own, bearer(successor.secret))

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PRECONDITION_FAILED")
    assert revoked.HasField("revoke_time")


async def test_last_administrator_is_changed_in_nothing_that_could_lock_everybody_out(tenant: AdminService):
    name, soon = own_name(tenant), Timestamp()
    soon.FromDatetime(datetime.now(UTC) + timedelta(days=1))
    weaker = (
        change_of(name, "scopes", scopes=["admin.read"]),
        change_of(name, "expire_time", expire_time=soon),
        change_of(name, "ip_cidrs", ip_cidrs=["10.0.0.0/8"]),
    )
    for request in weaker:
        assert (await tenant.refused(tenant.stub.UpdateApiKey, request)).code == "FAILED_PRECONDITION"
    named = await tenant.call(tenant.stub.UpdateApiKey, change_of(name, "display_name", display_name="ops"))

    successor = await create(tenant)
    changed = await tenant.call(tenant.stub.UpdateApiKey, weaker[0], bearer(successor.secret))

    assert named.display_name == "ops"
    assert list(changed.scopes) == ["admin.read"]
