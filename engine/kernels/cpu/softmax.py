"""The exponentials of a softmax, in a form that compiles to vector code: no call of a library in the loop."""

from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import inlined, part
from engine.kernels.cpu.vectors import larger, power_of_two, smaller

_ZERO = np.float32(0)
LOWEST_SCORE = np.float32(-np.inf)
_LOG2_E = np.float32(1.4426950408889634)
_LOWEST, _HIGHEST = np.float32(-126.0), np.float32(127.0)  # exponents of float32
# 2 to the power of x on [0, 1), by the least largest relative error, 2e-7 at this degree: one float32 rounding.
_C5, _C4, _C3, _C2, _C1, _C0 = (
    np.float32(each) for each in (1.8775767e-3, 8.9893397e-3, 5.5826318e-2, 2.4015361e-1, 6.9315308e-1, 9.9999994e-1)
)


@inlined
def exponential(x: Any) -> Any:
    """e to the power of x; what float32 cannot hold is about the smallest or the largest that it can."""
    power = smaller(larger(x * _LOG2_E, _LOWEST), _HIGHEST)
    whole = np.floor(power)
    rest = power - whole
    series = ((((_C5 * rest + _C4) * rest + _C3) * rest + _C2) * rest + _C1) * rest + _C0
    return series * power_of_two(np.int32(whole))


@part
def exponentials(row: Any, begin: int, end: int) -> Any:
    """Replaces the scores [begin, end) by the exponentials of their distance to the largest, the others by 0; their
    sum."""
    _, total = next_exponentials(row, begin, end, LOWEST_SCORE)
    return total


@part
def next_exponentials(row: Any, begin: int, end: int, largest: Any) -> Any:
    """The same with a row that others came before, whose largest score is given: what is the largest now, and the
    sum."""
    row[:begin] = _ZERO
    row[end:] = _ZERO
    scores = row[begin:end]  # indices from 0 on are known to be none from behind, so that loops become vector code
    for index in range(len(scores)):
        largest = larger(largest, scores[index])
    total = _ZERO
    for index in range(len(scores)):
        weight = exponential(scores[index] - largest)
        scores[index] = weight
        total += weight
    return largest, total
