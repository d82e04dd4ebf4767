"""What the engine tells about its model and itself, in the wire's form."""

from collections import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.stats import SchedulerStats, TenantStats
from engine.core.types import PauseReason, PreemptionMode, TenantId
from engine.loop_messages import LoopStats
from engine.server.convert import PROTOCOL_VERSION
from engine.server.intake import Engine, Intake
from engine.server.served_lately import ServedLately
from engine.server.shares import Share, shares, weight_shares
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
        dtype=model.quantization or model.dtype,
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
        generates_many=True,
    )


@dataclass(frozen=True, slots=True)
class Figures:
    """What there is to tell at one moment.

    preemptions          how often requests gave way, by how and why
    new_request_wait_ns  None: nobody can tell
    num_dropped_spans    None: there are no spans
    metrics_address      HOST:PORT of the page for Prometheus; empty: there is none
    """

    engine: Engine
    stats: LoopStats
    preemptions: abc.Mapping[tuple[PreemptionMode, PauseReason], int]
    usage: UsageCounts
    num_finished: int
    new_request_wait_ns: int | None
    num_dropped_spans: int | None
    is_draining: bool
    metrics_address: str

    @classmethod
    def of(cls, intake: Intake, stats: LoopStats, new_request_wait_ns: int | None, metrics_address: str) -> "Figures":
        """As of now. Raises NotReadyError."""
        return cls(
            engine=intake.engine,
            stats=stats,
            preemptions=dict(intake.preemptions),
            usage=intake.usage.counts,
            num_finished=intake.num_finished,
            new_request_wait_ns=new_request_wait_ns,
            num_dropped_spans=intake.num_dropped_spans,
            is_draining=intake.is_closed,
            metrics_address=metrics_address,
        )


def stats_to_pb(figures: Figures, lately: ServedLately) -> pb.GetStatsResponse:
    """The engine's figures. `lately` has a look at them: the weights give something to whom it finds sharing.

    Takes a while where there are thousands of tenants.
    """
    stats, scheduler, config = figures.stats, figures.stats.scheduler, figures.engine.config
    told = pb.GetStatsResponse(
        num_steps=stats.num_steps,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        mean_step_ms=stats.mean_step_ms,
        prices=_prices_to_pb(scheduler.prices),
        uptime_s=stats.uptime_s,
        draining=figures.is_draining,
        unacknowledged_usage=figures.usage.num_waiting,
        dropped_usage=figures.usage.num_dropped,
        new_request_wait_ns=figures.new_request_wait_ns,
        metrics_address=figures.metrics_address,
        gap_bound=scheduler.gap_bound,
    )
    told.MergeFrom(_policies_to_pb(figures.engine, scheduler))
    told.MergeFrom(_drafts_to_pb(figures.engine, scheduler))
    told.MergeFrom(_requests_to_pb(scheduler))
    told.MergeFrom(_pools_to_pb(scheduler, config))
    block_bytes = config.block_size * figures.engine.model.kv_bytes_per_token
    sharing = lately.observe(scheduler.tenants, stats.uptime_s)
    _add_tenants(told, scheduler.tenants, weight_shares(sharing), block_bytes)
    return told


def _policies_to_pb(engine: Engine, scheduler: SchedulerStats) -> pb.GetStatsResponse:
    return pb.GetStatsResponse(
        scheduling_policy=engine.scheduling_policy,
        preemption_policy=engine.preemption_policy,
        scheduling_options=engine.scheduling_options,
        preemption_options=engine.preemption_options,
        preemption_mode=engine.config.preemption_mode.value,
        policy_fault=scheduler.policy_fault or "",
    )


def _drafts_to_pb(engine: Engine, scheduler: SchedulerStats) -> pb.GetStatsResponse:
    speculation, draft_model = engine.drafts
    return pb.GetStatsResponse(
        drafted_tokens=scheduler.totals.num_drafted_tokens,
        accepted_draft_tokens=scheduler.totals.num_accepted_tokens,
        speculation=speculation,
        draft_model=draft_model,
        num_draft_tokens=engine.config.num_draft_tokens,
    )


def _requests_to_pb(scheduler: SchedulerStats) -> pb.GetStatsResponse:
    return pb.GetStatsResponse(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        paused=scheduler.num_paused,
        swapped=scheduler.num_swapped,
        swapping=scheduler.num_swapping,
        num_preemptions=scheduler.num_preemptions,
        num_swaps=scheduler.num_swaps,
        num_pauses=scheduler.num_pauses,
        lost_steps=scheduler.num_lost_steps,
        requeues=scheduler.num_requeues,
    )


def _pools_to_pb(scheduler: SchedulerStats, config: SchedulerConfig) -> pb.GetStatsResponse:
    return pb.GetStatsResponse(
        free_device_blocks=scheduler.num_free_blocks,
        fenced_device_blocks=scheduler.num_fenced_blocks,
        num_device_blocks=config.num_device_blocks,
        free_host_blocks=scheduler.num_free_host_blocks,
        num_host_blocks=config.num_host_blocks,
        block_size=config.block_size,
        prefix_caching=config.enable_prefix_caching,
        cached_device_blocks=scheduler.cache.num_kept,
        shareable_device_blocks=scheduler.cache.num_named,
        evicted_blocks=scheduler.cache.num_evicted,
        cached_host_blocks=scheduler.cache.num_kept_on_host,
        cached_prompt_tokens=scheduler.totals.num_found_tokens,
        computed_prompt_tokens=scheduler.totals.num_prefill_tokens,
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


def _add_tenants(
    told: pb.GetStatsResponse,
    tenants: abc.Sequence[TenantStats],
    fair: abc.Mapping[TenantId, float],
    block_bytes: int,
) -> None:
    told.tenants.extend(
        _tenant_to_pb(tenant, share, fair.get(tenant.tenant_id, 0.0), block_bytes)
        for tenant, share in zip(tenants, shares(tenants), strict=True)
    )


def _tenant_to_pb(tenant: TenantStats, share: Share, weight_share: float, block_bytes: int) -> pb.TenantStats:
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
        weight_share=weight_share,
        lead=share.lead,
        device_blocks=tenant.num_device_blocks,
        cached_prompt_tokens=tenant.num_found_tokens,
        cached_blocks=tenant.num_kept_blocks,
        drafted_tokens=tenant.num_drafted_tokens,
        accepted_draft_tokens=tenant.num_accepted_tokens,
    )
