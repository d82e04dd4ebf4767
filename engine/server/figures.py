"""What the engine tells about its model and itself, in the wire's form."""

from collections import abc
from typing import TYPE_CHECKING

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.stats import TenantStats
from engine.loop_messages import LoopStats
from engine.server.convert import PROTOCOL_VERSION
from engine.server.intake import Engine
from engine.server.shares import Share, shares
from engine.server.usage_outbox import UsageCounts
from evenflow.engine.v1 import engine_pb2 as pb

if TYPE_CHECKING:  # it imports torch, which only the runner needs
    from engine.model.info import ModelInfo


def model_info_to_pb(model: "ModelInfo", config: SchedulerConfig) -> pb.GetModelInfoResponse:
    """Everything that the gateway needs of the model: it reads no model file."""
    return pb.GetModelInfoResponse(
        protocol_version=PROTOCOL_VERSION,
        name=model.name,
        architecture=model.architecture,
        dtype=model.dtype,
        parameter_count=model.parameter_count,
        context_tokens=model.context_tokens,
        vocabulary_size=model.vocabulary_size,
        tokenizer_json=model.tokenizer_json,
        chat_template=model.chat_template,
        bos_token_id=model.bos_token_id,
        eos_token_ids=model.eos_token_ids,
        pad_token_id=model.pad_token_id,
        unk_token_id=model.unk_token_id,
        add_bos_token=model.add_bos_token,
        num_device_blocks=config.num_device_blocks,
        num_host_blocks=config.num_host_blocks,
        block_size=config.block_size,
        model_hash=model.model_hash,
        max_request_tokens=config.max_request_tokens,
    )


def stats_to_pb(engine: Engine, stats: LoopStats, usage: UsageCounts, *, is_draining: bool) -> pb.GetStatsResponse:
    """The engine's figures."""
    scheduler, config = stats.scheduler, engine.config
    block_bytes = config.block_size * engine.model.kv_bytes_per_token
    return pb.GetStatsResponse(
        scheduling_policy=engine.scheduling_policy,
        preemption_policy=engine.preemption_policy,
        scheduling_options=engine.scheduling_options,
        preemption_options=engine.preemption_options,
        preemption_mode=config.preemption_mode.value,
        policy_fault=scheduler.policy_fault or "",
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        paused=scheduler.num_paused,
        swapped=scheduler.num_swapped,
        swapping=scheduler.num_swapping,
        free_device_blocks=scheduler.num_free_blocks,
        fenced_device_blocks=scheduler.num_fenced_blocks,
        num_device_blocks=config.num_device_blocks,
        free_host_blocks=scheduler.num_free_host_blocks,
        num_host_blocks=config.num_host_blocks,
        block_size=config.block_size,
        num_steps=stats.num_steps,
        num_preemptions=scheduler.num_preemptions,
        num_swaps=scheduler.num_swaps,
        num_pauses=scheduler.num_pauses,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        mean_step_ms=stats.mean_step_ms,
        prices=_prices_to_pb(scheduler.prices),
        tenants=_tenants_to_pb(scheduler.tenants, block_bytes),
        uptime_s=stats.uptime_s,
        draining=is_draining,
        unacknowledged_usage=usage.num_waiting,
        dropped_usage=usage.num_dropped,
    )


def _prices_to_pb(prices: Prices) -> pb.Prices:
    step = prices.step
    return pb.Prices(
        copy_out_block_ns=prices.copy_out_block_ns,
        copy_in_block_ns=prices.copy_in_block_ns,
        copy_launch_ns=prices.copy_launch_ns,
        measured=prices.are_measured,
        step=pb.StepCosts(
            base_ns=step.base_ns,
            prefill_token_ns=step.prefill_token_ns,
            prefill_key_ns=step.prefill_key_ns,
            decode_ns=step.decode_ns,
            decode_key_ns=step.decode_key_ns,
            copied_block_ns=step.copied_block_ns,
        ),
    )


def _tenants_to_pb(tenants: abc.Sequence[TenantStats], block_bytes: int) -> list[pb.TenantStats]:
    return [_tenant_to_pb(tenant, share, block_bytes) for tenant, share in zip(tenants, shares(tenants), strict=True)]


def _tenant_to_pb(tenant: TenantStats, share: Share, block_bytes: int) -> pb.TenantStats:
    return pb.TenantStats(
        path=[pb.WeightedNode(id=node.id, weight=node.weight) for node in tenant.path],
        running=tenant.num_running,
        waiting=tenant.num_waiting,
        paused=tenant.num_paused,
        swapped=tenant.num_swapped,
        swapping=tenant.num_swapping,
        num_preemptions=tenant.num_preemptions,
        prefill_tokens=tenant.num_prefill_tokens,
        output_tokens=tenant.num_output_tokens,
        recomputed_tokens=tenant.num_recomputed_tokens,
        borrowed_tokens=tenant.num_borrowed_tokens,
        num_pauses=tenant.num_pauses,
        num_swaps_out=tenant.num_swaps_out,
        num_swaps_in=tenant.num_swaps_in,
        copied_blocks=tenant.num_copied_blocks,
        copied_bytes=tenant.num_copied_blocks * block_bytes,
        wait_ns=tenant.wait_ns,
        standing=tenant.standing[-1] if tenant.standing else 0.0,
        served_work=share.served_work,
        share=share.share,
        weight_share=share.weight_share,
        lead=share.lead,
        device_blocks=tenant.num_device_blocks,
    )
