"""What is true of a scheduler between any two calls. Run after each step in tests, never in production: O(everything).

An `if` for each and no `assert`: `evenflow sim check-policy` finds what is wrong under `python -O`, too. The words are
found only for what is wrong.
"""

from collections import Counter, abc

from engine.core.block_invariants import check_blocks
from engine.core.errors import InvariantError
from engine.core.lifecycle import Lifecycle
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import BlockId, SequenceStatus


def check(scheduler: Scheduler) -> None:
    """Raises InvariantError, saying what is wrong."""
    lifecycle = scheduler.lifecycle
    unfinished = list(lifecycle.unfinished)
    copied = [entry.seq for entry in lifecycle.blocks.in_flight.values() if entry.seq is not None]
    holders = [*unfinished, *lifecycle.ended_in_plan, *[seq for seq in copied if seq not in unfinished]]
    check_blocks(scheduler, holders)
    _check_rows(lifecycle, holders)
    _check_lists(lifecycle, unfinished)
    _check_beams(lifecycle)
    _check_flows(lifecycle, unfinished, holders)
    for seq in unfinished:
        _check_tokens(lifecycle, seq)
    _check_open_plan(scheduler)


def _check_rows(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    rows = [seq.row for seq in seqs if seq.row is not None]
    if len(rows) != len(set(rows)):
        raise InvariantError(f"two sequences share a row: {sorted(rows)}")
    num_rows = lifecycle.rows.num_rows
    if len(rows) + lifecycle.rows.num_free != num_rows:
        raise InvariantError(f"{len(rows)} rows taken and {lifecycle.rows.num_free} free, of {num_rows}")


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
        if actual != sorted(seq.arrival_index for seq in seqs):
            raise InvariantError(f"{name} lists arrivals {actual}")
    for seq in unfinished:
        _check_place(lifecycle, seq)
    ended = [seq.key for seq in lifecycle.ended_in_plan if seq.status is not SequenceStatus.FINISHED]
    if ended:
        raise InvariantError(f"ended in the open plan but not finished: {ended}")


def _check_beams(lifecycle: Lifecycle) -> None:
    """Each beam of a search is one of its group, whose first one stands for the request, and counts add up."""
    for generation_id, first in lifecycle.by_generation.items():
        if first.beam is None:
            continue
        group = first.beam.group
        beams = [seq.beam for seq in group.members if seq.beam is not None and seq.beam.group is group]
        live = [beam for beam in beams if beam.candidates != ()]
        given = [beam for beam in live if beam.candidates is not None]
        if group.members[0] is not first:
            raise InvariantError(f"{generation_id}: another beam stands for the request")
        if len(beams) != len(group.members):
            raise InvariantError(f"{generation_id}: a member is no beam of it")
        if len(beams) > group.search.params.width:
            raise InvariantError(f"{generation_id} has {len(beams)} beams")
        counts = group.num_round_tokens, group.num_given, group.num_suspended
        actual = len(live), len(given), sum(beam.is_suspended for beam in beams)
        if counts != actual:
            raise InvariantError(f"{generation_id}: {actual} beams live, gave candidates, are suspended: {counts}")


def _check_place(lifecycle: Lifecycle, seq: Sequence) -> None:
    status, is_held = seq.status, seq.hold_reason is not None
    table = seq.block_table
    may_have_row = status is SequenceStatus.PAUSED and not is_held
    has_row = seq.row is not None
    if not may_have_row and has_row != (status is SequenceStatus.RUNNING):
        raise InvariantError(f"{seq.key} is {status.value}, {seq.row=}")
    is_waiting = status is SequenceStatus.WAITING
    if is_waiting and (table.device or table.host):
        raise InvariantError(f"{seq.key} waits with blocks")
    if is_waiting and is_held:
        raise InvariantError(f"{seq.key} waits although it is held")
    on_host = status in (SequenceStatus.SWAPPED, SequenceStatus.SWAPPING_OUT)
    if bool(table.host) != on_host:
        raise InvariantError(f"{seq.key} is {status.value} with {len(table.host)} host blocks")
    is_lost = status is SequenceStatus.PAUSED and not table.device and not is_held
    if is_lost:
        raise InvariantError(f"{seq.key} is neither held nor waiting")
    is_queued = is_waiting or (status is SequenceStatus.SWAPPED and not is_held)
    if (seq.arrival_index in lifecycle.policy.waiting) != is_queued:
        raise InvariantError(f"{seq.key}: the policy knows otherwise")
    if (seq in lifecycle.expiring) != (seq.expires_at is not None):
        raise InvariantError(f"{seq.key}: expiry is not watched")


def _check_flows(lifecycle: Lifecycle, unfinished: abc.Sequence[Sequence], holders: abc.Sequence[Sequence]) -> None:
    statuses = Counter((seq.tenant_id, seq.status) for seq in unfinished)
    wanting = Counter(seq.flow for seq in unfinished if seq.hold_reason is None)
    tables: dict[object, Counter[BlockId]] = {}
    for seq in holders:
        tables.setdefault(seq.flow, Counter()).update(seq.block_table.device)
    rows = Counter(seq.flow for seq in unfinished if seq.status is SequenceStatus.RUNNING)
    for flow in lifecycle.flows.all():
        name = f"{flow.tenant_id} in {flow.priority_class.name}"
        if flow.num_wanting != wanting[flow]:
            raise InvariantError(f"{name}: {wanting[flow]} want, counted {flow.num_wanting}")
        counts, refs = tables.get(flow, Counter()), flow.block_refs
        if flow.num_device_blocks != len(counts):
            raise InvariantError(f"{name}: {flow.num_device_blocks} blocks counted")
        is_true = refs.keys() <= counts.keys() and all(refs.get(each, 1) == num for each, num in counts.items())
        if not is_true:
            raise InvariantError(f"{name}: blocks counted as being in {refs} tables")
        if flow.num_rows != rows[flow]:
            raise InvariantError(f"{name}: {flow.num_rows} rows counted, has {rows[flow]}")
        for status, num_counted in flow.account.num_sequences.items():
            if status is not SequenceStatus.FINISHED:
                num_actual = statuses[flow.tenant_id, status]
                if num_actual != num_counted:
                    raise InvariantError(f"{name}: {num_actual} {status.value}, counted {num_counted}")


def _check_tokens(lifecycle: Lifecycle, seq: Sequence) -> None:
    """Computed tokens are known and have blocks; output is within its limit."""
    num_output = len(seq.output_token_ids)
    if seq.num_tokens != seq.num_prompt_tokens + num_output:
        raise InvariantError(f"{seq.key}: {seq.num_tokens} tokens are known")
    if num_output >= seq.request.max_output_tokens:
        raise InvariantError(f"{seq.key} goes on after {num_output} output tokens")
    reached, num_drafts = seq.num_computed_tokens + seq.num_scheduled_tokens, seq.num_scheduled_drafts
    num_blocks = len(seq.block_table.device) + len(seq.block_table.host)
    if reached > seq.num_tokens:
        raise InvariantError(f"{seq.key} computes {reached} of {seq.num_tokens} known tokens")
    num_slots = reached + num_drafts
    is_held = lifecycle.blocks.num_blocks(num_slots) <= num_blocks
    if not is_held:
        raise InvariantError(f"{seq.key}: {num_slots} tokens in {num_blocks} blocks")
    _check_drafts(lifecycle, seq, num_blocks)
    if seq.num_scheduled_tokens and seq.block_table.host:
        raise InvariantError(f"{seq.key} is computed while it is on the host")


def _check_drafts(lifecycle: Lifecycle, seq: Sequence, num_blocks: int) -> None:
    """Only a row has proposals, only decodes carry drafts, none beyond the output's end; no block is left of them."""
    drafting = seq.drafting
    if drafting is None:
        return
    num_drafts = drafting.num_scheduled
    if seq.row is None and drafting.num_proposed:
        raise InvariantError(f"{seq.key} has drafts and no row")
    if drafting.num_certain > drafting.num_proposed:
        raise InvariantError(f"{seq.key} has more certain drafts than drafts")
    if num_drafts > drafting.num_proposed:
        raise InvariantError(f"{seq.key} has {drafting.num_proposed} drafts, plans {num_drafts}")
    is_decode = seq.num_scheduled_tokens == 1 == seq.num_uncomputed_tokens
    if num_drafts and not is_decode:
        raise InvariantError(f"{seq.key} has drafts behind a chunk of its prompt")
    num_left = seq.request.max_output_tokens - seq.num_output_tokens
    if num_drafts >= num_left:
        raise InvariantError(f"{seq.key} has {num_drafts} drafts, {num_left} tokens before its end")
    num_needed = lifecycle.blocks.num_blocks(seq.num_tokens + num_drafts)
    if num_blocks > num_needed:
        raise InvariantError(f"{seq.key} has {num_blocks} blocks, of which it needs {num_needed}")


def _check_open_plan(scheduler: Scheduler) -> None:
    """What has scheduled tokens, or ended and keeps its row, is what is in the open plan."""
    lifecycle = scheduler.lifecycle
    scheduled = {seq.key for seq in lifecycle.unfinished if seq.num_scheduled_tokens}
    ended = {seq.key for seq in lifecycle.ended_in_plan}
    granted = {seq.key for seq in scheduler.open_sequences}
    if scheduled | ended != granted:
        raise InvariantError(f"the open plan has {granted}, scheduled are {scheduled}, ended {ended}")
    num_tokens = sum(seq.num_scheduled_tokens + seq.num_scheduled_drafts for seq in scheduler.open_sequences)
    limit = scheduler.config.max_num_batched_tokens
    if num_tokens > limit:
        raise InvariantError(f"the open plan has {num_tokens} tokens, of {limit}")
    held = [seq.key for seq in lifecycle.running if seq.hold_reason is not None and seq.key not in granted]
    if held:
        raise InvariantError(f"held, but running outside the open plan: {held}")
