"""Amounts by window of time and owner: service over time, in memory that stays bounded however long the run is."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

OWNER_BITS = 24
OWNER_MASK = (1 << OWNER_BITS) - 1
MAX_FRESH = 65_536
MAX_CELLS = 1_000_000
MAX_WINDOWS = 4_096

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def sums_by(places: Ints, amounts: Floats, num_places: int) -> Floats:
    """The sum of the amounts at each place."""
    sums: Floats = np.bincount(places, amounts, minlength=num_places).astype(np.float64, copy=False)
    return sums


@dataclass(frozen=True, slots=True)
class Cells:
    """Sparse, sorted by window and then by owner."""

    window_ns: int
    windows: Ints
    owners: Ints
    amounts: Floats

    def totals(self, first: int, end: int, num_owners: int) -> Floats:
        """Each owner's amount in windows [first, end)."""
        low, high = np.searchsorted(self.windows, (first, end))
        return sums_by(self.owners[low:high], self.amounts[low:high], num_owners)

    @property
    def num_windows(self) -> int:
        return int(self.windows[-1]) + 1 if len(self.windows) else 0


class WindowTable:
    """Written by the recorder. The windows double where there would be too many of them, or of the cells."""

    def __init__(self, window_ns: int) -> None:
        self.window_ns = window_ns
        self._fresh: dict[int, float] = {}
        self._keys: Ints = np.zeros(0, dtype=np.int64)
        self._amounts: Floats = np.zeros(0)

    def add(self, at_ns: int, owner: int, amount: float) -> None:
        """`amount` at one moment."""
        key = at_ns // self.window_ns << OWNER_BITS | owner
        fresh = self._fresh
        fresh[key] = fresh.get(key, 0.0) + amount
        if len(fresh) > MAX_FRESH:
            self._fold()

    def spread(self, since_ns: int, until_ns: int, owner: int, amount: float) -> None:
        """`amount` evenly over [since, until]."""
        first, last = since_ns // self.window_ns, until_ns // self.window_ns
        if first == last or until_ns <= since_ns:
            self.add(until_ns, owner, amount)
            return
        width, rate = self.window_ns, amount / (until_ns - since_ns)
        for window in range(first, last + 1):
            begin, end = max(since_ns, window * width), min(until_ns, (window + 1) * width)
            self.add(begin, owner, rate * (end - begin))

    def cells(self, window_ns: int | None = None) -> Cells:
        """Everything so far, in windows of that width (a power of two times ours), ours by default."""
        self._fold()
        while window_ns is not None and self.window_ns < window_ns:
            self._double()
        return Cells(self.window_ns, self._keys >> OWNER_BITS, self._keys & OWNER_MASK, self._amounts)

    def _fold(self) -> None:
        keys = np.fromiter(self._fresh.keys(), dtype=np.int64, count=len(self._fresh))
        amounts = np.fromiter(self._fresh.values(), dtype=np.float64, count=len(self._fresh))
        self._fresh.clear()
        self._merge(np.concatenate((self._keys, keys)), np.concatenate((self._amounts, amounts)))
        while len(self._keys) > MAX_CELLS or (len(self._keys) and self._keys[-1] >> OWNER_BITS >= MAX_WINDOWS):
            if not self._keys[-1] >> OWNER_BITS:
                break  # one window holds it all
            self._double()

    def _double(self) -> None:
        self.window_ns *= 2
        windows, owners = self._keys >> OWNER_BITS, self._keys & OWNER_MASK
        self._merge(windows // 2 << OWNER_BITS | owners, self._amounts)

    def _merge(self, keys: Ints, amounts: Floats) -> None:
        self._keys, places = np.unique(keys, return_inverse=True)
        self._amounts = sums_by(places, amounts, len(self._keys))
