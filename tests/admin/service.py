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
from gateway.errors import FieldViolation, InvalidFieldError, NoEngineError
from gateway.interceptors import Gatekeeper, RpcInterceptor
from gateway.status import (
    BlockCounts,
    CacheStats,
    DraftStats,
    EngineReport,
    EngineStats,
    LedgerReport,
    PoliciesInForce,
    PolicyChoice,
    Prices,
    RequestCounts,
    SystemReport,
    TenantStats,
)
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
    engines: tuple["RecordingEngine", ...] = ()

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
    server = grpc.aio.server(interceptors=[RpcInterceptor(Gatekeeper(authenticator, trace.NoOpTracer()))])
    engines = RecordingEngine("unix:/e.sock"), RecordingEngine("unix:/gone.sock")
    servicer = AdminServicer(
        database,
        cache,
        pepper,
        status=status,
        abort_key=abort_key,
        engines=engines,
        select=lambda _: [],
        cancel=lambda _: [],
    )
    add_AdminServiceServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    key = installation.admin_key_file.read_text().strip()
    # The service's log goes to this process's stdout, where commands under test print.
    with structlog.testing.capture_logs():
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                stub = AdminServiceStub(channel)
                yield AdminService(stub, address, key, data_dir, cache, database, authenticator, aborted, engines)
        finally:
            await server.stop(None)


def system_report(cache: TenancyCache) -> SystemReport:
    """One engine, which works for every team there is and one that nobody knows."""
    paths = [(str(team.organization.id), str(team_id)) for team_id, team in cache.current.teams.items()]
    tenants = tuple(tenant_stats(path) for path in [*paths, ("gone", "away")])
    engines = (
        EngineReport("unix:/e.sock", "smollm2", engine_stats(tenants)),
        EngineReport("unix:/gone.sock", "", None),
    )
    return SystemReport(
        90.5,
        is_store_reachable=True,
        policy_revision=7,
        engines=engines,
        num_live_requests=11,
        metrics_address="127.0.0.1:9100",
        http_url="https://0.0.0.0:8000/v1",
        ledger=LedgerReport(5, 1024, 1.5, num_duplicates=0, num_dropped=2, num_damaged_bytes=99),
    )


def tenant_stats(path: tuple[str, ...], **figures) -> TenantStats:
    """A tenant that has had a little of everything."""
    some = {
        "weight": 2.0,
        "num_running": 1,
        "num_waiting": 3,
        "num_paused": 1,
        "num_swapped": 2,
        "num_swapping": 1,
        "num_prefill_tokens": 100,
        "num_output_tokens": 40,
        "num_recomputed_tokens": 5,
        "num_borrowed_tokens": 17,
        "num_pauses": 6,
        "num_swaps_out": 4,
        "num_swaps_in": 3,
        "copied_bytes": 4096,
        "wait_s": 1.5,
        "standing": 12.5,
        "served_work": 180.0,
        "share": 0.25,
        "weight_share": 0.5,
        "lead": 31.0,
        "num_device_blocks": 9,
        "num_found_tokens": 300,
        "num_kept_blocks": 5,
        "num_drafted_tokens": 40,
        "num_accepted_tokens": 30,
    }
    return TenantStats(path, **(some | figures))


def engine_stats(tenants: tuple[TenantStats, ...] = (), **figures) -> EngineStats:
    """An engine that is busy."""
    some = {
        "policies": PoliciesInForce("fair", "over_served", {"mode": "strict"}, {}, "auto", policy_fault=""),
        "requests": RequestCounts(num_running=4, num_waiting=7, num_paused=1, num_swapped=0, num_swapping=2),
        "blocks": BlockCounts(10, 3, 64, num_free_host_blocks=20, num_host_blocks=32, block_size=16),
        "num_steps": 1000,
        "num_preemptions": 3,
        "num_swaps": 2,
        "num_pauses": 8,
        "mean_step_ms": 41.5,
        "prices": Prices(100_000.0, 50_000.0, 0.0, 1e6, 250_000.0, 0.0, 1e6, 0.0, 0.0, are_measured=True),
        "is_draining": False,
        "num_unacknowledged_usage": 6,
        "num_dropped_usage": 3,
        "metrics_address": "127.0.0.1:9101",
        "num_lost_steps": 2,
        "num_requeues": 5,
        "cache": CacheStats(
            is_on=True,
            num_found_tokens=900,
            num_computed_tokens=600,
            num_kept_blocks=6,
            num_kept_host_blocks=2,
            num_evicted_blocks=21,
        ),
        "drafts": DraftStats("draft", "small", num_verified=400, num_accepted=100),
    }
    return EngineStats(tenants=tenants, **(some | figures))


class RecordingEngine:
    """Takes every policy but those named `bad`; what it was told is in `told`. `is_away`: from the next switch on."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.told: list[tuple[PolicyChoice, bool]] = []
        self.is_away = False

    async def set_policies(self, choice: PolicyChoice, *, validate_only: bool) -> PolicyChoice:
        if choice.scheduling_policy == "bad":
            raise InvalidFieldError(FieldViolation("scheduling_policy", "cannot be taken"))
        if self.is_away and not validate_only:
            raise NoEngineError
        self.told.append((choice, validate_only))
        return PolicyChoice("fair", {"mode": "strict"}, "over_served")
