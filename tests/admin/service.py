"""The admin service over a real database, with the real interceptors, served in this process."""

from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import grpc
import structlog
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo
from grpc_status import rpc_status
from opentelemetry import trace

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1.admin_pb2_grpc import AdminServiceStub, add_AdminServiceServicer_to_server
from gateway.admin.servicer import AdminServicer
from gateway.auth import Authenticator, LastUsed
from gateway.bootstrap import bootstrap
from gateway.interceptors import RpcInterceptor
from gateway.status import EngineReport, EngineStats, SystemReport, TenantStats
from gateway.store.cache import TenancyCache
from gateway.store.db import Database

Metadata = tuple[tuple[str, str], ...]


@dataclass
class AdminService:
    """A running service, and what a test may look at."""

    stub: AdminServiceStub
    address: str
    admin_key: str
    data_dir: Path
    cache: TenancyCache
    database: Database
    authenticator: Authenticator
    aborted_keys: list[UUID] = field(default_factory=list)

    @property
    def metadata(self) -> Metadata:
        return bearer(self.admin_key)

    async def call(self, method, request, metadata=None):
        """The answer of one of the stub's methods, called as the administrator unless `metadata` says otherwise."""
        return await method(request, metadata=self.metadata if metadata is None else metadata)

    async def refused(self, method, request, metadata=None) -> "Refused":
        """How the call was refused; fails if it was not."""
        try:
            answer = await self.call(method, request, metadata)
        except grpc.aio.AioRpcError as error:
            return read_refusal(error)
        raise AssertionError(f"was not refused: {answer}")

    async def create_org(self, org_id: str = "acme", **fields) -> pb.Organization:
        request = pb.CreateOrganizationRequest(organization_id=org_id, organization=pb.Organization(**fields))
        return await self.call(self.stub.CreateOrganization, request)

    async def create_team(self, team_id: str = "search", org_id: str = "acme", **fields) -> pb.Team:
        request = pb.CreateTeamRequest(parent=f"organizations/{org_id}", team_id=team_id, team=pb.Team(**fields))
        return await self.call(self.stub.CreateTeam, request)

    async def create_key(self, team: str = "organizations/acme/teams/search", **fields) -> pb.ApiKey:
        request = pb.CreateApiKeyRequest(parent=team, api_key=pb.ApiKey(**fields))
        return await self.call(self.stub.CreateApiKey, request)


@dataclass(frozen=True)
class Refused:
    """A refusal: the code's name, the reason, and the paths of the fields that it names."""

    code: str
    reason: str
    fields: tuple[str, ...]


def read_refusal(error: grpc.aio.AioRpcError) -> Refused:
    info, bad = ErrorInfo(), BadRequest()
    for detail in rpc_status.from_call(error).details:
        detail.Unpack(info)
        detail.Unpack(bad)
    return Refused(error.code().name, info.reason, tuple(violation.field for violation in bad.field_violations))


def bearer(key: str) -> Metadata:
    return (("authorization", f"Bearer {key}"),)


@asynccontextmanager
async def serve_admin(database: Database, database_url: str, data_dir: Path) -> abc.AsyncIterator[AdminService]:
    """A service with a fresh administrator's key in `data_dir`."""
    installation = await bootstrap(data_dir, database_url)
    pepper = (data_dir / "pepper").read_text().strip().encode()
    cache = TenancyCache(database)
    await cache.refresh()
    aborted: list[UUID] = []

    async def abort_key(key_id: UUID) -> None:
        aborted.append(key_id)

    async def status() -> SystemReport:
        return system_report(cache)

    authenticator = Authenticator(cache, pepper, LastUsed(database))
    server = grpc.aio.server(interceptors=[RpcInterceptor(authenticator, trace.NoOpTracer())])
    servicer = AdminServicer(database, cache, pepper, status=status, abort_key=abort_key)
    add_AdminServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    key = installation.admin_key_file.read_text().strip()
    # The service's log goes to this process's stdout, where commands under test print.
    with structlog.testing.capture_logs():
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = AdminServiceStub(channel)
                yield AdminService(stub, address, key, data_dir, cache, database, authenticator, aborted)
        finally:
            await server.stop(None)


def system_report(cache: TenancyCache) -> SystemReport:
    """One engine, which works for every team there is and one that nobody knows."""
    paths = [(str(team.organization.id), str(team_id)) for team_id, team in cache.current.teams.items()]
    tenants = tuple(TenantStats(path, 2.0, 1, 3, 100, 40, 5, 12.5) for path in [*paths, ("gone", "away")])
    stats = EngineStats("vtc", "latest_arrival", 4, 7, 1, 0, 10, 64, 16, 1000, 3, 41.5, tenants, is_draining=False)
    engines = (EngineReport("unix:/e.sock", "smollm2", stats), EngineReport("unix:/gone.sock", "", None))
    return SystemReport(90.5, is_store_reachable=True, policy_revision=7, engines=engines, num_live_requests=11)
