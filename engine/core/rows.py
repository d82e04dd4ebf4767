"""The rows of the runner's batch: which are free, which the runner knows, which it has still to be told to forget."""

import heapq
from collections import abc


class Rows:
    """`num_rows` rows from 0 on. The lowest free row is taken first, so that the batch stays dense.

    The runner *knows* a row, its tokens and blocks, from the first plan that computes something in it until it is told
    that the row is stopped.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows))
        self.known: set[int] = set()
        self._stopped: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A row that nobody has. The caller has checked `num_free`."""
        return heapq.heappop(self._free)

    def stop(self, row: int) -> None:
        """`row` is free; the next plan tells the runner, if it knows it."""
        heapq.heappush(self._free, row)
        if row in self.known:
            self.known.remove(row)
            self._stopped.append(row)

    def tell(self, started: abc.Iterable[int]) -> tuple[int, ...]:
        """A plan tells the runner of these rows, and of those that were stopped since the last one: the latter."""
        stopped = tuple(self._stopped)
        self._stopped.clear()
        self.known.update(started)
        return stopped
