"""The state of the whole system: from the gateway's report to the resource that `evenflow status` shows."""

from importlib.metadata import version
from uuid import UUID

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.status import EngineReport, SystemReport, TenantStats
from gateway.store.snapshot import TenancySnapshot


def status_to_pb(report: SystemReport, snapshot: TenancySnapshot, schema_revision: str) -> pb.SystemStatus:
    """`report` with the tenants' names as `snapshot` has them."""
    uptime = Duration()
    uptime.FromMilliseconds(round(report.uptime_s * 1000))
    return pb.SystemStatus(
        version=version("evenflow"),
        uptime=uptime,
        store_reachable=report.is_store_reachable,
        policy_revision=report.policy_revision,
        schema_revision=schema_revision,
        engines=[_engine_to_pb(engine, snapshot) for engine in report.engines],
        live_requests=report.num_live_requests,
    )


def _engine_to_pb(report: EngineReport, snapshot: TenancySnapshot) -> pb.EngineStatus:
    stats = report.stats
    if stats is None:
        return pb.EngineStatus(address=report.address, model=report.model)
    return pb.EngineStatus(
        address=report.address,
        reachable=True,
        model=report.model,
        scheduling_policy=stats.scheduling_policy,
        preemption_policy=stats.preemption_policy,
        running=stats.num_running,
        waiting=stats.num_waiting,
        paused=stats.num_paused,
        swapped=stats.num_swapped,
        free_device_blocks=stats.num_free_device_blocks,
        num_device_blocks=stats.num_device_blocks,
        block_size=stats.block_size,
        num_steps=stats.num_steps,
        num_preemptions=stats.num_preemptions,
        mean_step_ms=stats.mean_step_ms,
        tenants=[_tenant_to_pb(tenant, snapshot) for tenant in stats.tenants],
        draining=stats.is_draining,
    )


def _tenant_to_pb(stats: TenantStats, snapshot: TenancySnapshot) -> pb.TenantStatus:
    return pb.TenantStatus(
        team=_team_name(stats.path, snapshot),
        weight=stats.weight,
        running=stats.num_running,
        waiting=stats.num_waiting,
        prefill_tokens=stats.num_prefill_tokens,
        output_tokens=stats.num_output_tokens,
        recomputed_tokens=stats.num_recomputed_tokens,
        standing=stats.standing,
    )


def _team_name(path: tuple[str, ...], snapshot: TenancySnapshot) -> str:
    """The engine knows teams by id; one that this gateway does not know yet keeps its ids."""
    try:
        team = snapshot.teams[UUID(path[-1])]
    except (KeyError, ValueError, IndexError):
        return "/".join(path)
    return f"organizations/{team.organization.slug}/teams/{team.slug}"
