"""The KV blocks of each sequence, on the device and on the host: the only writer of block tables and user of the pools.

    free      in neither table nor copy; may be taken
    in use    in a table
    fenced    left its table, but a copy reads it: neither free nor usable until the copy is complete

Source of blocks: Kwon et al. 2023 (PagedAttention), §4; of the fence: three public engines freed a block before its
copy had ended, and served one request the keys of another.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.block_pool import BlockPool
from engine.core.plan import BlockCopy, CopyDirection
from engine.core.sequence import BlockTable, Sequence
from engine.core.types import BlockId, CopyId, HostBlockId


@dataclass(frozen=True, slots=True)
class CopyInFlight:
    """A copy that has begun, and the sequence whose blocks it moves."""

    seq: Sequence
    copy: BlockCopy


class BlockManager:
    """Pools of `num_blocks` device and `num_host_blocks` host blocks that hold `block_size` tokens each.

    The number of device blocks of each flow is kept in the flow. `in_flight` are the copies that have begun.
    """

    def __init__(self, num_blocks: int, block_size: int, num_host_blocks: int = 0) -> None:
        self.pool: BlockPool[BlockId] = BlockPool(map(BlockId, range(num_blocks)))
        self.host_pool: BlockPool[HostBlockId] = BlockPool(map(HostBlockId, range(num_host_blocks)))
        self.in_flight: dict[CopyId, CopyInFlight] = {}
        self.num_fenced = 0
        self._block_size = block_size
        self._num_copies = 0
        self.num_copied = dict.fromkeys(CopyDirection, 0)

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._block_size)

    def capacity(self, table: BlockTable) -> int:
        """Tokens that the device blocks of `table` hold."""
        return len(table.device) * self._block_size

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

    def grow(self, seq: Sequence, num_tokens: int) -> None:
        """The table of `seq` holds at least `num_tokens` tokens. The caller has checked that the blocks are free."""
        table = seq.block_table
        num_missing = self.num_blocks(num_tokens) - len(table.device)
        if num_missing > 0:
            table.device += self.pool.allocate(num_missing)
            seq.flow.num_device_blocks += num_missing

    def grow_by_one(self, seqs: abc.Sequence[Sequence]) -> None:
        """Each of `seqs` in turn, which may name one more than once, has a block more. So many are free."""
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
        seq.flow.num_device_blocks -= len(table.device)
        self.pool.release(reversed(table.device))
        table.device.clear()
        if table.host:
            self.host_pool.release(reversed(table.host))
            table.host.clear()

    def swap_out(self, seq: Sequence, num_blocks: int) -> BlockCopy:
        """A copy of the last `num_blocks` device blocks, which are movable, to the host has begun. They are fenced."""
        table = seq.block_table
        device = tuple(table.device[-num_blocks:])
        host = self.host_pool.allocate(num_blocks)
        del table.device[-num_blocks:]
        table.host[:0] = host
        seq.flow.num_device_blocks -= num_blocks
        self.num_fenced += num_blocks
        return self._begin(seq, CopyDirection.OUT, device, tuple(host))

    def swap_in(self, seq: Sequence) -> BlockCopy:
        """A copy of all host blocks to the device has begun. The caller has checked that as many are free."""
        table = seq.block_table
        host = tuple(table.host)
        device = self.pool.allocate(len(host))
        table.device += device
        table.host.clear()
        seq.flow.num_device_blocks += len(host)
        return self._begin(seq, CopyDirection.IN, tuple(device), host)

    def complete(self, copy_id: CopyId) -> CopyInFlight:
        """The copy is complete: what it read from is free. Raises KeyError if it is not in flight."""
        done = self.in_flight.pop(copy_id)
        if done.copy.direction is CopyDirection.OUT:
            self.pool.release(done.copy.device_block_ids)
            self.num_fenced -= len(done.copy.device_block_ids)
        else:
            self.host_pool.release(done.copy.host_block_ids)
        return done

    def _begin(
        self, seq: Sequence, direction: CopyDirection, device: tuple[BlockId, ...], host: tuple[HostBlockId, ...]
    ) -> BlockCopy:
        copy = BlockCopy(CopyId(self._num_copies), direction, device, host)
        self._num_copies += 1
        self.num_copied[direction] += len(device)
        self.in_flight[copy.copy_id] = CopyInFlight(seq, copy)
        return copy
