"""One uniform number per (seed, position), and nothing else: no state, no generator.

So a request with a seed draws the same numbers whatever shares its batch, however its prompt is chunked, and again
after a preemption. Source: the SplitMix64 finalizer (Steele et al. 2014), used as a hash.
"""

import numpy as np
from numpy.typing import NDArray

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_MANTISSA_BITS = 24  # what float32 holds exactly, so that no draw rounds up to 1


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float32]:
    """A number in [0, 1) for each pair."""
    bits = _mix(_mix(seeds + _GOLDEN_GAMMA) ^ _mix((positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA))
    return ((bits >> np.uint64(64 - _MANTISSA_BITS)) / np.float32(1 << _MANTISSA_BITS)).astype(np.float32)


def _mix(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * _MULTIPLIERS[0]
    bits = (bits ^ (bits >> np.uint64(27))) * _MULTIPLIERS[1]
    return bits ^ (bits >> np.uint64(31))
