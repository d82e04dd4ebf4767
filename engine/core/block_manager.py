"""The KV blocks of each sequence, on the device and on the host: the only writer of block tables and user of the pools.

    free      in neither table nor copy; may be taken
    kept      likewise, but its content has a name: who needs it finds it, until the room is needed
    in use    in a table, or in several, all of which only read it
    fenced    left its table, but a copy reads it: neither free nor usable until the copy is complete

Source of blocks: Kwon et al. 2023 (PagedAttention), §4; of the fence: three public engines freed a block before its
copy had ended, and served one request the keys of another.
"""

from collections import abc
from dataclasses import dataclass

from engine.core import block_refs
from engine.core.block_pool import BlockPool
from engine.core.cached_blocks import CachedBlocks, Label
from engine.core.config import SchedulerConfig
from engine.core.flow import Flow
from engine.core.plan import BlockCopy, CopyDirection
from engine.core.prefix_cache import PrefixCache, Tier
from engine.core.sequence import BlockTable, Hit, Sequence
from engine.core.stats import CacheCounts
from engine.core.types import BlockId, CopyId, HostBlockId, SequenceStatus, TenantId


@dataclass(frozen=True, slots=True)
class CopyInFlight:
    """A copy that has begun, and the sequence whose blocks it moves; None: cached ones, which nobody uses. `labels` are
    those that the device blocks had."""

    seq: Sequence | None
    copy: BlockCopy
    labels: tuple[Label | None, ...] = ()


class BlockManager:
    """Pools of `num_blocks` device and `num_host_blocks` host blocks that hold `block_size` tokens each.

    The number of device blocks of each flow is kept in the flow. `in_flight` are the copies that have begun;
    `prefixes` is None where nothing is shared.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        num_host_blocks: int = 0,
        caches: tuple[CachedBlocks[BlockId], CachedBlocks[HostBlockId]] | None = None,
    ) -> None:
        cached, host_cached = (None, None) if caches is None else caches
        self.pool: BlockPool[BlockId] = BlockPool(map(BlockId, range(num_blocks)), cached)
        self.host_pool: BlockPool[HostBlockId] = BlockPool(map(HostBlockId, range(num_host_blocks)), host_cached)
        self.prefixes: PrefixCache | None = None
        if caches is not None:
            self.prefixes = PrefixCache(Tier(self.pool, caches[0]), Tier(self.host_pool, caches[1]), block_size)
        self.in_flight: dict[CopyId, CopyInFlight] = {}
        self.num_fenced = 0
        self.block_size = block_size
        self._num_copies = 0
        self.num_copied = dict.fromkeys(CopyDirection, 0)

    @classmethod
    def of(cls, config: SchedulerConfig) -> "BlockManager":
        """The pools of these settings."""
        sizes = (config.num_device_blocks, config.block_size, config.num_host_blocks)
        if not config.enable_prefix_caching:
            return cls(*sizes)
        shares = (config.cache_min_share, config.cache_max_share)
        device: CachedBlocks[BlockId] = CachedBlocks(*[int(share * config.num_device_blocks) for share in shares])
        host: CachedBlocks[HostBlockId] = CachedBlocks(*[int(share * config.num_host_blocks) for share in shares])
        return cls(*sizes, (device, host))

    @property
    def num_free(self) -> int:
        """Device blocks that may be taken, the kept ones included."""
        return self.pool.num_free

    @property
    def cache_counts(self) -> CacheCounts:
        return CacheCounts() if self.prefixes is None else self.prefixes.counts

    def num_kept_of(self, tenant_id: TenantId) -> int:
        """Blocks that the tenant computed and nobody uses."""
        return 0 if self.prefixes is None else self.prefixes.num_kept_of(tenant_id)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def capacity(self, table: BlockTable) -> int:
        """Tokens that the device blocks of `table` hold."""
        return len(table.device) * self.block_size

    def num_movable(self, table: BlockTable) -> int:
        """Device blocks at the end of `table` that nobody shares: only they can change pools."""
        if not self.pool.num_shared:
            return len(table.device)
        count = 0
        for block_id in reversed(table.device):
            if self.pool.reference_count(block_id) > 1:
                break
            count += 1
        return count

    def welcome(self, seq: Sequence) -> None:
        """A sequence has just arrived."""
        if self.prefixes is not None:
            self.prefixes.welcome(seq)

    def num_missing(self, seq: Sequence) -> int:
        """Free device blocks that a head takes for all its known tokens: it has some, or finds some that are used."""
        num_missing = self.num_blocks(seq.num_tokens) - len(seq.block_table.device)
        if self.prefixes is None or seq.status is not SequenceStatus.WAITING:
            return num_missing
        return num_missing - self.prefixes.hit(seq).num_used_blocks

    def num_gained(self, table: BlockTable) -> int:
        """Device blocks that are free if `table` is: those that nobody shares."""
        return self.pool.num_unshared(table.device)

    def change_flow(self, seq: Sequence, flow: Flow) -> None:
        """The blocks of `seq` count for `flow`, to which it is about to belong."""
        block_refs.move(seq.block_table.device, seq.flow, flow)

    def share(self, parent: Sequence, seq: Sequence, num_blocks: int) -> None:
        """The table of `seq`, which was empty, begins with the first `num_blocks` of `parent`. They are full."""
        shared = parent.block_table.device[:num_blocks]
        self.pool.share(shared)
        seq.block_table.device += shared
        seq.num_named_blocks = num_blocks
        block_refs.refer_again(seq.flow, shared)

    def distrust(self, seq: Sequence) -> None:
        """What `seq` computed may be wrong: nobody else will read it."""
        if self.prefixes is not None:
            self.prefixes.distrust(seq)

    def forget_cached(self) -> None:
        """Nothing that any block holds will be found."""
        self.pool.forget_cached()
        self.host_pool.forget_cached()
        for copy_id, entry in self.in_flight.items():
            self.in_flight[copy_id] = CopyInFlight(entry.seq, entry.copy)

    def copy_found(self, seq: Sequence, hit: Hit) -> tuple[tuple[BlockId, BlockId], ...]:
        """The table of `seq`, which has the full blocks of `hit`, has one more for its tail. Returns the copies that
        the next plan begins with. The caller has checked that a block is free."""
        if hit.tail is None:
            return ()
        (target,) = self.pool.allocate(1)
        seq.block_table.device.append(target)
        seq.flow.num_device_blocks += 1
        return ((hit.tail.block_id, target),)  # one block if what is copied was kept, and the first to make room

    def grow(self, seq: Sequence, num_tokens: int) -> None:
        """The table of `seq` holds at least `num_tokens` tokens. The caller has checked that the blocks are free."""
        table = seq.block_table
        num_missing = self.num_blocks(num_tokens) - len(table.device)
        if num_missing > 0:
            if self.prefixes is not None:
                self.prefixes.name_full(seq)
            table.device += self.pool.allocate(num_missing)
            seq.flow.num_device_blocks += num_missing

    def grow_by_one(self, seqs: abc.Sequence[Sequence]) -> None:
        """Each of `seqs` in turn, which may name one more than once, has a block more. So many are free."""
        if self.prefixes is not None:
            for seq in seqs:
                self.prefixes.name_full(seq)
        for seq, block_id in zip(seqs, self.pool.allocate(len(seqs)), strict=True):
            seq.block_table.device.append(block_id)
            seq.flow.num_device_blocks += 1

    def trim(self, seq: Sequence, num_tokens: int) -> None:
        """Device blocks of `seq` behind those that hold `num_tokens` tokens are free: nothing in them is kept."""
        table = seq.block_table
        surplus = table.device[self.num_blocks(num_tokens) :]
        if surplus:
            del table.device[-len(surplus) :]
            seq.flow.num_device_blocks -= len(surplus)
            self.pool.release(reversed(surplus))

    def free(self, seq: Sequence) -> None:
        """The tables of `seq` are empty. The last blocks are freed first: the head of a sequence is likeliest to be met
        again. No copy of `seq` is in flight."""
        table = seq.block_table
        if self.prefixes is None:
            block_refs.unrefer(seq.flow, table.device)
        else:
            self.prefixes.leave(seq)
        self.pool.release(reversed(table.device))
        table.device.clear()
        if table.host:
            self.host_pool.release(reversed(table.host))
            table.host.clear()

    def swap_out(self, seq: Sequence, num_blocks: int) -> BlockCopy:
        """A copy of the last `num_blocks` device blocks, which are movable, to the host has begun. They are fenced."""
        table = seq.block_table
        device = tuple(table.device[-num_blocks:])
        labels = () if self.prefixes is None else self.prefixes.take_labels(seq, device)
        for block_id in device if seq.flow.block_refs else ():
            seq.flow.block_refs.pop(block_id, None)  # it is alone in having them
        host = self.host_pool.allocate(num_blocks)
        del table.device[-num_blocks:]
        seq.num_named_blocks = min(seq.num_named_blocks, len(table.device))
        table.host[:0] = host
        seq.flow.num_device_blocks -= num_blocks
        self.num_fenced += num_blocks
        return self._begin(seq, CopyDirection.OUT, device, tuple(host), labels)

    def swap_in(self, seq: Sequence) -> BlockCopy:
        """A copy of all host blocks to the device has begun. The caller has checked that as many are free."""
        table = seq.block_table
        host = tuple(table.host)
        device = self.pool.allocate(len(host))
        table.device += device
        table.host.clear()
        seq.flow.num_device_blocks += len(host)
        return self._begin(seq, CopyDirection.IN, tuple(device), host)

    def demote(self, num_blocks: int) -> BlockCopy | None:
        """Of the `num_blocks` kept blocks that would be evicted next those that the host does not have are on their way
        there; the others are free. The caller has checked that the host has room. None: all of them were there."""
        assert self.prefixes is not None, "there is no cache"
        moved = self.prefixes.take_oldest(num_blocks)
        if not moved:
            return None
        device, labels = tuple([block_id for block_id, _ in moved]), tuple([label for _, label in moved])
        self.num_fenced += len(device)
        return self._begin(None, CopyDirection.OUT, device, tuple(self.host_pool.allocate(len(device))), labels)

    def fetch(self, seq: Sequence) -> BlockCopy:
        """The table of `seq`, which was empty, begins with what it found on the device, and a copy of what it found on
        the host behind that has begun. The caller has checked that as many blocks are free."""
        assert self.prefixes is not None, "there is no cache"
        hit = self.prefixes.adopt(seq)
        self.prefixes.announce(seq, len(hit.block_ids))
        self.prefixes.share_host(hit.host_block_ids)
        device = self.pool.allocate(len(hit.host_block_ids))
        seq.block_table.device += device
        seq.flow.num_device_blocks += len(device)
        return self._begin(seq, CopyDirection.IN, tuple(device), hit.host_block_ids)

    def complete(self, copy_id: CopyId) -> CopyInFlight:
        """The copy is complete: what it read from is free. Raises KeyError if it is not in flight."""
        done = self.in_flight.pop(copy_id)
        if done.copy.direction is CopyDirection.OUT:
            self._complete_out(done)
            self.num_fenced -= len(done.copy.device_block_ids)
        else:
            self.host_pool.release(done.copy.host_block_ids)
            if self.prefixes is not None and done.seq is not None:
                self.prefixes.name_full(done.seq)
        return done

    def _complete_out(self, done: CopyInFlight) -> None:
        copy = done.copy
        if self.prefixes is not None and done.seq is None:
            self.prefixes.label_host(copy.host_block_ids, done.labels)
            self.host_pool.release(copy.host_block_ids)
        elif self.prefixes is not None:
            self.prefixes.give_labels(copy.device_block_ids, done.labels)
        self.pool.release(copy.device_block_ids if self.prefixes is None else reversed(copy.device_block_ids))

    def _begin(
        self,
        seq: Sequence | None,
        direction: CopyDirection,
        device: tuple[BlockId, ...],
        host: tuple[HostBlockId, ...],
        labels: tuple[Label | None, ...] = (),
    ) -> BlockCopy:
        copy = BlockCopy(CopyId(self._num_copies), direction, device, host)
        self._num_copies += 1
        self.num_copied[direction] += len(device)
        self.in_flight[copy.copy_id] = CopyInFlight(seq, copy, labels)
        return copy
