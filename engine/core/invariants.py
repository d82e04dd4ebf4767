"""What is true of a scheduler between any two calls. Run after each step in tests, never in production: O(everything).

Source of the list: the faults that public engines had with blocks that were freed twice, early, or never.
"""

from collections import Counter, abc

from engine.core.errors import InvariantError
from engine.core.lifecycle import Lifecycle
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import BlockId, SequenceStatus


def check(scheduler: Scheduler) -> None:
    """Raises InvariantError, saying what is wrong."""
    lifecycle = scheduler.lifecycle
    unfinished = list(lifecycle.by_generation.values())
    _check_blocks(lifecycle, [*unfinished, *lifecycle.ended_in_plan])
    _check_rows(lifecycle, [*unfinished, *lifecycle.ended_in_plan])
    _check_lists(lifecycle, unfinished)
    _check_tenants(lifecycle, unfinished)
    for seq in unfinished:
        _check_tokens(lifecycle, seq)
    _check_open_plan(scheduler)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def _check_blocks(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    """Each block is free or in tables, as often as it has references, and in no two tables that write it."""
    pool = lifecycle.blocks.pool
    free = Counter(pool.free_ids)
    used = Counter(block_id for seq in seqs for block_id in seq.block_table.device)
    for block_id in map(BlockId, range(pool.num_blocks)):
        num_tables, num_references = used[block_id], pool.reference_count(block_id)
        _require(num_tables == num_references, f"block {block_id}: {num_tables} tables, {num_references} references")
        _require(num_tables <= 1, f"block {block_id} is in {num_tables} tables that write it")
        _require(
            free[block_id] == (num_tables == 0), f"block {block_id}: {num_tables} tables, {free[block_id]} times free"
        )


def _check_rows(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    rows = [seq.row for seq in seqs if seq.row is not None]
    _require(len(rows) == len(set(rows)), f"two sequences share a row: {sorted(rows)}")
    num_rows = lifecycle.rows.num_rows
    _require(
        len(rows) + lifecycle.rows.num_free == num_rows,
        f"{len(rows)} rows taken and {lifecycle.rows.num_free} free, of {num_rows}",
    )


def _check_lists(lifecycle: Lifecycle, unfinished: abc.Sequence[Sequence]) -> None:
    """Each list holds exactly the sequences in its state, in order of arrival."""
    paused = [seq for seq in unfinished if seq.status is SequenceStatus.PAUSED and seq.block_table.device]
    expected = {
        "running": [seq for seq in unfinished if seq.status is SequenceStatus.RUNNING],
        "held": [seq for seq in paused if seq.hold_reason is not None],
        "resuming": [seq for seq in paused if seq.hold_reason is None],
    }
    for name, seqs in expected.items():
        actual = [seq.arrival_index for seq in getattr(lifecycle, name)]
        _require(actual == sorted(seq.arrival_index for seq in seqs), f"{name} lists arrivals {actual}")
    for seq in unfinished:
        is_waiting = seq.status is SequenceStatus.WAITING
        has_row = seq.row is not None
        _require(has_row == (seq.status is SequenceStatus.RUNNING), f"{seq.key} is {seq.status.value}, row {seq.row}")
        _require(not is_waiting or not seq.block_table.device, f"{seq.key} waits with blocks")
        _require(not is_waiting or seq.hold_reason is None, f"{seq.key} waits although it is held")
        _require((seq in lifecycle.expiring) == (seq.expires_at is not None), f"{seq.key}: expiry is not watched")
        is_lost = seq.status is SequenceStatus.PAUSED and not seq.block_table.device and seq.hold_reason is None
        _require(not is_lost, f"{seq.key} is neither held nor waiting")
    ended = [seq.key for seq in lifecycle.ended_in_plan if seq.status is not SequenceStatus.FINISHED]
    _require(not ended, f"ended in the open plan but not finished: {ended}")


def _check_tenants(lifecycle: Lifecycle, unfinished: abc.Sequence[Sequence]) -> None:
    actual = Counter((seq.tenant_id, seq.status) for seq in unfinished)
    for tenant in lifecycle.tenants.stats({}):
        for status, num_counted in (
            (SequenceStatus.RUNNING, tenant.num_running),
            (SequenceStatus.WAITING, tenant.num_waiting),
            (SequenceStatus.PAUSED, tenant.num_paused),
        ):
            num_actual = actual.pop((tenant.tenant_id, status), 0)
            _require(
                num_actual == num_counted, f"{tenant.tenant_id}: {num_actual} {status.value}, counted {num_counted}"
            )
    _require(not actual, f"sequences of unknown tenants: {actual}")


def _check_tokens(lifecycle: Lifecycle, seq: Sequence) -> None:
    """Computed tokens are known and have blocks; output is within its limit."""
    num_output = len(seq.output_token_ids)
    _require(seq.num_tokens == seq.num_prompt_tokens + num_output, f"{seq.key}: {seq.num_tokens} tokens are known")
    _require(num_output < seq.request.max_output_tokens, f"{seq.key} goes on after {num_output} output tokens")
    reached = seq.num_computed_tokens + seq.num_scheduled_tokens
    capacity = lifecycle.blocks.capacity(seq.block_table)
    _require(reached <= seq.num_tokens, f"{seq.key} computes {reached} of {seq.num_tokens} known tokens")
    _require(reached <= capacity, f"{seq.key} computes {reached} tokens in blocks for {capacity}")


def _check_open_plan(scheduler: Scheduler) -> None:
    """What has scheduled tokens, or ended and keeps its blocks, is what is in the open plan."""
    lifecycle = scheduler.lifecycle
    scheduled = {seq.key for seq in lifecycle.by_generation.values() if seq.num_scheduled_tokens}
    ended = {seq.key for seq in lifecycle.ended_in_plan}
    granted = {seq.key for seq in scheduler.open_sequences}
    _require(scheduled | ended == granted, f"the open plan has {granted}, scheduled are {scheduled}, ended {ended}")
    held = [seq.key for seq in lifecycle.running if seq.hold_reason is not None and seq.key not in granted]
    _require(not held, f"held, but running outside the open plan: {held}")
