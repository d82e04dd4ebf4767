"""The rows of the runner's batch: which are free, and which the runner has still to be told to forget."""

import heapq


class Rows:
    """`num_rows` rows from 0 on. The lowest free row is taken first, so that the batch stays dense."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self._free = list(range(num_rows))
        self._stopped: list[int] = []

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A row that nobody has. The caller has checked `num_free`."""
        return heapq.heappop(self._free)

    def stop(self, row: int) -> None:
        """`row` is free; the next plan tells the runner."""
        heapq.heappush(self._free, row)
        self._stopped.append(row)

    def take_stopped(self) -> tuple[int, ...]:
        """The rows stopped since the last call."""
        stopped = tuple(self._stopped)
        self._stopped.clear()
        return stopped
