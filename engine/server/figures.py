"""What the engine tells about its model and itself, in the wire's form."""

from typing import TYPE_CHECKING

from engine.core.config import SchedulerConfig
from engine.core.stats import TenantStats
from engine.loop import LoopStats
from engine.server.convert import PROTOCOL_VERSION
from engine.server.intake import Engine
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
        block_size=config.block_size,
        model_hash=model.model_hash,
        max_request_tokens=config.max_request_tokens,
    )


def stats_to_pb(engine: Engine, stats: LoopStats, *, is_draining: bool) -> pb.GetStatsResponse:
    """The engine's figures. There is no host pool, and nothing is ever swapped."""
    scheduler = stats.scheduler
    return pb.GetStatsResponse(
        scheduling_policy=engine.scheduling_policy,
        preemption_policy=engine.preemption_policy,
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        paused=scheduler.num_paused,
        free_device_blocks=scheduler.num_free_blocks,
        num_device_blocks=engine.config.num_device_blocks,
        block_size=engine.config.block_size,
        num_steps=stats.num_steps,
        num_preemptions=scheduler.num_preemptions,
        mean_step_ms=stats.mean_step_ms,
        tenants=[_tenant_to_pb(tenant) for tenant in scheduler.tenants],
        uptime_s=stats.uptime_s,
        draining=is_draining,
    )


def _tenant_to_pb(tenant: TenantStats) -> pb.TenantStats:
    return pb.TenantStats(
        path=[pb.WeightedNode(id=node.id, weight=node.weight) for node in tenant.path],
        running=tenant.num_running,
        waiting=tenant.num_waiting,
        prefill_tokens=tenant.num_prefill_tokens,
        output_tokens=tenant.num_output_tokens,
        recomputed_tokens=tenant.num_recomputed_tokens,
        standing=tenant.standing,
    )
