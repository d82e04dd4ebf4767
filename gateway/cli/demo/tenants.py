"""The demo's tenants, made through the admin service as an administrator would: an organization, teams and keys."""

import grpc

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceStub
from gateway.cli.connection import Metadata
from gateway.cli.demo.sizes import BATCH, CHAT

ORGANIZATION = "organizations/demo"


async def create_tenants(channel: grpc.aio.Channel, admin_key: str) -> dict[str, Metadata]:
    """The teams exist; returns what their requests carry."""
    admin, as_admin = AdminServiceStub(channel), bearer(admin_key)
    await admin.CreateOrganization(pb.CreateOrganizationRequest(organization_id="demo"), metadata=as_admin)
    keys: dict[str, Metadata] = {}
    for tenant in (BATCH, CHAT):
        team = await admin.CreateTeam(pb.CreateTeamRequest(parent=ORGANIZATION, team_id=tenant), metadata=as_admin)
        key = await admin.CreateApiKey(pb.CreateApiKeyRequest(parent=team.name), metadata=as_admin)
        keys[tenant] = bearer(key.secret)
    return keys


async def engine_figures(channel: grpc.aio.Channel, admin_key: str) -> dict[str, pb.TenantStatus]:
    """What the engine did to each team since it began; nothing where it does not answer."""
    request = pb.GetSystemStatusRequest()
    status = await AdminServiceStub(channel).GetSystemStatus(request, metadata=bearer(admin_key))
    return {tenant.team.rpartition("/")[2]: tenant for engine in status.engines for tenant in engine.tenants}


def bearer(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)
