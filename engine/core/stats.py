"""What the scheduler tells about itself. Read on demand, never during a step."""

from dataclasses import dataclass

from engine.core.types import PathNode, TenantId


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant now, and the tokens it was served since it was first seen.

    num_prefill_tokens     prompt tokens computed for the first time
    num_output_tokens      tokens emitted
    num_recomputed_tokens  tokens computed again after a preemption: lost work, charged to nobody
    standing               the scheduling policy's counter, higher is more over-served
    """

    tenant_id: TenantId
    path: tuple[PathNode, ...]
    num_running: int
    num_waiting: int
    num_paused: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    standing: float


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Sequences by state, the pool, and one entry per known tenant in order of tenant id."""

    num_running: int
    num_waiting: int
    num_paused: int
    num_free_blocks: int
    num_preemptions: int
    tenants: tuple[TenantStats, ...]
