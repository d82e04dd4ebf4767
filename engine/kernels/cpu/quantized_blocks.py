"""Weights in the most frequent forms of GGUF, decoded by all threads: bit for bit the numbers that the forms define.

A block is 32 numbers: a float16 scale, in Q4_1 a float16 minimum behind it, then 4 or 8 bits for each number. The lower
halves of sixteen bytes are the first sixteen numbers of 4 bits, the upper halves the others. Source: ggml's
`dequantize_row_q4_0`, `_q4_1` and `_q8_0`.
"""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from engine.kernels.cpu.compiled import exact, exact_part
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait

NUMBERS_PER_BLOCK = 32
_HALF = NUMBERS_PER_BLOCK // 2
_GRAIN = 4096  # blocks that are taken at a time
_SCALE_BYTES = {"Q4_0": 2, "Q4_1": 4, "Q8_0": 2}

DECODED = frozenset(_SCALE_BYTES)
"""The forms that `decode` knows."""


def decode(blocks: NDArray[np.uint8], form: str) -> NDArray[np.float32]:
    """[n, 32], the numbers in blocks [n, bytes of a block] of one of the forms in DECODED."""
    begin = _SCALE_BYTES[form]
    scales = np.ascontiguousarray(blocks[:, :begin]).view(np.float16).astype(np.float32)
    numbers = np.empty((len(blocks), NUMBERS_PER_BLOCK), np.float32)
    num_threads = min(torch.get_num_threads(), 1 + len(blocks) // _GRAIN)
    run_together(num_threads, _kernel(form), counters(1), blocks[:, begin:], scales, numbers)
    return numbers


@cache
def _kernel(form: str) -> Any:
    decode_block = {"Q4_0": _q4_0, "Q4_1": _q4_1, "Q8_0": _q8_0}[form]

    def decode_all(phases: Any, quants: Any, scales: Any, numbers: Any) -> None:
        """quants [n, 16 or 32] uint8 · scales [n, 1 or 2] float32 · numbers [n, 32] float32, written."""
        num_blocks = len(numbers)
        begin = take(phases, 0, _GRAIN)
        while begin < num_blocks:
            end = min(num_blocks, begin + _GRAIN)
            for block in range(begin, end):
                decode_block(quants[block], scales[block], numbers[block])
            done(phases, 0, end - begin)
            begin = take(phases, 0, _GRAIN)
        wait(phases, 0, num_blocks)

    return exact(decode_all, form)


@exact_part
def _q4_0(quants: Any, scales: Any, numbers: Any) -> None:
    for index in range(_HALF):
        numbers[index] = scales[0] * np.float32(np.int32(quants[index] & 15) - 8)
        numbers[_HALF + index] = scales[0] * np.float32(np.int32(quants[index] >> 4) - 8)


@exact_part
def _q4_1(quants: Any, scales: Any, numbers: Any) -> None:
    for index in range(_HALF):
        numbers[index] = scales[0] * np.float32(quants[index] & 15) + scales[1]
        numbers[_HALF + index] = scales[0] * np.float32(quants[index] >> 4) + scales[1]


@exact_part
def _q8_0(quants: Any, scales: Any, numbers: Any) -> None:
    for index in range(NUMBERS_PER_BLOCK):
        numbers[index] = scales[0] * np.float32(np.int8(quants[index]))
