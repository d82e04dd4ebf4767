"""AdminService: the door to tenancy, credentials and quota policies. Composition only; each noun has its module.

Whoever gets here is a platform administrator: the interceptors let nobody else call this service.
"""

# ruff: noqa: N802 - the names are the protocol's

import asyncio
from collections import abc

import grpc

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from gateway.admin.api_keys import AbortKey, ApiKeys
from gateway.admin.backend import Backend
from gateway.admin.engines import Engine, Engines
from gateway.admin.organizations import Organizations
from gateway.admin.pagination import PageTokens
from gateway.admin.quota_policies import QuotaPolicies
from gateway.admin.system import status_to_pb
from gateway.admin.teams import Teams
from gateway.status import SystemReport
from gateway.store.cache import TenancyCache
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.migrate import current_revision

SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class AdminServicer(AdminServiceServicer):
    """The service over one database. Page tokens are signed with a key derived from `pepper`.

    `status` collects the figures of the parts, `engines` are those that policies can be set on; `abort_key` cancels
    what a key has running on this gateway.
    """

    def __init__(
        self,
        database: Database,
        tenancy_cache: TenancyCache,
        pepper: bytes,
        *,
        status: abc.Callable[[], abc.Awaitable[SystemReport]],
        abort_key: AbortKey,
        engines: abc.Sequence[Engine],
    ) -> None:
        backend = Backend(database, tenancy_cache, PageTokens(pepper))
        self._database = database
        self._cache = tenancy_cache
        self._status = status
        self._organizations = Organizations(backend)
        self._teams = Teams(backend)
        self._api_keys = ApiKeys(backend, pepper, abort_key)
        self._quota_policies = QuotaPolicies(backend)
        self._engines = Engines(backend, engines)

    def add_to(self, server: grpc.aio.Server) -> None:
        """`server` offers the service."""
        add_AdminServiceServicer_to_server(self, server)

    async def CreateOrganization(self, request: pb.CreateOrganizationRequest, context: Context) -> pb.Organization:
        return await self._organizations.create(request)

    async def GetOrganization(self, request: pb.GetOrganizationRequest, context: Context) -> pb.Organization:
        return await self._organizations.get(request)

    async def ListOrganizations(
        self, request: pb.ListOrganizationsRequest, context: Context
    ) -> pb.ListOrganizationsResponse:
        return await self._organizations.list(request)

    async def UpdateOrganization(self, request: pb.UpdateOrganizationRequest, context: Context) -> pb.Organization:
        return await self._organizations.update(request)

    async def CreateTeam(self, request: pb.CreateTeamRequest, context: Context) -> pb.Team:
        return await self._teams.create(request)

    async def GetTeam(self, request: pb.GetTeamRequest, context: Context) -> pb.Team:
        return await self._teams.get(request)

    async def ListTeams(self, request: pb.ListTeamsRequest, context: Context) -> pb.ListTeamsResponse:
        return await self._teams.list(request)

    async def UpdateTeam(self, request: pb.UpdateTeamRequest, context: Context) -> pb.Team:
        return await self._teams.update(request)

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.create(request)

    async def GetApiKey(self, request: pb.GetApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.get(request)

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: Context) -> pb.ListApiKeysResponse:
        return await self._api_keys.list(request)

    async def UpdateApiKey(self, request: pb.UpdateApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.update(request)

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.revoke(request)

    async def CreateQuotaPolicy(self, request: pb.CreateQuotaPolicyRequest, context: Context) -> pb.QuotaPolicy:
        return await self._quota_policies.create(request)

    async def GetQuotaPolicy(self, request: pb.GetQuotaPolicyRequest, context: Context) -> pb.QuotaPolicy:
        return await self._quota_policies.get(request)

    async def ListQuotaPolicies(
        self, request: pb.ListQuotaPoliciesRequest, context: Context
    ) -> pb.ListQuotaPoliciesResponse:
        return await self._quota_policies.list(request)

    async def UpdateQuotaPolicy(self, request: pb.UpdateQuotaPolicyRequest, context: Context) -> pb.QuotaPolicy:
        return await self._quota_policies.update(request)

    async def GetSystemStatus(self, request: pb.GetSystemStatusRequest, context: Context) -> pb.SystemStatus:
        report, schema_revision = await self._status(), await self._schema_revision()
        # Thousands of tenants take longer than other calls should have to wait.
        return await asyncio.to_thread(status_to_pb, report, self._cache.current, schema_revision)

    async def SetSchedulingPolicy(
        self, request: pb.SetSchedulingPolicyRequest, context: Context
    ) -> pb.SetSchedulingPolicyResponse:
        return await self._engines.set_scheduling_policy(request)

    async def _schema_revision(self) -> str:
        """Empty while the database cannot tell."""
        try:
            return await current_revision(self._database) or ""
        except DatabaseUnavailableError:
            return ""
