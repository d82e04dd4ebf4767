"""AdminService: the door to tenancy, credentials and quota policies. Composition only; each noun has its module.

Whoever gets here is a platform administrator: the interceptors let nobody else call this service.
"""

# ruff: noqa: N802 - the names are the protocol's

import asyncio
from collections import abc
from typing import Protocol

import grpc
from google.protobuf.empty_pb2 import Empty

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from gateway.admin.api_keys import ApiKeys
from gateway.admin.apply import Policies
from gateway.admin.audit import Audit
from gateway.admin.backend import Backend
from gateway.admin.denials import Denials
from gateway.admin.engines import Engine, Engines
from gateway.admin.issuers import JwtIssuers
from gateway.admin.key_ends import AbortKey, KeyEnds
from gateway.admin.organizations import Organizations
from gateway.admin.pagination import PageTokens
from gateway.admin.priority_classes import PriorityClasses
from gateway.admin.queue import Queue, QueueEngine
from gateway.admin.quota_grants import QuotaGrants
from gateway.admin.quota_policies import QuotaPolicies
from gateway.admin.roles import RoleBindings
from gateway.admin.system import status_to_pb
from gateway.admin.teams import Teams
from gateway.admin.usage import Usage
from gateway.admin.what_if import WhatIf
from gateway.selection import Select
from gateway.status import SystemReport
from gateway.store.cache import TenancyCache
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.migrate import current_revision

SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class AdminEngine(Engine, QueueEngine, Protocol):
    """An engine's client as the methods on engines and on queues use it."""


class AdminServicer(AdminServiceServicer):
    """The service over one database. Page tokens are signed with a key derived from `pepper`.

    `status` collects the figures of the parts, `engines` are those that policies can be set on; `abort_key` cancels
    what a key has running on this gateway, `cancel` what is selected, and `select` finds it.
    """

    def __init__(
        self,
        database: Database,
        tenancy_cache: TenancyCache,
        pepper: bytes,
        *,
        status: abc.Callable[[], abc.Awaitable[SystemReport]],
        abort_key: AbortKey,
        engines: abc.Sequence[AdminEngine],
        select: Select,
        cancel: Select,
    ) -> None:
        backend = Backend(database, tenancy_cache, PageTokens(pepper))
        self._database = database
        self._cache = tenancy_cache
        self._status = status
        self._organizations = Organizations(backend)
        self._teams = Teams(backend)
        self._api_keys = ApiKeys(backend, pepper)
        self._key_ends = KeyEnds(backend, pepper, abort_key)
        self._priority_classes = PriorityClasses(backend)
        self._policies = Policies(backend)
        self._audit = Audit(backend)
        self._what_if = WhatIf(backend, status)
        self._quota_policies = QuotaPolicies(backend)
        self._quota_grants = QuotaGrants(backend)
        self._engines = Engines(backend, engines)
        self._queue = Queue(backend, engines, select, cancel)
        self._usage = Usage(backend)
        self._denials = Denials(backend)
        self._jwt_issuers = JwtIssuers(backend)
        self._role_bindings = RoleBindings(backend)

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

    async def DeleteOrganization(self, request: pb.DeleteOrganizationRequest, context: Context) -> pb.Organization:
        return await self._organizations.delete(request)

    async def UndeleteOrganization(self, request: pb.UndeleteOrganizationRequest, context: Context) -> pb.Organization:
        return await self._organizations.undelete(request)

    async def CreateTeam(self, request: pb.CreateTeamRequest, context: Context) -> pb.Team:
        return await self._teams.create(request)

    async def GetTeam(self, request: pb.GetTeamRequest, context: Context) -> pb.Team:
        return await self._teams.get(request)

    async def ListTeams(self, request: pb.ListTeamsRequest, context: Context) -> pb.ListTeamsResponse:
        return await self._teams.list(request)

    async def UpdateTeam(self, request: pb.UpdateTeamRequest, context: Context) -> pb.Team:
        return await self._teams.update(request)

    async def DeleteTeam(self, request: pb.DeleteTeamRequest, context: Context) -> pb.Team:
        return await self._teams.delete(request)

    async def UndeleteTeam(self, request: pb.UndeleteTeamRequest, context: Context) -> pb.Team:
        return await self._teams.undelete(request)

    async def CreateApiKey(self, request: pb.CreateApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.create(request)

    async def GetApiKey(self, request: pb.GetApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.get(request)

    async def ListApiKeys(self, request: pb.ListApiKeysRequest, context: Context) -> pb.ListApiKeysResponse:
        return await self._api_keys.list(request)

    async def UpdateApiKey(self, request: pb.UpdateApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._api_keys.update(request)

    async def RevokeApiKey(self, request: pb.RevokeApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._key_ends.revoke(request)

    async def RotateApiKey(self, request: pb.RotateApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._key_ends.rotate(request)

    async def DeleteApiKey(self, request: pb.DeleteApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._key_ends.delete(request)

    async def UndeleteApiKey(self, request: pb.UndeleteApiKeyRequest, context: Context) -> pb.ApiKey:
        return await self._key_ends.undelete(request)

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

    async def GrantTemporaryQuota(self, request: pb.GrantTemporaryQuotaRequest, context: Context) -> pb.QuotaPolicy:
        return await self._quota_grants.grant(request)

    async def EndTemporaryQuota(self, request: pb.EndTemporaryQuotaRequest, context: Context) -> pb.QuotaPolicy:
        return await self._quota_grants.end(request)

    async def DeleteQuotaPolicy(self, request: pb.DeleteQuotaPolicyRequest, context: Context) -> Empty:
        return await self._quota_policies.delete(request)

    async def ApplyPolicies(self, request: pb.ApplyPoliciesRequest, context: Context) -> pb.ApplyPoliciesResponse:
        return await self._policies.apply(request)

    async def SimulateQuotaPolicies(
        self, request: pb.SimulateQuotaPoliciesRequest, context: Context
    ) -> pb.SimulateQuotaPoliciesResponse:
        return await self._what_if.simulate(request)

    async def CreatePriorityClass(self, request: pb.CreatePriorityClassRequest, context: Context) -> pb.PriorityClass:
        return await self._priority_classes.create(request)

    async def GetPriorityClass(self, request: pb.GetPriorityClassRequest, context: Context) -> pb.PriorityClass:
        return await self._priority_classes.get(request)

    async def ListPriorityClasses(
        self, request: pb.ListPriorityClassesRequest, context: Context
    ) -> pb.ListPriorityClassesResponse:
        return await self._priority_classes.list(request)

    async def UpdatePriorityClass(self, request: pb.UpdatePriorityClassRequest, context: Context) -> pb.PriorityClass:
        return await self._priority_classes.update(request)

    async def DeletePriorityClass(self, request: pb.DeletePriorityClassRequest, context: Context) -> Empty:
        return await self._priority_classes.delete(request)

    async def ListAuditEvents(self, request: pb.ListAuditEventsRequest, context: Context) -> pb.ListAuditEventsResponse:
        return await self._audit.list(request)

    async def ExportAudit(
        self, request: pb.ExportAuditRequest, context: Context
    ) -> abc.AsyncIterator[pb.ExportAuditResponse]:
        async for message in self._audit.export():
            yield message

    async def CreateJwtIssuer(self, request: pb.CreateJwtIssuerRequest, context: Context) -> pb.JwtIssuer:
        return await self._jwt_issuers.create(request)

    async def GetJwtIssuer(self, request: pb.GetJwtIssuerRequest, context: Context) -> pb.JwtIssuer:
        return await self._jwt_issuers.get(request)

    async def ListJwtIssuers(self, request: pb.ListJwtIssuersRequest, context: Context) -> pb.ListJwtIssuersResponse:
        return await self._jwt_issuers.list(request)

    async def UpdateJwtIssuer(self, request: pb.UpdateJwtIssuerRequest, context: Context) -> pb.JwtIssuer:
        return await self._jwt_issuers.update(request)

    async def DeleteJwtIssuer(self, request: pb.DeleteJwtIssuerRequest, context: Context) -> Empty:
        return await self._jwt_issuers.delete(request)

    async def CreateRoleBinding(self, request: pb.CreateRoleBindingRequest, context: Context) -> pb.RoleBinding:
        return await self._role_bindings.create(request)

    async def GetRoleBinding(self, request: pb.GetRoleBindingRequest, context: Context) -> pb.RoleBinding:
        return await self._role_bindings.get(request)

    async def ListRoleBindings(
        self, request: pb.ListRoleBindingsRequest, context: Context
    ) -> pb.ListRoleBindingsResponse:
        return await self._role_bindings.list(request)

    async def DeleteRoleBinding(self, request: pb.DeleteRoleBindingRequest, context: Context) -> Empty:
        return await self._role_bindings.delete(request)

    async def QueryUsage(self, request: pb.QueryUsageRequest, context: Context) -> pb.QueryUsageResponse:
        return await self._usage.query(request)

    async def QueryDenials(self, request: pb.QueryDenialsRequest, context: Context) -> pb.QueryDenialsResponse:
        return await self._denials.query(request)

    async def GetSystemStatus(self, request: pb.GetSystemStatusRequest, context: Context) -> pb.SystemStatus:
        report, schema_revision = await self._status(), await self._schema_revision()
        # Thousands of tenants take longer than other calls should have to wait.
        return await asyncio.to_thread(status_to_pb, report, self._cache.current, schema_revision)

    async def SetSchedulingPolicy(
        self, request: pb.SetSchedulingPolicyRequest, context: Context
    ) -> pb.SetSchedulingPolicyResponse:
        return await self._engines.set_scheduling_policy(request)

    async def ListQueue(self, request: pb.ListQueueRequest, context: Context) -> pb.ListQueueResponse:
        return await self._queue.list(request)

    async def ExplainRequest(self, request: pb.ExplainRequestRequest, context: Context) -> pb.ExplainRequestResponse:
        return await self._queue.explain(request)

    async def CancelGenerations(
        self, request: pb.CancelGenerationsRequest, context: Context
    ) -> pb.CancelGenerationsResponse:
        return await self._queue.cancel(request)

    async def _schema_revision(self) -> str:
        """Empty while the database cannot tell."""
        try:
            return await current_revision(self._database) or ""
        except DatabaseUnavailableError:
            return ""
