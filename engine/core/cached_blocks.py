"""Blocks of one pool by name, and those of them that nobody uses: they are *kept* until somebody needs the room.

Evicted is what was used longest ago, first of owners that keep more than the floor, then of the others: who floods the
pool evicts what is his own. Nobody keeps more than the ceiling. The owner of a block is the tenant that computed it.
"""

from collections import OrderedDict, abc
from typing import Generic, NamedTuple, TypeVar

from engine.core.block_names import NO_NAME, BlockName
from engine.core.continuations import Continuations
from engine.core.ranking import Ranking
from engine.core.types import TenantId

Block = TypeVar("Block", bound=int)


class Label(NamedTuple):
    """What is known of a block's content. `token_ids` are those that it begins with, as far as they may be compared,
    and follow the block called `previous`. `is_full`: the name is that of a full block; else nobody shares it."""

    name: BlockName
    owner: TenantId
    previous: BlockName = NO_NAME
    token_ids: tuple[int, ...] = ()
    is_full: bool = True


class CachedBlocks(Generic[Block]):
    """Names of blocks, each of one block at most. Knows no references: `keep` and `take` are told when they end and
    begin.

    continuations       the blocks of which tokens are known
    min_kept, max_kept  floor and ceiling of one owner, in blocks
    version             is another one whenever a name was given or taken, or a block is kept or no longer
    num_evicted         since the beginning
    """

    def __init__(self, min_kept: int, max_kept: int) -> None:
        self.min_kept, self.max_kept = min_kept, max_kept
        self.num_kept = self.version = self.num_evicted = 0
        self.continuations: Continuations[Block] = Continuations()
        self._by_name: dict[BlockName, Block] = {}
        self._labels: dict[Block, Label] = {}
        self._kept: dict[TenantId, OrderedDict[Block, int]] = {}  # when it was kept, the longest ago first
        self._above_floor: Ranking[TenantId] = Ranking()
        self._within_floor: Ranking[TenantId] = Ranking()
        self._num_ticks = 0

    def __len__(self) -> int:
        """Blocks that have names."""
        return len(self._labels)

    @property
    def kept_ids(self) -> abc.Iterator[Block]:
        """The blocks that nobody uses, by owner."""
        for kept in self._kept.values():
            yield from kept

    @property
    def labels(self) -> abc.Iterable[tuple[Block, Label]]:
        """The blocks that have names."""
        return self._labels.items()

    def num_kept_of(self, owner: TenantId) -> int:
        return len(self._kept.get(owner, ()))

    def find(self, name: BlockName) -> Block | None:
        """The block of this name."""
        return self._by_name.get(name)

    def label(self, block_id: Block) -> Label | None:
        """None: the block has no name."""
        return self._labels.get(block_id)

    def is_kept(self, block_id: Block) -> bool:
        label = self._labels.get(block_id)
        return label is not None and block_id in self._kept.get(label.owner, ())

    def name(self, block_id: Block, label: Label) -> bool:
        """The block, which is used, has a name, and only that; False if another one has it, and nothing changes."""
        if label.name in self._by_name:
            return False
        self._unlabel(block_id)
        self._by_name[label.name] = block_id
        self._labels[block_id] = label
        if label.token_ids:
            self.continuations.put(label.previous, label.token_ids, block_id)
        self.version += 1
        return True

    def forget(self, block_id: Block) -> Label | None:
        """The block, which is used, has no name any more. Returns the one that it had."""
        label = self._unlabel(block_id)
        self.version += label is not None
        return label

    def keep(self, block_ids: abc.Iterable[Block]) -> list[Block]:
        """Nobody uses these blocks any more. Returns those that are free: without a name, or above a ceiling."""
        free: list[Block] = []
        owners: dict[TenantId, None] = {}
        for block_id in block_ids:
            label = self._labels.get(block_id)
            if label is None:
                free.append(block_id)
            else:
                owners[label.owner] = None
                self._num_ticks += 1
                self._kept.setdefault(label.owner, OrderedDict())[block_id] = self._num_ticks
                self.num_kept += 1
        for owner in owners:
            self._rank(owner)
            while self.num_kept_of(owner) > self.max_kept:
                free.append(self._take_oldest_of(owner)[0])
                self.num_evicted += 1
        self.version += bool(owners)
        return free

    def take(self, block_id: Block) -> None:
        """A kept block is used."""
        owner = self._labels[block_id].owner
        del self._kept[owner][block_id]
        self.num_kept -= 1
        self.version += 1
        self._rank(owner)

    def evict(self, num_blocks: int) -> list[Block]:
        """So many kept blocks are free; the caller has checked `num_kept`."""
        self.num_evicted += num_blocks
        return [block_id for block_id, _ in self.take_oldest(num_blocks)]

    def take_oldest(self, num_blocks: int) -> list[tuple[Block, Label]]:
        """So many blocks that would be evicted next are used, and have no name any more: with the one that each had."""
        taken = [self._take_oldest_of(self._next_owner()) for _ in range(num_blocks)]
        self.version += bool(taken)
        return taken

    def clear(self) -> list[Block]:
        """No block has a name. Returns those that were kept."""
        free = list(self.kept_ids)
        for owner in self._kept:
            self._above_floor.discard(owner)
            self._within_floor.discard(owner)
        self._kept.clear()
        self._labels.clear()
        self._by_name.clear()
        self.continuations.clear()
        self.num_kept = 0
        self.version += 1
        return free

    def _next_owner(self) -> TenantId:
        """Whose oldest block makes room next."""
        owner = self._above_floor.first()
        if owner is None:
            owner = self._within_floor.first()
        assert owner is not None, "more blocks are taken than are kept"
        return owner

    def _take_oldest_of(self, owner: TenantId) -> tuple[Block, Label]:
        block_id, _ = self._kept[owner].popitem(last=False)
        self.num_kept -= 1
        label = self._unlabel(block_id)
        assert label is not None, f"block {block_id} is kept without a name"
        self._rank(owner)
        return block_id, label

    def _unlabel(self, block_id: Block) -> Label | None:
        label = self._labels.pop(block_id, None)
        if label is not None:
            del self._by_name[label.name]
            if label.token_ids:
                self.continuations.discard(label.previous, label.token_ids, block_id)
        return label

    def _rank(self, owner: TenantId) -> None:
        """`owner` stands where the oldest of its kept blocks puts it."""
        kept = self._kept[owner]
        if not kept:
            del self._kept[owner]
            self._above_floor.discard(owner)
            self._within_floor.discard(owner)
            return
        is_above = len(kept) > self.min_kept
        ranking, other = self._above_floor, self._within_floor
        if not is_above:
            ranking, other = other, ranking
        other.discard(owner)
        ranking.put(owner, (next(iter(kept.values())),))
