"""Prompt lookup: what followed the last time that a sequence said what it just said."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.kernels.cpu.compiled import part, unlocked


def continue_rows(
    token_ids: NDArray[np.int64],
    rows: NDArray[np.int64],
    ends: NDArray[np.int64],
    limits: NDArray[np.int64],
    shortest: int,
) -> NDArray[np.int64]:
    """Behind the tokens [0, end) of each row stand those that followed where its last ones stood before.

    token_ids [rows of the batch, W], written from each end on · rows, ends, limits [R]. Of the earlier places the one
    is taken where most of the last tokens stood alike, up to LONGEST, and the latest of such; none where fewer than
    `shortest` did. What follows there may be what is being written: a text that repeats itself goes on doing so.
    Returns [R], how many were written: the limit, or 0.
    Source: prompt lookup decoding (Saxena 2023); LLMA (Yang et al. 2023), §3.
    """
    counts = np.zeros(len(rows), dtype=np.int64)
    _kernel()(token_ids, rows, ends, limits, shortest, counts)
    return counts


LONGEST = 8  # tokens that are compared: so many agree by chance hardly ever


@part
def _place(tokens: Any, end: int, shortest: int) -> Any:
    """The index behind the best earlier place; 0 where there is none."""
    best, longest = 0, shortest - 1
    for last in range(end - 2, shortest - 2, -1):
        if tokens[last] == tokens[end - 1]:
            length = 1
            while length < LONGEST and length <= last and tokens[last - length] == tokens[end - 1 - length]:
                length += 1
            if length > longest:
                best, longest = last + 1, length
                if length == LONGEST:
                    break
    return best


def _continue_rows(token_ids: Any, rows: Any, ends: Any, limits: Any, shortest: int, counts: Any) -> None:
    for index in range(len(rows)):
        tokens, end = token_ids[rows[index]], ends[index]
        place = _place(tokens, end, shortest)
        if place > 0:
            for nth in range(limits[index]):
                tokens[end + nth] = tokens[place + nth]
            counts[index] = limits[index]


@cache
def _kernel() -> Any:
    return unlocked(_continue_rows)
