"""Block ids and their reference counts, of one pool. Knows nothing of sequences, tokens or tensors.

Free blocks are handed out in the order in which they became free, and then those that a cache only keeps.
"""

from collections import Counter, abc, deque
from typing import Generic, TypeVar

from engine.core.cached_blocks import CachedBlocks, Label

Block = TypeVar("Block", bound=int)


class BlockPool(Generic[Block]):
    """The ids in `block_ids`, from 0 on. A block is free, or kept by `cache`, exactly when its reference count is 0.

    num_shared  references beyond the first, over all blocks
    """

    def __init__(self, block_ids: abc.Iterable[Block], cache: CachedBlocks[Block] | None = None) -> None:
        self._free = deque(block_ids)
        self._reference_counts = [0] * len(self._free)
        self._cache = cache
        self.num_shared = 0

    @property
    def num_blocks(self) -> int:
        return len(self._reference_counts)

    @property
    def num_free(self) -> int:
        """Blocks that may be taken: those that are kept make room."""
        return len(self._free) if self._cache is None else len(self._free) + self._cache.num_kept

    @property
    def num_empty(self) -> int:
        """Blocks that are free and not kept."""
        return len(self._free)

    @property
    def free_ids(self) -> abc.Iterable[Block]:
        """The free blocks, next one first; none that is kept."""
        return self._free

    def reference_count(self, block_id: Block) -> int:
        return self._reference_counts[block_id]

    def num_unshared(self, block_ids: abc.Sequence[Block]) -> int:
        """How many of these blocks have one reference only."""
        if not self.num_shared:
            return len(block_ids)
        counts = self._reference_counts
        return sum([counts[block_id] == 1 for block_id in block_ids])

    def num_freed(self, block_ids: abc.Sequence[Block]) -> int:
        """How many blocks nobody has once all these references are given up."""
        if not self.num_shared:
            return len(block_ids)
        return sum([self._reference_counts[block_id] == num for block_id, num in Counter(block_ids).items()])

    def allocate(self, num_blocks: int) -> list[Block]:
        """Take `num_blocks` free blocks, each with one reference. The caller has checked `num_free`."""
        if self._cache is not None and num_blocks > len(self._free):
            self._free.extend(self._cache.evict(num_blocks - len(self._free)))
        take, counts = self._free.popleft, self._reference_counts
        block_ids = []
        for _ in range(num_blocks):
            block_id = take()
            counts[block_id] = 1
            block_ids.append(block_id)
        return block_ids

    def share(self, block_ids: abc.Iterable[Block]) -> None:
        """Each of these blocks, none of them free, has one reference more; kept ones are used."""
        counts = self._reference_counts
        for block_id in block_ids:
            if counts[block_id]:
                self.num_shared += 1
            else:
                cache = self._cache
                assert cache is not None, f"block {block_id} is free and cannot be shared"
                assert cache.is_kept(block_id), f"block {block_id} is free and cannot be shared"
                cache.take(block_id)
            counts[block_id] += 1

    def release(self, block_ids: abc.Iterable[Block]) -> None:
        """Each of these blocks has one reference less, and is free if that was the last, or kept if it has a name."""
        counts, freed = self._reference_counts, []
        if not self.num_shared:
            for block_id in block_ids:
                assert counts[block_id] == 1, f"block {block_id} was released twice"
                counts[block_id] = 0
                freed.append(block_id)
        else:
            for block_id in block_ids:
                count = counts[block_id] - 1
                assert count >= 0, f"block {block_id} was released twice"
                counts[block_id] = count
                if count:
                    self.num_shared -= 1
                else:
                    freed.append(block_id)
        self._free.extend(freed if self._cache is None else self._cache.keep(freed))

    def take_kept(self, num_blocks: int) -> list[tuple[Block, Label]]:
        """The kept blocks that would be evicted next, each with one reference and no name, and the one that it had."""
        taken = [] if self._cache is None else self._cache.take_oldest(num_blocks)
        for block_id, _ in taken:
            self._reference_counts[block_id] = 1
        return taken

    def forget_cached(self) -> None:
        """No block has a name; those that were kept are free."""
        if self._cache is not None:
            self._free.extend(self._cache.clear())
