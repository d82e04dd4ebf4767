"""What the scheduler tells about itself. Read on demand, never during a step."""

from dataclasses import dataclass

from engine.core.costs import Prices
from engine.core.types import PathNode, TenantId


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant now, and what it was served since it was first seen.

    path                   its nodes with the weights in force
    num_prefill_tokens     prompt tokens computed for the first time
    num_found_tokens       prompt tokens that were in the prefix cache, and are charged to nobody
    num_output_tokens      tokens emitted
    num_recomputed_tokens  tokens computed again after a preemption: lost work, charged to nobody
    num_borrowed_tokens    prompt and output tokens that it got while it yielded, because nobody else could use them
    num_preemptions        times that a sequence lost blocks, by swap or recomputation
    num_pauses             times that a sequence was denied the step but kept its blocks
    num_swaps_out, num_swaps_in, num_copied_blocks   copies to and from the host, and the blocks that they moved
    wait_ns                time that its requests have waited for their first step, of those that got there
    num_kept_blocks        blocks that it computed and nobody uses now
    num_drafted_tokens     draft tokens that were verified, of which num_accepted_tokens were right
    standing               the scheduling policy's measure of how over-served it is, per node of the path; () if none
    """

    tenant_id: TenantId
    path: tuple[PathNode, ...]
    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_swapping: int
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    num_borrowed_tokens: int
    num_preemptions: int
    num_pauses: int
    num_swaps_out: int
    num_swaps_in: int
    num_copied_blocks: int
    num_device_blocks: int
    wait_ns: int
    standing: tuple[float, ...]
    num_found_tokens: int = 0
    num_kept_blocks: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Totals:
    """What all tenants together were served since the engine began; see TenantStats. Never falls.

    num_drafted_tokens   draft tokens that were verified
    num_accepted_tokens  of these, those that were right: part of the output tokens
    """

    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_borrowed_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_found_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Device blocks that the prefix cache keeps and nobody uses, and that have names; blocks evicted since the
    beginning; host blocks that are kept."""

    num_kept: int = 0
    num_named: int = 0
    num_evicted: int = 0
    num_kept_on_host: int = 0


@dataclass(frozen=True, slots=True)
class SchedulerStats:
    """Sequences by state, the pools, and one entry per known tenant in order of tenant id.

    num_free_blocks    device blocks that may be taken, those included that the prefix cache keeps
    num_fenced_blocks  device blocks that are being copied out: neither free nor usable
    num_lost_steps     steps that the device had no memory for
    num_requeues       how often a request of such a step was sent back, to be computed again: among the preemptions
    num_copied_out, num_copied_in   blocks whose copy to the host, and from there, has begun
    gap_bound          the most by which the policy lets siblings differ that are both denied something, in cost units
                       over weight; None where it promises nothing
    policy_fault       which policy was replaced by the order of arrival, and why; None if none was
    """

    num_running: int
    num_waiting: int
    num_paused: int
    num_swapped: int
    num_swapping: int
    num_free_blocks: int
    num_fenced_blocks: int
    num_free_host_blocks: int
    num_preemptions: int
    num_pauses: int
    num_swaps: int
    num_lost_steps: int
    num_requeues: int
    prices: Prices
    policy_fault: str | None
    tenants: tuple[TenantStats, ...]
    totals: Totals
    num_copied_out: int
    num_copied_in: int
    gap_bound: float | None
    cache: CacheCounts = CacheCounts()
