"""Items under ranks that may change, lowest first. Deadlines here and the queues of policies are kept in it.

A binary heap with lazy deletion: an outdated entry stays until it surfaces or until outdated entries outnumber the
others, so each operation is amortized O(log n) and memory stays proportional to the number of items.
"""

import heapq
from typing import Generic, TypeVar

Item = TypeVar("Item")
Rank = tuple[float, ...]

MAX_OUTDATED = 64  # entries that a small ranking may carry before it is rebuilt


class Ranking(Generic[Item]):
    """Hashable items, each with one rank. Of two equal ranks the one put first comes first."""

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, Item]] = []
        self._entry_by_item: dict[Item, tuple[Rank, int, Item]] = {}
        self._num_puts = 0

    def __len__(self) -> int:
        return len(self._entry_by_item)

    def __contains__(self, item: Item) -> bool:
        return item in self._entry_by_item

    def put(self, item: Item, rank: Rank) -> None:
        """`item` has `rank` from now on, whether it was here before or not."""
        self._num_puts += 1
        entry = (rank, self._num_puts, item)
        self._entry_by_item[item] = entry
        heapq.heappush(self._heap, entry)
        self._compact()

    def discard(self, item: Item) -> None:
        """`item` is not here, whether it was or not."""
        if self._entry_by_item.pop(item, None) is not None:
            self._compact()

    def first(self) -> Item | None:
        """The item of lowest rank; None if there is none."""
        heap = self._heap
        while heap:
            entry = heap[0]
            if self._entry_by_item.get(entry[2]) is entry:
                return entry[2]
            heapq.heappop(heap)
        return None

    def rank_of(self, item: Item) -> Rank:
        """Raises KeyError if `item` is not here."""
        return self._entry_by_item[item][0]

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entry_by_item) + MAX_OUTDATED:
            self._heap = list(self._entry_by_item.values())
            heapq.heapify(self._heap)
