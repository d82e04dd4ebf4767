"""What is true of the blocks between any two calls: who has them, who may write them, what is known of their content.

Source of the list: the faults that public engines had with blocks that were freed twice, early, or never.
"""

from collections import Counter, abc

from engine.core.block_names import name_after, names_after
from engine.core.block_pool import BlockPool
from engine.core.cached_blocks import Label
from engine.core.errors import InvariantError
from engine.core.lifecycle import Lifecycle
from engine.core.plan import CopyDirection
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import BlockId, HostBlockId, SequenceStatus

IN_COPY = (SequenceStatus.SWAPPING_OUT, SequenceStatus.SWAPPING_IN)


def check_blocks(scheduler: Scheduler, holders: abc.Sequence[Sequence]) -> None:
    """Raises InvariantError. `holders` are the sequences that may have blocks."""
    lifecycle = scheduler.lifecycle
    _check_references(lifecycle, holders)
    _check_cache(lifecycle, holders)
    _check_copies(lifecycle)
    _check_block_copies(scheduler)


def _check_references(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    """Each block is free, kept, in tables, or fenced by a copy, as often as it has references."""
    blocks = lifecycle.blocks
    copies = [entry.copy for entry in blocks.in_flight.values()]
    device = Counter(block_id for seq in seqs for block_id in seq.block_table.device)
    fenced = Counter(b for copy in copies if copy.direction is CopyDirection.OUT for b in copy.device_block_ids)
    kept = [] if blocks.prefixes is None else list(blocks.prefixes.kept_ids)
    _check_pool(blocks.pool, device + fenced, kept, "device", BlockId)
    _check_writers(lifecycle, seqs, device)
    if device & fenced:
        raise InvariantError("a block that is on its way out is in a table")
    if sum(fenced.values()) != blocks.num_fenced:
        raise InvariantError(f"{blocks.num_fenced} blocks fenced, of {sum(fenced.values())}")
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
        if num_uses != num_references:
            raise InvariantError(f"{name} block {block_id}: {num_uses} uses, {num_references} references")
        num_free, num_kept = free[block_id], kept[block_id]
        is_idle = num_free + num_kept == (num_uses == 0)
        if not is_idle:
            raise InvariantError(
                f"{name} block {block_id}: {num_uses} uses, {num_free} times free, {num_kept} times kept"
            )
        if num_uses > 1 and name != "device":
            raise InvariantError(f"{name} block {block_id} is in {num_uses} tables")
        num_shared += max(0, num_uses - 1)
    if num_shared != pool.num_shared:
        raise InvariantError(f"{name}: {num_shared} blocks are shared, counted {pool.num_shared}")
    num_idle = free.total() + kept.total()
    if num_idle != pool.num_free:
        raise InvariantError(f"{name}: {num_idle} blocks are to be had, counted {pool.num_free}")


def _check_writers(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence], num_uses: Counter[BlockId]) -> None:
    """A block in several tables is full and computed in each of them, so that nobody writes it any more."""
    for seq in seqs:
        for index, block_id in enumerate(seq.block_table.device):
            is_written = lifecycle.blocks.num_blocks(seq.num_computed_tokens + 1) <= index + 1
            if num_uses[block_id] != 1 and is_written:
                raise InvariantError(
                    f"device block {block_id} is in {num_uses[block_id]} tables, and {seq.key} writes it"
                )


def _check_cache(lifecycle: Lifecycle, seqs: abc.Sequence[Sequence]) -> None:
    """A block with a name is kept, or in tables in which the name is that of its place; no copy moves it."""
    prefixes = lifecycle.blocks.prefixes
    if prefixes is None:
        return
    labels = dict(prefixes.labels)
    if len({label.name for label in labels.values()}) != len(labels):
        raise InvariantError("two blocks have one name")
    idle = set(prefixes.kept_ids)
    if not idle <= labels.keys():
        raise InvariantError(f"kept without a name: {idle - labels.keys()}")
    for seq in seqs:
        _check_labels(labels, seq, prefixes.block_size)
    for entry in lifecycle.blocks.in_flight.values():
        moved = labels.keys() & set(entry.copy.device_block_ids)
        if moved:
            raise InvariantError(f"blocks {moved} have names while copy {entry.copy.copy_id} is under way")
    absent = [seq.key for seq in prefixes.computing.values() if seq not in seqs]
    if absent:
        raise InvariantError(f"announced a block, but ended: {absent}")


def _check_labels(labels: abc.Mapping[BlockId, Label], seq: Sequence, size: int) -> None:
    """What is known of the blocks of `seq` is what it computed: they are full, or its prompt ends in them."""
    names = [seq.root_name, *names_after(seq.root_name, seq.tokens(0, seq.num_computed_tokens), size)]
    for index, block_id in enumerate(seq.block_table.device):
        if (label := labels.get(block_id)) is not None:
            start = index * size
            end = start + (size if label.is_full else len(label.token_ids))
            token_ids = tuple(seq.tokens(start, end))
            is_own = end <= seq.num_computed_tokens and label.name == name_after(names[index], token_ids)
            is_own = is_own and label.token_ids == token_ids[: len(label.token_ids)]
            if not is_own:
                raise InvariantError(f"{seq.key} has a block of other content at {index}")


def _check_copies(lifecycle: Lifecycle) -> None:
    """A sequence is in a SWAPPING state exactly while a copy of it is under way, and there is one copy at a time."""
    entries = lifecycle.blocks.in_flight.values()
    seqs = [entry.seq for entry in entries if entry.seq is not None]
    copying = Counter(seq.key for seq in seqs)
    if not all(count == 1 for count in copying.values()):
        raise InvariantError(f"several copies of one sequence: {copying}")
    in_copy = {seq.key for seq in lifecycle.unfinished if seq.status in IN_COPY}
    alive = {seq.key for seq in seqs if seq.status is not SequenceStatus.FINISHED}
    if in_copy != alive:
        raise InvariantError(f"swapping are {in_copy}, copies are under way for {alive}")
    for entry in entries:
        copy = entry.copy
        if not (0 < len(copy.device_block_ids) == len(copy.host_block_ids)):
            raise InvariantError(f"copy {copy.copy_id} is lopsided")


def _check_block_copies(scheduler: Scheduler) -> None:
    """No block is overwritten that several sequences read."""
    opened, lifecycle = scheduler.open_plan, scheduler.lifecycle
    for source, target in [*lifecycle.block_copies, *(() if opened is None else opened[0].block_copies)]:
        num_readers = lifecycle.blocks.pool.reference_count(target)
        if num_readers > 1:
            raise InvariantError(f"block {source} is copied to {target}, which is in {num_readers} tables")
