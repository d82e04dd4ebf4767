"""What a gateway tells an engine beside requests (policies, weights, classes), and the figures that it gets. Pure."""

from collections import abc

from evenflow.engine.v1 import engine_pb2 as pb
from gateway.engine_client.messages import NodeUpdate, PriorityClass
from gateway.status import (
    BlockCounts,
    CacheStats,
    DraftStats,
    EngineStats,
    PoliciesInForce,
    PolicyChoice,
    Prices,
    RequestCounts,
    TenantStats,
)


def switch_to_pb(choice: PolicyChoice, *, validate_only: bool) -> pb.SetSchedulingPolicyRequest:
    return pb.SetSchedulingPolicyRequest(
        name=choice.scheduling_policy,
        options=choice.scheduling_options,
        preemption_name=choice.preemption_policy,
        preemption_options=choice.preemption_options,
        validate_only=validate_only,
    )


def previous_from_pb(response: pb.SetSchedulingPolicyResponse) -> PolicyChoice:
    return PolicyChoice(
        response.previous_name,
        dict(response.previous_options),
        response.previous_preemption_name,
        dict(response.previous_preemption_options),
    )


def nodes_to_pb(updates: abc.Iterable[NodeUpdate]) -> pb.UpdateNodesRequest:
    return pb.UpdateNodesRequest(
        nodes=[pb.NodeUpdate(path=update.path, weight=update.weight, revision=update.revision) for update in updates]
    )


def classes_to_pb(classes: abc.Iterable[PriorityClass], revision: int) -> pb.UpdateClassesRequest:
    return pb.UpdateClassesRequest(
        classes=[
            pb.PriorityClass(name=named.name, rank=named.rank, min_share=named.min_share, preemptible=named.preemptible)
            for named in classes
        ],
        revision=revision,
    )


def stats_from_bytes(data: bytes) -> EngineStats:
    """The figures in a serialized GetStatsResponse. Takes a while where there are thousands of tenants."""
    stats = pb.GetStatsResponse.FromString(data)
    return EngineStats(
        policies=_policies_from_pb(stats),
        requests=_requests_from_pb(stats),
        blocks=_blocks_from_pb(stats),
        num_steps=stats.num_steps,
        num_preemptions=stats.num_preemptions,
        num_swaps=stats.num_swaps,
        num_pauses=stats.num_pauses,
        max_num_seqs=stats.max_num_seqs,
        max_num_batched_tokens=stats.max_num_batched_tokens,
        mean_step_ms=stats.mean_step_ms,
        prices=_prices_from_pb(stats.prices),
        tenants=tuple(_tenant_from_pb(tenant) for tenant in stats.tenants),
        is_draining=stats.draining,
        new_request_wait_ns=stats.new_request_wait_ns if stats.HasField("new_request_wait_ns") else None,
        gap_bound=stats.gap_bound if stats.HasField("gap_bound") else None,
        num_unacknowledged_usage=stats.unacknowledged_usage,
        num_dropped_usage=stats.dropped_usage,
        metrics_address=stats.metrics_address,
        cache=_cache_from_pb(stats),
        drafts=_drafts_from_pb(stats),
        num_lost_steps=stats.lost_steps,
        num_requeues=stats.requeues,
    )


def _policies_from_pb(stats: pb.GetStatsResponse) -> PoliciesInForce:
    return PoliciesInForce(
        scheduling_policy=stats.scheduling_policy,
        preemption_policy=stats.preemption_policy,
        scheduling_options=dict(stats.scheduling_options),
        preemption_options=dict(stats.preemption_options),
        preemption_mode=stats.preemption_mode,
        policy_fault=stats.policy_fault,
    )


def _requests_from_pb(stats: pb.GetStatsResponse) -> RequestCounts:
    return RequestCounts(
        num_running=stats.running,
        num_waiting=stats.waiting,
        num_paused=stats.paused,
        num_swapped=stats.swapped,
        num_swapping=stats.swapping,
    )


def _blocks_from_pb(stats: pb.GetStatsResponse) -> BlockCounts:
    return BlockCounts(
        num_free_device_blocks=stats.free_device_blocks,
        num_fenced_device_blocks=stats.fenced_device_blocks,
        num_device_blocks=stats.num_device_blocks,
        num_free_host_blocks=stats.free_host_blocks,
        num_host_blocks=stats.num_host_blocks,
        block_size=stats.block_size,
    )


def _cache_from_pb(stats: pb.GetStatsResponse) -> CacheStats:
    return CacheStats(
        is_on=stats.prefix_caching,
        num_found_tokens=stats.cached_prompt_tokens,
        num_computed_tokens=stats.computed_prompt_tokens,
        num_kept_blocks=stats.cached_device_blocks,
        num_kept_host_blocks=stats.cached_host_blocks,
        num_evicted_blocks=stats.evicted_blocks,
    )


def _drafts_from_pb(stats: pb.GetStatsResponse) -> DraftStats:
    kind = stats.speculation or "off"  # of an engine that is too old to tell
    return DraftStats(kind, stats.draft_model, stats.drafted_tokens, stats.accepted_draft_tokens)


def _prices_from_pb(prices: pb.Prices) -> Prices:
    step = prices.step
    return Prices(
        copy_out_block_ns=prices.copy_out_block_ns,
        copy_in_block_ns=prices.copy_in_block_ns,
        copy_launch_ns=prices.copy_launch_ns,
        base_ns=step.base_ns,
        prefill_token_ns=step.prefill_token_ns,
        prefill_key_ns=step.prefill_key_ns,
        decode_ns=step.decode_ns,
        decode_key_ns=step.decode_key_ns,
        copied_block_ns=step.copied_block_ns,
        are_measured=prices.measured,
    )


def _tenant_from_pb(tenant: pb.TenantStats) -> TenantStats:
    return TenantStats(
        path=tuple(node.id for node in tenant.path),
        weight=tenant.path[-1].weight if tenant.path else 0.0,
        num_running=tenant.running,
        num_waiting=tenant.waiting,
        num_paused=tenant.paused,
        num_swapped=tenant.swapped,
        num_swapping=tenant.swapping,
        num_prefill_tokens=tenant.prefill_tokens,
        num_output_tokens=tenant.output_tokens,
        num_recomputed_tokens=tenant.recomputed_tokens,
        num_borrowed_tokens=tenant.borrowed_tokens,
        num_pauses=tenant.num_pauses,
        num_swaps_out=tenant.num_swaps_out,
        num_swaps_in=tenant.num_swaps_in,
        copied_bytes=tenant.copied_bytes,
        wait_s=tenant.wait_ns / 1e9,
        standing=tenant.standing,
        served_work=tenant.served_work,
        share=tenant.share,
        weight_share=tenant.weight_share,
        lead=tenant.lead,
        num_device_blocks=tenant.device_blocks,
        num_found_tokens=tenant.cached_prompt_tokens,
        num_kept_blocks=tenant.cached_blocks,
        num_drafted_tokens=tenant.drafted_tokens,
        num_accepted_tokens=tenant.accepted_draft_tokens,
    )
