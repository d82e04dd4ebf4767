"""Draws a token from each row of logits in two passes over it."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.compiled import part, unlocked
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.softmax import exponential
from engine.kernels.cpu.vectors import larger

_PIECE = 512  # tokens whose weights are added up before the place of the draw is looked for
_LOWEST = np.float32(-87.0)  # the exponential of what is less is no float32 any more


def draw(
    logits: Tensor, temperature: NDArray[np.float32], smallest: NDArray[np.float32], draws: NDArray[np.float32]
) -> Tensor:
    """Token ids [R] int64: where the distribution function, in order of token id, first passes `draws` [R] in [0, 1).

    logits [R, V] float32, finite · temperature [R], above 0 · smallest [R]: tokens with a smaller logit are not drawn
    """
    token_ids = torch.empty(len(logits), dtype=torch.int64)
    # Kernels divide by multiplying with the reciprocal, which is infinite for what is smaller.
    by = np.maximum(temperature, np.finfo(np.float32).tiny)
    num_threads = min(torch.get_num_threads(), len(logits))
    rows = logits.contiguous().numpy()
    run_together(num_threads, _draw, counters(1), rows, by, smallest, draws, token_ids.numpy())
    return token_ids


@part
def _place(weights: Any, sums: Any, drawn: Any) -> Any:
    """The first token at which the sum of weights passes `drawn` of the whole; one that has no weight never is."""
    target, before, piece = drawn * np.sum(sums), 0.0, 0
    last = len(sums) - 1
    while last > 0 and sums[last] == 0:
        last -= 1
    while piece < last and before + sums[piece] <= target:
        before += sums[piece]
        piece += 1
    place = piece * _PIECE
    for index in range(piece * _PIECE, min((piece + 1) * _PIECE, len(weights))):
        if weights[index] > 0:
            place = index
            before += weights[index]
            if before > target:
                break
    return place


@unlocked
def _draw(phases: Any, logits: Any, temperature: Any, smallest: Any, draws: Any, token_ids: Any) -> None:
    size = logits.shape[1]
    weights, sums = np.empty(size, np.float32), np.empty((size + _PIECE - 1) // _PIECE, np.float64)
    row = take(phases, 0, 1)
    while row < len(logits):
        _weigh(logits[row], temperature[row], smallest[row], weights, sums)
        token_ids[row] = _place(weights, sums, draws[row])
        done(phases, 0, 1)
        row = take(phases, 0, 1)
    wait(phases, 0, len(logits))


@part
def _weigh(values: Any, temperature: Any, smallest: Any, weights: Any, sums: Any) -> None:
    """Of each token what it weighs, and of each piece what its tokens do."""
    largest = values[0]
    for index in range(len(values)):
        largest = larger(largest, values[index])
    for piece in range(len(sums)):
        total = np.float32(0)
        for index in range(piece * _PIECE, min((piece + 1) * _PIECE, len(values))):
            scaled = (values[index] - largest) / temperature
            is_kept = values[index] >= smallest and scaled >= _LOWEST
            weight = exponential(scaled) if is_kept else np.float32(0)
            weights[index] = weight
            total += weight
        sums[piece] = total
