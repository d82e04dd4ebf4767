"""Products of which nothing is kept but which one of each row is the largest, and whether all of the row are finite.

A pair of panels is judged as soon as it is there: rows times a whole vocabulary are never written to memory and read
again. Each lane of a row remembers the largest number that it has seen and where it saw it first; at the end of an item
the lanes of a row are compared, and whoever called compares the items. Pairs are judged in the order of their columns,
so that of equal numbers the first one is found.
"""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import part
from engine.kernels.cpu.products import WIDTH, multiply_pair, pairs_per_item
from engine.kernels.cpu.shared_work import done, take, wait
from engine.kernels.cpu.tile_code import judge_tile

_LOWEST = np.float32(-np.inf)
_ROW_BYTES = 4 * WIDTH


@cache
def judged() -> Any:
    """The phase that finds the largest products."""
    multiply = multiply_pair(_judge)

    @part
    def product(phases: Any, phase: int, rows: Any, scales: Any, weight: Any, size: int, found: Any, tile: Any) -> int:
        """found: of each item and row [items, T] the largest product float32, its column int64, and how many were
        finite int64, those that pad the last pair included · size: columns without padding · weight: as `stored` has
        it. The number of the next phase."""
        num_panels, num_words, addresses, code = weight
        num_pairs, num_rows = num_panels // 2, len(rows)
        grain = pairs_per_item(num_pairs)
        largest = np.empty((num_rows, WIDTH), np.float32)
        places, counts = np.empty((num_rows, WIDTH), np.int32), np.empty((num_rows, WIDTH), np.int32)
        # As addresses: arrays would be counted in and out for every pair.
        target = (largest.ctypes.data, places.ctypes.data, counts.ctypes.data, size)
        begin = take(phases, phase, grain)
        while begin < num_pairs:
            end = min(num_pairs, begin + grain)
            largest[:], places[:], counts[:] = _LOWEST, begin, 0
            for pair in range(begin, end):
                panels = (2 * pair, 2 * pair + 1)
                multiply(rows, scales, (code, addresses, num_words), panels, pair * WIDTH, target, tile)
            for row in range(num_rows):
                _compare(largest[row], places[row], counts[row], found, begin // grain, row)
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, num_pairs)
        return phase + 1

    return product


@part
def _judge(tile: Any, row: int, num_rows: int, column: int, target: Any) -> None:
    largest, places, counts, size = target
    if column + WIDTH > size:  # what pads the pair is what its first column is, and comes behind that
        for index in range(num_rows):
            tile[index, size - column :] = tile[index, 0]
    at = row * _ROW_BYTES
    judge_tile(num_rows, tile.ctypes.data, largest + at, places + at, counts + at, column // WIDTH)


@part
def _compare(largest: Any, places: Any, counts: Any, found: Any, item: int, row: int) -> None:
    """Of a row's lanes, the first column of the largest number."""
    number, column, num_finite = largest[0], np.int64(places[0]) * WIDTH, np.int64(0)
    for lane in range(WIDTH):
        at = np.int64(places[lane]) * WIDTH + lane
        if largest[lane] > number or (largest[lane] == number and at < column):
            number, column = largest[lane], at
        num_finite += counts[lane]
    found[0][item, row], found[1][item, row], found[2][item, row] = number, column, num_finite
