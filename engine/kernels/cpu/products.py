"""Products of some rows with a packed weight, shared out by pairs of panels among the threads of a step.

A pair is one item: its weights are read once from memory and stay in the nearest cache for all the rows. What happens
to a product is part of the item, while it is still there: it is stored, or added to the residual stream, or becomes the
gated product of two halves.
"""

from functools import cache
from typing import Any

from llvmlite.binding import get_host_cpu_features
from numba import types

from engine.kernels.cpu.compiled import address_of, inlined, part
from engine.kernels.cpu.rows import gated
from engine.kernels.cpu.shared_work import done, take, wait
from engine.kernels.cpu.tile_code import LANES, NUM_ARGUMENTS, call_code, multiply_tile
from engine.kernels.cpu.vectors import narrow

WIDTH = 2 * LANES
"""Columns of a pair."""

_ITEMS_PER_PHASE = 32  # about: fewer leave threads waiting at the end, more cost their counting
TILE_ROWS = 12 if get_host_cpu_features().get("avx512f") else 4
"""Rows whose sums stay in registers; with two panels they take 24 of 32."""


@inlined
def pairs_per_item(num_pairs: int) -> Any:
    """How many are taken at a time."""
    return 1 + num_pairs // _ITEMS_PER_PHASE


@part
def _store(tile: Any, row: int, num_rows: int, column: int, target: Any) -> None:
    width, like = min(WIDTH, target.shape[1] - column), target[0, 0]
    for index in range(num_rows):
        for lane in range(width):
            target[row + index, column + lane] = narrow(tile[index, lane], like)


@part
def _add(tile: Any, row: int, num_rows: int, column: int, target: Any) -> None:
    width = min(WIDTH, target.shape[1] - column)
    for index in range(num_rows):
        for lane in range(width):
            target[row + index, column + lane] += tile[index, lane]


@part
def _gate(tile: Any, row: int, num_rows: int, column: int, target: Any) -> None:
    """The first panel is of gates, the second of what they let through; a pair gives one panel's columns."""
    first = column // 2
    for index in range(num_rows):
        for lane in range(LANES):
            target[row + index, first + lane] = gated(tile[index, lane], tile[index, LANES + lane])


@cache
def stored() -> Any:
    """The phase that leaves products in target [T, N], float32 or bfloat16."""
    return _product(_store, 1)


@cache
def added() -> Any:
    """The phase that adds products to target [T, N] float32."""
    return _product(_add, 1)


@cache
def gated_products() -> Any:
    """The phase that leaves silu(gate) * up in target [T, N / 2] float32, N a multiple of 32."""
    return _product(_gate, 0)


def _product(finish: Any, is_adjacent: int) -> Any:
    """`is_adjacent`: a pair are two panels side by side; else the second is as far in the second half of the
    columns."""
    multiply = multiply_pair(finish)

    @part
    def product(phases: Any, phase: int, rows: Any, scales: Any, weight: Any, target: Any, tile: Any) -> int:
        """weight: (number of panels, number of words, addresses, that of the code). The number of the next phase."""
        num_panels, num_words, addresses, code = weight
        num_pairs = num_panels // 2
        grain = pairs_per_item(num_pairs)
        begin = take(phases, phase, grain)
        while begin < num_pairs:
            end = min(num_pairs, begin + grain)
            for pair in range(begin, end):
                panels = (2 * pair, 2 * pair + 1) if is_adjacent else (pair, num_pairs + pair)
                multiply(rows, scales, (code, addresses, num_words), panels, pair * WIDTH, target, tile)
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, num_pairs)
        return phase + 1

    return product


def multiply_pair(finish: Any) -> Any:
    """What multiplies all rows with one pair; `finish` takes the products of some of them, while they are near, to the
    target."""

    @part
    def multiply(rows: Any, scales: Any, weight: Any, panels: Any, column: int, target: Any, tile: Any) -> None:
        """All rows times a pair of panels, in blocks of rows as large as the registers hold."""
        code, (words, factors, offsets, biases), num_words = weight
        panel_bytes, row, num_rows = 4 * LANES * num_words, 0, len(rows)
        while row < num_rows:
            at, scales_at = rows.ctypes.data + row * rows.strides[0], scales.ctypes.data + 4 * row
            taken = call_code(
                code, num_rows - row, at, rows.strides[0], scales_at, words, factors, offsets, biases, panels[0],
                panels[1], panel_bytes, num_words, tile.ctypes.data, 4 * WIDTH,
            )  # fmt: skip
            finish(tile, row, taken, column, target)
            row += taken

    return multiply


@cache
def rows_code(per_word: int) -> int:
    """The address of `multiply_tile` of the first of `num_rows` rows, as many as the registers hold; it returns how
    many those were. What else kernels are made of is compiled for each shape of heads, and this is most of the code."""

    def multiply_rows(
        num_rows: int, rows: int, row_bytes: int, scales: int, words: int, factors: int, offsets: int, biases: int,
        first: int, second: int, panel_bytes: int, num_words: int, to: int, to_bytes: int,
    ) -> int:  # fmt: skip
        weight, panels = (words, factors, offsets, biases), (first, second)
        if TILE_ROWS >= 12 and num_rows >= 12:
            multiply_tile(per_word, 12, rows, row_bytes, scales, weight, panels, panel_bytes, num_words, to, to_bytes)
            return 12
        if TILE_ROWS >= 8 and num_rows >= 8:
            multiply_tile(per_word, 8, rows, row_bytes, scales, weight, panels, panel_bytes, num_words, to, to_bytes)
            return 8
        if num_rows >= 4:
            multiply_tile(per_word, 4, rows, row_bytes, scales, weight, panels, panel_bytes, num_words, to, to_bytes)
            return 4
        if num_rows >= 2:
            multiply_tile(per_word, 2, rows, row_bytes, scales, weight, panels, panel_bytes, num_words, to, to_bytes)
            return 2
        multiply_tile(per_word, 1, rows, row_bytes, scales, weight, panels, panel_bytes, num_words, to, to_bytes)
        return 1

    return address_of(types.int64(*(types.int64,) * NUM_ARGUMENTS), multiply_rows, per_word)
