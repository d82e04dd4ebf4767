"""The KV blocks of each sequence: the only writer of block tables and the only user of the pool.

Tables are append-only until they are freed as a whole. Source: Kwon et al. 2023 (PagedAttention), §4.
"""

from engine.core.block_pool import BlockPool
from engine.core.sequence import BlockTable, Sequence


class BlockManager:
    """A pool of `num_blocks` blocks that hold `block_size` tokens each."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks)
        self._block_size = block_size

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self._block_size)

    def capacity(self, table: BlockTable) -> int:
        """Tokens that the blocks of `table` hold."""
        return len(table.device) * self._block_size

    def max_capacity(self, table: BlockTable) -> int:
        """Tokens that `table` would hold with every free block added."""
        return (len(table.device) + self.pool.num_free) * self._block_size

    def has_room(self, seq: Sequence) -> bool:
        """True if the next token of `seq` to be computed has a block, or there is a free one for it."""
        return seq.num_computed_tokens < self.max_capacity(seq.block_table)

    def grow(self, table: BlockTable, num_tokens: int) -> None:
        """`table` holds at least `num_tokens` tokens. The caller has checked `max_capacity`."""
        num_missing = self.num_blocks(num_tokens) - len(table.device)
        if num_missing > 0:
            table.device += self.pool.allocate(num_missing)

    def free(self, table: BlockTable) -> None:
        """`table` is empty. The last blocks are freed first, as the head of a sequence is likeliest to be met again."""
        self.pool.release(reversed(table.device))
        table.device.clear()
