"""What is true of a scheduler between any two calls. Run after each step in tests, never in production: O(everything).

Source of the list: the faults that public engines had with blocks that were freed twice, early, or never.
"""

from collections import Counter, abc

from engine.core.block_names import names_after
from engine.core.block_pool import BlockPool
from engine.core.errors import InvariantError
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import BlockId, HostBlockId, SequenceStatus

IN_COPY = (SequenceStatus.SWAPPING_OUT, SequenceStatus.SWAPPING_IN)


def check(scheduler: Scheduler) -> None:
    """Raises InvariantError, saying what is wrong."""
    lifecycle = scheduler.lifecycle
    unfinished = list(lifecycle.by_generation.values())
    copied = [entry.seq for entry in lifecycle.blocks.in_flight.values() if entry.seq is not None]
    holders = [*unfinished, *lifecycle.ended_in_plan, *[seq for seq in copied if seq not in unfinished]]
    _check_blocks(lifecycle, holders)
    _check_cache(lifecycle, holders)
    _check_copies(lifecycle)
    _check_rows(lifecycle, holders)
    _check_lists(lifecycle, unfinished)
    _check_flows(lifecycle, unfinished, holders)
    for seq in unfinished:
        _check_tokens(lifecycle, seq)
    _check_open_plan(scheduler)


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvariantError(message)


def _check_blocks(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    """Each block is free, kept, in tables, or fenced by a copy, as often as it has references."""
    blocks = lifecycle.blocks
    copies = [entry.copy for entry in blocks.in_flight.values()]
    device = Counter(block_id for seq in seqs for block_id in seq.block_table.device)
    fenced = Counter(b for copy in copies if copy.direction is CopyDirection.OUT for b in copy.device_block_ids)
    kept = [] if blocks.prefixes is None else list(blocks.prefixes.kept_ids)
    _check_pool(blocks.pool, device + fenced, kept, "device", BlockId)
    _check_writers(lifecycle, seqs, device)
    _require(not device & fenced, "a block that is on its way out is in a table")
    _require(sum(fenced.values()) == blocks.num_fenced, f"{blocks.num_fenced} blocks fenced, of {sum(fenced.values())}")
    host = Counter(block_id for seq in seqs for block_id in seq.block_table.host)
    leaving = Counter(b for copy in copies if copy.direction is CopyDirection.IN for b in copy.host_block_ids)
    demoted = [entry.copy for entry in blocks.in_flight.values() if entry.seq is None]
    coming = Counter(block_id for copy in demoted for block_id in copy.host_block_ids)
    host_kept = [] if blocks.prefixes is None else list(blocks.prefixes.host_kept_ids)
    _check_pool(blocks.host_pool, host + leaving + coming, host_kept, "host", HostBlockId)


def _check_pool(
    pool: BlockPool[BlockId] | BlockPool[HostBlockId],
    used: Counter[BlockId] | Counter[HostBlockId],
    kept_ids: abc.Iterable[BlockId] | abc.Iterable[HostBlockId],
    name: str,
    id_type: abc.Callable[[int], BlockId | HostBlockId],
) -> None:
    free, kept = Counter(pool.free_ids), Counter(kept_ids)
    num_shared = 0
    for block_id in map(id_type, range(pool.num_blocks)):
        num_uses, num_references = used[block_id], pool.reference_count(block_id)  # type: ignore[index,arg-type] # its own ids
        _require(num_uses == num_references, f"{name} block {block_id}: {num_uses} uses, {num_references} references")
        num_free, num_kept = free[block_id], kept[block_id]
        is_idle = num_free + num_kept == (num_uses == 0)
        _require(is_idle, f"{name} block {block_id}: {num_uses} uses, {num_free} times free, {num_kept} times kept")
        _require(num_uses <= 1 or name == "device", f"{name} block {block_id} is in {num_uses} tables")
        num_shared += max(0, num_uses - 1)
    _require(num_shared == pool.num_shared, f"{name}: {num_shared} blocks are shared, counted {pool.num_shared}")
    num_idle = free.total() + kept.total()
    _require(num_idle == pool.num_free, f"{name}: {num_idle} blocks are to be had, counted {pool.num_free}")


def _check_writers(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence], num_uses: Counter[BlockId]) -> None:
    """A block in several tables is full and computed in each of them, so that nobody writes it any more."""
    for seq in seqs:
        for index, block_id in enumerate(seq.block_table.device):
            is_written = lifecycle.blocks.num_blocks(seq.num_computed_tokens + 1) <= index + 1
            _require(
                num_uses[block_id] == 1 or not is_written,
                f"device block {block_id} is in {num_uses[block_id]} tables, and {seq.key} writes it",
            )


def _check_cache(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    """A block with a name is kept, or in tables in which the name is that of its place; no copy moves it."""
    prefixes = lifecycle.blocks.prefixes
    if prefixes is None:
        return
    names = dict(prefixes.names)
    _require(len(set(names.values())) == len(names), "two blocks have one name")
    idle = set(prefixes.kept_ids)
    _require(idle <= names.keys(), f"kept without a name: {idle - names.keys()}")
    for seq in seqs:
        size = prefixes.block_size
        own = names_after(seq.root_name, seq.tokens(0, seq.num_computed_tokens), size)
        for index, block_id in enumerate(seq.block_table.device):
            name = names.get(block_id)
            is_own = name is None or (index < len(own) and name == own[index])
            _require(is_own, f"{seq.key} has a block of other content at {index}")
    for entry in lifecycle.blocks.in_flight.values():
        moved = names.keys() & set(entry.copy.device_block_ids)
        _require(not moved, f"blocks {moved} have names while copy {entry.copy.copy_id} is under way")
    absent = [seq.key for seq in prefixes.computing.values() if seq not in seqs]
    _require(not absent, f"announced a block, but ended: {absent}")


def _check_copies(lifecycle: Lifecycle) -> None:
    """A sequence is in a SWAPPING state exactly while a copy of it is under way, and there is one copy at a time."""
    entries = lifecycle.blocks.in_flight.values()
    seqs = [entry.seq for entry in entries if entry.seq is not None]
    copying = Counter(seq.key for seq in seqs)
    _require(all(count == 1 for count in copying.values()), f"several copies of one sequence: {copying}")
    in_copy = {seq.key for seq in lifecycle.by_generation.values() if seq.status in IN_COPY}
    alive = {seq.key for seq in seqs if seq.status is not SequenceStatus.FINISHED}
    _require(in_copy == alive, f"swapping are {in_copy}, copies are under way for {alive}")
    for entry in entries:
        copy = entry.copy
        _require(0 < len(copy.device_block_ids) == len(copy.host_block_ids), f"copy {copy.copy_id} is lopsided")


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
        "paused": [seq for seq in paused if seq.hold_reason is None],
        "swapped": [seq for seq in unfinished if seq.status is SequenceStatus.SWAPPED],
    }
    for name, seqs in expected.items():
        actual = [seq.arrival_index for seq in getattr(lifecycle, name)]
        _require(actual == sorted(seq.arrival_index for seq in seqs), f"{name} lists arrivals {actual}")
    for seq in unfinished:
        _check_place(lifecycle, seq)
    ended = [seq.key for seq in lifecycle.ended_in_plan if seq.status is not SequenceStatus.FINISHED]
    _require(not ended, f"ended in the open plan but not finished: {ended}")


def _check_place(lifecycle: Lifecycle, seq: Sequence) -> None:
    status, is_held = seq.status, seq.hold_reason is not None
    table = seq.block_table
    may_have_row = status is SequenceStatus.PAUSED and not is_held
    has_row = seq.row is not None
    _require(may_have_row or has_row == (status is SequenceStatus.RUNNING), f"{seq.key} is {status.value}, {seq.row=}")
    is_waiting = status is SequenceStatus.WAITING
    _require(not is_waiting or not (table.device or table.host), f"{seq.key} waits with blocks")
    _require(not is_waiting or not is_held, f"{seq.key} waits although it is held")
    on_host = status in (SequenceStatus.SWAPPED, SequenceStatus.SWAPPING_OUT)
    _require(bool(table.host) == on_host, f"{seq.key} is {status.value} with {len(table.host)} host blocks")
    is_lost = status is SequenceStatus.PAUSED and not table.device and not is_held
    _require(not is_lost, f"{seq.key} is neither held nor waiting")
    is_queued = is_waiting or (status is SequenceStatus.SWAPPED and not is_held)
    _require((seq.arrival_index in lifecycle.policy.waiting) == is_queued, f"{seq.key}: the policy knows otherwise")
    _require((seq in lifecycle.expiring) == (seq.expires_at is not None), f"{seq.key}: expiry is not watched")


def _check_flows(lifecycle: Lifecycle, unfinished: abc.Sequence[Sequence], holders: abc.Sequence[Sequence]) -> None:
    statuses = Counter((seq.tenant_id, seq.status) for seq in unfinished)
    wanting = Counter(seq.flow for seq in unfinished if seq.hold_reason is None)
    tables: dict[object, set[BlockId]] = {}
    for seq in holders:
        tables.setdefault(seq.flow, set()).update(seq.block_table.device)
    num_blocks = Counter({flow: len(block_ids) for flow, block_ids in tables.items()})
    rows = Counter(seq.flow for seq in unfinished if seq.status is SequenceStatus.RUNNING)
    for flow in lifecycle.flows.all():
        name = f"{flow.tenant_id} in {flow.priority_class.name}"
        _require(flow.num_wanting == wanting[flow], f"{name}: {wanting[flow]} want, counted {flow.num_wanting}")
        _require(flow.num_device_blocks == num_blocks[flow], f"{name}: {flow.num_device_blocks} blocks counted")
        _require(flow.num_rows == rows[flow], f"{name}: {flow.num_rows} rows counted, has {rows[flow]}")
        for status, num_counted in flow.account.num_sequences.items():
            if status is not SequenceStatus.FINISHED:
                num_actual = statuses[flow.tenant_id, status]
                _require(num_actual == num_counted, f"{name}: {num_actual} {status.value}, counted {num_counted}")


def _check_tokens(lifecycle: Lifecycle, seq: Sequence) -> None:
    """Computed tokens are known and have blocks; output is within its limit."""
    num_output = len(seq.output_token_ids)
    _require(seq.num_tokens == seq.num_prompt_tokens + num_output, f"{seq.key}: {seq.num_tokens} tokens are known")
    _require(num_output < seq.request.max_output_tokens, f"{seq.key} goes on after {num_output} output tokens")
    reached, num_drafts = seq.num_computed_tokens + seq.num_scheduled_tokens, seq.num_scheduled_drafts
    num_blocks = len(seq.block_table.device) + len(seq.block_table.host)
    _require(reached <= seq.num_tokens, f"{seq.key} computes {reached} of {seq.num_tokens} known tokens")
    num_slots = reached + num_drafts
    is_held = lifecycle.blocks.num_blocks(num_slots) <= num_blocks
    _require(is_held, f"{seq.key}: {num_slots} tokens in {num_blocks} blocks")
    _check_drafts(lifecycle, seq, num_blocks)
    _require(not seq.num_scheduled_tokens or not seq.block_table.host, f"{seq.key} is computed while it is on the host")


def _check_drafts(lifecycle: Lifecycle, seq: Sequence, num_blocks: int) -> None:
    """Only a row has proposals, only decodes carry drafts, none beyond the output's end; no block is left of them."""
    drafting = seq.drafting
    if drafting is None:
        return
    num_drafts = drafting.num_scheduled
    _require(seq.row is not None or not drafting.num_proposed, f"{seq.key} has drafts and no row")
    _require(num_drafts <= drafting.num_proposed, f"{seq.key} has {drafting.num_proposed} drafts, plans {num_drafts}")
    is_decode = seq.num_scheduled_tokens == 1 == seq.num_uncomputed_tokens
    _require(not num_drafts or is_decode, f"{seq.key} has drafts behind a chunk of its prompt")
    num_left = seq.request.max_output_tokens - seq.num_output_tokens
    _require(num_drafts < num_left, f"{seq.key} has {num_drafts} drafts, {num_left} tokens before its end")
    num_needed = lifecycle.blocks.num_blocks(seq.num_tokens + num_drafts)
    _require(num_blocks <= num_needed, f"{seq.key} has {num_blocks} blocks, of which it needs {num_needed}")


def _check_open_plan(scheduler: Scheduler) -> None:
    """What has scheduled tokens, or ended and keeps its row, is what is in the open plan."""
    lifecycle = scheduler.lifecycle
    scheduled = {seq.key for seq in lifecycle.by_generation.values() if seq.num_scheduled_tokens}
    ended = {seq.key for seq in lifecycle.ended_in_plan}
    granted = {seq.key for seq in scheduler.open_sequences}
    _require(scheduled | ended == granted, f"the open plan has {granted}, scheduled are {scheduled}, ended {ended}")
    num_tokens = sum(seq.num_scheduled_tokens + seq.num_scheduled_drafts for seq in scheduler.open_sequences)
    limit = scheduler.config.max_num_batched_tokens
    _require(num_tokens <= limit, f"the open plan has {num_tokens} tokens, of {limit}")
    held = [seq.key for seq in lifecycle.running if seq.hold_reason is not None and seq.key not in granted]
    _require(not held, f"held, but running outside the open plan: {held}")
