"""QuotaService: a tenant's own limits, seen by the tenant; and the dry run of a generation.

Shows ceilings and what is left of them, the tenant's weight, and the service that the engines have given it. Nothing of
other tenants.
"""

# ruff: noqa: N802 - the names are the protocol's

import asyncio
import math
import time
from collections import abc

import grpc
from google.protobuf.duration_pb2 import Duration

from evenflow.inference.v1 import generation_pb2
from evenflow.inference.v1 import quota_pb2 as pb
from evenflow.inference.v1.quota_pb2_grpc import QuotaServiceServicer, add_QuotaServiceServicer_to_server
from gateway.admission import Admission
from gateway.admission_terms import Forecast, TenantQuota
from gateway.auth import current_principal
from gateway.quota_limits import unix_ns
from gateway.quota_terms import Limit, Remaining
from gateway.status import EngineStats

SERVICE = pb.DESCRIPTOR.services_by_name["QuotaService"].full_name
WATCH_INTERVAL_S = 1.0

Context = grpc.aio.ServicerContext[object, object]
AllStats = abc.Callable[[], abc.Awaitable[abc.Sequence[EngineStats]]]


class QuotaServicer(QuotaServiceServicer):
    """The service over one gateway's door. `stats` collects the figures of the engines that answer."""

    def __init__(self, admission: Admission, stats: AllStats) -> None:
        self._admission = admission
        self._stats = stats
        self._reading = asyncio.Lock()
        self._served_work: dict[tuple[str, ...], float] = {}
        self._read_at_s = float("-inf")

    def add_to(self, server: grpc.aio.Server) -> None:
        """`server` offers the service."""
        add_QuotaServiceServicer_to_server(self, server)

    async def GetQuotaStatus(self, request: pb.GetQuotaStatusRequest, context: Context) -> pb.GetQuotaStatusResponse:
        return pb.GetQuotaStatusResponse(status=await self._status())

    async def WatchQuotaStatus(
        self, request: pb.WatchQuotaStatusRequest, context: Context
    ) -> abc.AsyncIterator[pb.WatchQuotaStatusResponse]:
        told = None
        while True:
            status = await self._status()
            if status != told:
                yield pb.WatchQuotaStatusResponse(status=status)
                told = status
            await asyncio.sleep(WATCH_INTERVAL_S)

    async def _status(self) -> pb.QuotaStatus:
        quota = await self._admission.status(current_principal())
        team = quota.team
        served = (await self._read_served_work()).get((str(team.organization.id), str(team.id)), 0.0)
        return pb.QuotaStatus(
            limits=[_limit_to_pb(limit, remaining, quota) for limit, remaining in quota.limits],
            weight=team.weight,
            attained_service=served / team.weight,
            policy_revision=str(quota.policy_revision),
        )

    async def _read_served_work(self) -> dict[tuple[str, ...], float]:
        """By tenant. However many watch, the engines are asked once a second."""
        async with self._reading:
            if time.monotonic() - self._read_at_s >= WATCH_INTERVAL_S:
                served: dict[tuple[str, ...], float] = {}
                for stats in await self._stats():
                    for tenant in stats.tenants:
                        served[tenant.path] = served.get(tenant.path, 0.0) + tenant.served_work
                self._served_work, self._read_at_s = served, time.monotonic()
        return self._served_work


def forecast_to_pb(forecast: Forecast) -> generation_pb2.CheckAdmissionResponse:
    """The dry run's result: a refusal's reason, limits and wait, or none."""
    error = forecast.error
    if error is None:
        wait_ns = forecast.queue_wait_ns
        return generation_pb2.CheckAdmissionResponse(
            admitted=True,
            best_effort=forecast.is_best_effort,
            expected_queue_wait=None if wait_ns is None else _duration(wait_ns),
        )
    response = generation_pb2.CheckAdmissionResponse(
        admitted=False,
        violated_limits=list(dict.fromkeys(violation.subject for violation in error.quota_violations)),
        reason=error.reason,
        descriptions=[violation.description for violation in error.quota_violations],
    )
    if error.retry_after_s is not None:
        response.retry_delay.FromNanoseconds(math.ceil(error.retry_after_s * 1e9))
    return response


def _limit_to_pb(limit: Limit, remaining: Remaining, quota: TenantQuota) -> pb.QuotaLimitStatus:
    status = pb.QuotaLimitStatus(
        node=limit.node,
        dimension=limit.dimension.value.lower(),
        limit=limit.limit,
        burst=limit.burst,
        remaining=remaining.amount,
        model=limit.model,
        mode=limit.mode.value.lower(),
        window=limit.window.calendar.value.lower() if limit.window else "",
    )
    if limit.is_rate:
        status.period.CopyFrom(_duration(limit.period_ns))
    reset_ns = limit.window.end_ns - unix_ns(quota.now) if limit.window else remaining.reset_ns
    status.reset_delay.CopyFrom(_duration(reset_ns))
    return status


def _duration(length_ns: int) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(length_ns)
    return duration
