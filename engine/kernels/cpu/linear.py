"""A product by itself, for what is no part of a layer, such as the head."""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.compiled import elements, unlocked
from engine.kernels.cpu.judged_products import judged
from engine.kernels.cpu.panels import Panels
from engine.kernels.cpu.products import TILE_ROWS, WIDTH, pairs_per_item, rows_code, stored
from engine.kernels.cpu.rows import encode_part
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.vectors import widen

Found = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]
"""Of each item of a product and each row: the largest, its column, and how many were finite. [items, T] each."""

_NOTHING: Found = (np.empty((0, 0), np.float32), np.empty((0, 0), np.int64), np.empty((0, 0), np.int64))


def multiply(x: Tensor, panels: Panels, dtype: torch.dtype | None = None) -> Tensor:
    """x [T, num_inputs], float32 or bfloat16, times the weight's transpose, plus the bias: [T, num_columns] in `dtype`,
    or in x's."""
    product = torch.empty((len(x), panels.num_columns), dtype=dtype or x.dtype)
    _run(x, panels, elements(product), _NOTHING)
    return product


def largest_products(x: Tensor, panels: Panels) -> tuple[Tensor, Tensor]:
    """Of each row of what `multiply` gives in float32, the first column of the largest [T] int64, any where not all are
    finite; and whether all are [T] bool. T > 0."""
    num_pairs = panels.num_panels // 2
    shape = (-(-num_pairs // _pairs_per_item(num_pairs)), len(x))
    found = np.empty(shape, np.float32), np.empty(shape, np.int64), np.empty(shape, np.int64)
    _run(x, panels, np.empty((0, panels.num_columns), np.float32), found)
    numbers, columns, num_finite = found
    item = numbers.argmax(0)  # the first of them, and items are in the order of their columns
    is_finite = num_finite.sum(0) == num_pairs * WIDTH
    return torch.from_numpy(columns[item, np.arange(len(x))]), torch.from_numpy(is_finite)


def _run(x: Tensor, panels: Panels, target: NDArray[Any], found: Found) -> None:
    per_word = panels.precision.value
    run_together(
        torch.get_num_threads(),
        _kernel(per_word),
        counters(2),
        elements(x.contiguous()),
        np.zeros((len(x), panels.num_words), np.int32),
        np.ones(len(x), np.float32),
        (panels.num_panels, panels.num_words, tuple(panels.addresses().tolist()), rows_code(per_word)),
        target,
        found,
    )


def _pairs_per_item(num_pairs: int) -> int:
    count: int = pairs_per_item.py_func(num_pairs)
    return count


@cache
def _kernel(per_word: int) -> Any:
    """Rows are encoded, then multiplied. Whether products are kept or judged, they are those of the same code: one
    kernel for both, so that their bits are the same."""
    encode, store, judge = encode_part(per_word), stored(), judged()

    def product(phases: Any, values: Any, rows: Any, scales: Any, weight: Any, target: Any, found: Any) -> None:
        """values [T, K] float32 or bfloat16 · rows [T, words] int32 and scales [T], written · target [T, N], or [0, N]
        where it is only to be found out which are the largest."""
        tile = np.empty((TILE_ROWS, WIDTH), np.float32)
        row_values = np.empty(values.shape[1], np.float32)
        begin = take(phases, 0, 1)
        while begin < len(values):
            for index in range(len(row_values)):
                row_values[index] = widen(values[begin, index])
            encode(row_values, rows[begin], scales, begin)
            done(phases, 0, 1)
            begin = take(phases, 0, 1)
        wait(phases, 0, len(values))
        if len(target) == len(values):
            store(phases, 1, rows, scales, weight, target, tile)
        else:
            judge(phases, 1, rows, scales, weight, target.shape[1], found, tile)

    return unlocked(product, per_word)
