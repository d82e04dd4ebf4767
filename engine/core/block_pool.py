"""Block ids and their reference counts, of one pool. Knows nothing of sequences, tokens or tensors.

Free blocks are handed out in the order in which they became free.
"""

from collections import abc, deque
from typing import Generic, TypeVar

Block = TypeVar("Block", bound=int)


class BlockPool(Generic[Block]):
    """The ids in `block_ids`, from 0 on. A block is free exactly when its reference count is 0.

    num_shared  references beyond the first, over all blocks
    """

    def __init__(self, block_ids: abc.Iterable[Block]) -> None:
        self._free = deque(block_ids)
        self._reference_counts = [0] * len(self._free)
        self.num_shared = 0

    @property
    def num_blocks(self) -> int:
        return len(self._reference_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def free_ids(self) -> abc.Iterable[Block]:
        """The free blocks, next one first."""
        return self._free

    def reference_count(self, block_id: Block) -> int:
        return self._reference_counts[block_id]

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take `num_blocks` free blocks, each with one reference. The caller has checked `num_free`."""
        take, counts = self._free.popleft, self._reference_counts
        block_ids = []
        for _ in range(num_blocks):
            block_id = take()
            counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def share(self, block_ids: abc.Iterable[Block]) -> None:
        """Each of these blocks, none of them free, has one reference more."""
        for block_id in block_ids:
            assert self._reference_counts[block_id] > 0, f"block {block_id} is free and cannot be shared"
            self._reference_counts[block_id] += 1
            self.num_shared += 1

    def release(self, block_ids: abc.Iterable[Block]) -> None:
        """Each of these blocks has one reference less, and is free if that was the last."""
        counts, freed = self._reference_counts, []
        if not self.num_shared:
            for block_id in block_ids:
                assert counts[block_id] == 1, f"block {block_id} was released twice"
                counts[block_id] = 0
                freed.append(block_id)
            self._free.extend(freed)
            return
        for block_id in block_ids:
            count = counts[block_id] - 1
            assert count >= 0, f"block {block_id} was released twice"
            counts[block_id] = count
            if count:
                self.num_shared -= 1
            else:
                freed.append(block_id)
        self._free.extend(freed)
