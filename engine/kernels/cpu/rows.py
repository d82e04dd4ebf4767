"""The rows that products read, in words of 32 bits: rounded to the precision of the weights, row by row.

An 8-bit row has a scale of its own, so it does not depend on what stands beside it. A row that is not finite has a
scale that is not, and so has all that is computed from it.
"""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import inlined, part
from engine.kernels.cpu.panels import LARGEST
from engine.kernels.cpu.softmax import exponential
from engine.kernels.cpu.tile_code import ZERO_POINT
from engine.kernels.cpu.vectors import larger, narrow, widen

_ONE, _ZERO = np.float32(1), np.float32(0)
_LARGEST = np.float32(LARGEST)
_MIDDLE = np.float32(ZERO_POINT + 0.5)  # what is cut off at the point is then rounded to the nearest
_BFLOAT16 = np.uint16(0)


@cache
def encode_part(per_word: int) -> Any:
    """What stores float32 numbers as a row of words [words] int32, and its scale."""
    return {1: _store_float32, 2: _store_bfloat16, 4: _store_bytes}[per_word]


@part
def _store_float32(values: Any, words: Any, scales: Any, row: int) -> None:
    stored = words.view(np.float32)
    for index in range(len(values)):
        stored[index] = values[index]


@part
def store_bfloat16(values: Any, words: Any) -> None:
    """The first of `words` become float32 numbers, rounded, two to a word."""
    stored = words.view(np.uint16)
    for index in range(len(values)):
        stored[index] = narrow(values[index], _BFLOAT16)
    if len(values) % 2:
        stored[len(values)] = _BFLOAT16  # a weight of zero times what is no number would be none


@part
def _store_bfloat16(values: Any, words: Any, scales: Any, row: int) -> None:
    store_bfloat16(values, words)


@part
def _store_bytes(values: Any, words: Any, scales: Any, row: int) -> None:
    largest = _ZERO
    for index in range(len(values)):
        largest = larger(largest, abs(values[index]))
    scales[row] = largest / _LARGEST
    factor = _LARGEST / largest if largest > _ZERO else _ZERO
    stored = words.view(np.uint8)
    for index in range(len(values)):
        stored[index] = np.uint8(np.int32(values[index] * factor + _MIDDLE))


@part
def norm_row(stream: Any, weight: Any, eps: Any, normed: Any) -> None:
    """normed [E] float32 becomes the norm of stream [E]."""
    total = _ZERO
    for index in range(len(stream)):
        total += stream[index] * stream[index]
    scale = _ONE / np.sqrt(total / np.float32(len(stream)) + eps)
    for index in range(len(stream)):
        normed[index] = stream[index] * scale * weight[index]


@part
def norm_heads(heads: Any, weights: Any, eps: Any) -> None:
    """The first heads of `heads` [., D] become their norms; weights [heads to norm, D]."""
    size = heads.shape[1]
    for head in range(len(weights)):
        total = _ZERO
        for index in range(size):
            number = widen(heads[head, index])
            total += number * number
        scale = _ONE / np.sqrt(total / np.float32(size) + eps)
        for index in range(size):
            heads[head, index] = narrow(widen(heads[head, index]) * scale * weights[head, index], heads[0, 0])


@inlined
def gated(gate: Any, up: Any) -> Any:
    """silu(gate) * up, of two float32."""
    return gate / (_ONE + exponential(-gate)) * up
