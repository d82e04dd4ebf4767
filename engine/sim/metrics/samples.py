"""Durations by owner, and their percentiles: exact up to a limit, then rounded to a few significant bits, so that
memory grows with the number of owners and not with the number of samples (the idea of HdrHistogram, sparse)."""

from array import array
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

EXACT_LIMIT = 262_144
FIRST_BITS = 8  # an error of at most 0.2 %
LAST_BITS = 5  # 1.6 %

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Distribution:
    """Values in rising order, and how often each was seen."""

    values: Ints
    counts: Ints

    @property
    def num_samples(self) -> int:
        return int(self.counts.sum())

    def percentile(self, percent: float) -> int | None:
        """The smallest value that at least `percent` of the samples do not exceed; None without samples."""
        cumulative = np.cumsum(self.counts)
        if not len(cumulative):
            return None
        rank = max(1, int(np.ceil(percent / 100 * cumulative[-1] - 1e-9)))
        return int(self.values[np.searchsorted(cumulative, rank)])

    def mean(self) -> float | None:
        """None without samples."""
        total = int(self.counts.sum())
        return float(np.dot(self.values, self.counts)) / total if total else None


class Samples:
    """Written by the recorder, one value at a time; `owner` is any small whole number."""

    def __init__(self, exact_limit: int = EXACT_LIMIT) -> None:
        self._owners = array("q")
        self._values = array("q")
        self._counts = array("q")
        self._limit = exact_limit
        self._bits: int | None = None

    def add(self, owner: int, value: int, count: int = 1) -> None:
        """`value` is at least 0."""
        self._owners.append(owner)
        self._values.append(value)
        self._counts.append(count)
        if len(self._values) >= self._limit:
            self._fold()

    @property
    def significant_bits(self) -> int | None:
        """To which values were rounded; None while they are exact."""
        return self._bits

    def of(self, is_included: npt.NDArray[np.bool_]) -> Distribution:
        """The samples of the owners for which `is_included[owner]`."""
        owners, values, counts = self._arrays()
        chosen = is_included[owners]
        return _distribution(values[chosen], counts[chosen])

    def all(self) -> Distribution:
        """Everyone's."""
        _, values, counts = self._arrays()
        return _distribution(values, counts)

    def _arrays(self) -> tuple[Ints, Ints, Ints]:
        owners, values, counts = (
            np.array(column, dtype=np.int64) for column in (self._owners, self._values, self._counts)
        )
        return owners, values, counts

    def _fold(self) -> None:
        """Rounds all values, merges equal ones, and rounds more next time where that saved too little."""
        owners, values, counts = self._arrays()
        self._bits = FIRST_BITS if self._bits is None else self._bits
        rounded = _rounded(values, self._bits)
        order = np.lexsort((rounded, owners))
        owners, rounded, counts = owners[order], rounded[order], counts[order]
        is_first = np.ones(len(owners), dtype=bool)
        is_first[1:] = (np.diff(owners) != 0) | (np.diff(rounded) != 0)
        starts = np.flatnonzero(is_first)
        self._owners = array("q", owners[starts].tobytes())
        self._values = array("q", rounded[starts].tobytes())
        self._counts = array("q", np.add.reduceat(counts, starts).tobytes())
        if len(starts) > self._limit // 2:
            self._bits = max(LAST_BITS, self._bits - 1)
            self._limit = max(self._limit, 2 * len(starts))


def _rounded(values: Ints, bits: int) -> Ints:
    """To the middle of the values that share the first `bits` bits. Rounding twice changes nothing."""
    exponents = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(exponents - bits, 0)
    middle: Ints = ((values >> shift) << shift) + ((np.int64(1) << shift) >> 1)
    return middle


def _distribution(values: Ints, counts: Ints) -> Distribution:
    order = np.argsort(values, kind="stable")
    return Distribution(values[order], counts[order])
