"""What every step asks of its logits, row by row: which is the largest, and whether all of them are finite."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.compiled import unlocked
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.vectors import larger

_LARGEST = np.finfo(np.float32).max
_PIECE = 64  # logits that are looked at as vectors before the place of the largest is looked for


def likeliest(logits: Tensor) -> Tensor:
    """[R] int64: the first of the largest of each row. logits [R, V] float32; a row that is not finite gets any."""
    token_ids = torch.empty(len(logits), dtype=torch.int64)
    run_together(_threads(logits), _likeliest, counters(1), logits.contiguous().numpy(), token_ids.numpy())
    return token_ids


def finite_rows(logits: Tensor) -> Tensor:
    """[R] bool: whether all of a row are finite. logits [R, V] float32."""
    are_finite = torch.empty(len(logits), dtype=torch.bool)
    run_together(_threads(logits), _finite_rows, counters(1), logits.contiguous().numpy(), are_finite.numpy())
    return are_finite


def _threads(logits: Tensor) -> int:
    """No more than have rows to themselves: waking one takes as long as a row."""
    return min(torch.get_num_threads(), 1 + len(logits) // 4)


@unlocked
def _likeliest(phases: Any, logits: Any, token_ids: Any) -> None:
    row = take(phases, 0, 1)
    while row < len(logits):
        values = logits[row]
        largest, place = values[0], 0
        for begin in range(0, len(values), _PIECE):
            piece = values[begin : begin + _PIECE]
            highest = piece[0]
            for index in range(len(piece)):
                highest = larger(highest, piece[index])  # a comparison would be made one by one
            if highest > largest or begin == 0:
                largest, place = highest, begin
        for index in range(place, min(place + _PIECE, len(values))):
            if values[index] == largest:
                place = index
                break
        token_ids[row] = place
        done(phases, 0, 1)
        row = take(phases, 0, 1)
    wait(phases, 0, len(logits))


@unlocked
def _finite_rows(phases: Any, logits: Any, are_finite: Any) -> None:
    row = take(phases, 0, 1)
    while row < len(logits):
        values, num_finite = logits[row], 0
        for index in range(len(values)):
            num_finite += abs(values[index]) <= _LARGEST  # what is no number is not
        are_finite[row] = num_finite == len(values)
        done(phases, 0, 1)
        row = take(phases, 0, 1)
    wait(phases, 0, len(logits))
