"""The state of the whole system: from the gateway's report to the resource that `evenflow status` shows."""

from importlib.metadata import version

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.status import EngineReport, EngineStats, LedgerReport, SystemReport, TenantStats
from gateway.store.snapshot import TenancySnapshot

PRICED_TOKENS = 1000


def status_to_pb(report: SystemReport, snapshot: TenancySnapshot, schema_revision: str) -> pb.SystemStatus:
    """`report` with the tenants' names as `snapshot` has them."""
    return pb.SystemStatus(
        version=version("evenflow"),
        uptime=_duration(report.uptime_s),
        store_reachable=report.is_store_reachable,
        policy_revision=report.policy_revision,
        schema_revision=schema_revision,
        engines=[_engine_to_pb(engine, snapshot) for engine in report.engines],
        live_requests=report.num_live_requests,
        metrics_address=report.metrics_address,
        http_url=report.http_url,
        ledger=None if report.ledger is None else _ledger_to_pb(report.ledger),
        live_gateways=0 if report.leases is None else report.leases.num_replicas,
    )


def _ledger_to_pb(report: LedgerReport) -> pb.LedgerStatus:
    return pb.LedgerStatus(
        waiting_events=report.num_records,
        oldest=_duration(report.oldest_s),
        dropped_events=report.num_dropped,
        damaged_bytes=report.num_damaged_bytes,
    )


def _engine_to_pb(report: EngineReport, snapshot: TenancySnapshot) -> pb.EngineStatus:
    stats = report.stats
    if stats is None:
        return pb.EngineStatus(address=report.address, model=report.model)
    told = pb.EngineStatus(
        address=report.address,
        reachable=True,
        model=report.model,
        num_steps=stats.num_steps,
        mean_step_ms=stats.mean_step_ms,
        tenants=[_tenant_to_pb(tenant, snapshot) for tenant in stats.tenants],
        draining=stats.is_draining,
        unacknowledged_usage=stats.num_unacknowledged_usage,
        dropped_usage=stats.num_dropped_usage,
        gap_bound=stats.gap_bound,
        metrics_address=stats.metrics_address,
    )
    for part in (_policies_to_pb(stats), _requests_to_pb(stats), _pools_to_pb(stats), _savings_to_pb(stats)):
        told.MergeFrom(part)
    return told


def _policies_to_pb(stats: EngineStats) -> pb.EngineStatus:
    policies = stats.policies
    return pb.EngineStatus(
        scheduling_policy=policies.scheduling_policy,
        preemption_policy=policies.preemption_policy,
        scheduling_options=policies.scheduling_options,
        preemption_options=policies.preemption_options,
        preemption_mode=policies.preemption_mode,
        preemption_prices=_prices_to_pb(stats),
        policy_fault=policies.policy_fault,
    )


def _requests_to_pb(stats: EngineStats) -> pb.EngineStatus:
    requests = stats.requests
    return pb.EngineStatus(
        running=requests.num_running,
        waiting=requests.num_waiting,
        paused=requests.num_paused,
        swapped=requests.num_swapped,
        swapping=requests.num_swapping,
        num_preemptions=stats.num_preemptions,
        num_swaps=stats.num_swaps,
        num_pauses=stats.num_pauses,
        lost_steps=stats.num_lost_steps,
        requeues=stats.num_requeues,
    )


def _pools_to_pb(stats: EngineStats) -> pb.EngineStatus:
    blocks = stats.blocks
    return pb.EngineStatus(
        free_device_blocks=blocks.num_free_device_blocks,
        fenced_device_blocks=blocks.num_fenced_device_blocks,
        num_device_blocks=blocks.num_device_blocks,
        free_host_blocks=blocks.num_free_host_blocks,
        num_host_blocks=blocks.num_host_blocks,
        block_size=blocks.block_size,
    )


def _savings_to_pb(stats: EngineStats) -> pb.EngineStatus:
    """What prompts that begin alike, and tokens guessed ahead, have saved."""
    cache, drafts = stats.cache, stats.drafts
    return pb.EngineStatus(
        prefix_caching=cache.is_on,
        cached_prompt_tokens=cache.num_found_tokens,
        computed_prompt_tokens=cache.num_computed_tokens,
        cached_device_blocks=cache.num_kept_blocks,
        cached_host_blocks=cache.num_kept_host_blocks,
        evicted_blocks=cache.num_evicted_blocks,
        speculation=drafts.kind,
        draft_model=drafts.model,
        drafted_tokens=drafts.num_verified,
        accepted_draft_tokens=drafts.num_accepted,
    )


def _prices_to_pb(stats: EngineStats) -> pb.PreemptionPrices:
    prices, blocks = stats.prices, stats.blocks
    num_blocks = -(-PRICED_TOKENS // blocks.block_size) if blocks.block_size else 0
    return pb.PreemptionPrices(
        swap=_duration(prices.swap_s(num_blocks)) if blocks.num_host_blocks else None,
        recompute=_duration(prices.recompute_s(PRICED_TOKENS)),
        measured=prices.are_measured,
    )


def _tenant_to_pb(stats: TenantStats, snapshot: TenancySnapshot) -> pb.TenantStatus:
    organization_weight, _ = snapshot.weights_of(stats.path) or (1.0, 1.0)
    return pb.TenantStatus(
        team=snapshot.team_name(stats.path),
        weight=stats.weight,
        running=stats.num_running,
        waiting=stats.num_waiting,
        prefill_tokens=stats.num_prefill_tokens,
        output_tokens=stats.num_output_tokens,
        recomputed_tokens=stats.num_recomputed_tokens,
        standing=stats.standing,
        paused=stats.num_paused,
        swapped=stats.num_swapped + stats.num_swapping,
        borrowed_tokens=stats.num_borrowed_tokens,
        num_pauses=stats.num_pauses,
        num_swaps_out=stats.num_swaps_out,
        num_swaps_in=stats.num_swaps_in,
        copied_bytes=stats.copied_bytes,
        wait=_duration(stats.wait_s),
        served_work=stats.served_work,
        share=stats.share,
        weight_share=stats.weight_share,
        lead=stats.lead,
        device_blocks=stats.num_device_blocks,
        organization_weight=organization_weight,
        cached_prompt_tokens=stats.num_found_tokens,
        cached_blocks=stats.num_kept_blocks,
        drafted_tokens=stats.num_drafted_tokens,
        accepted_draft_tokens=stats.num_accepted_tokens,
    )


def _duration(length_s: float) -> Duration:
    duration = Duration()
    duration.FromMicroseconds(round(length_s * 1e6))
    return duration
