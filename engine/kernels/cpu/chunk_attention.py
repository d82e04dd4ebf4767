"""Attention of many queries of one sequence: as products with its keys and values, which are packed for it first.

Decodes read each key once, where it lies. A chunk of a prompt reads all of its keys for every few queries: it pays to
bring them into panels once a layer, for all of the chunk's queries, and then to multiply as weights are multiplied.
What a query gets does not depend on who stands beside it, bit for bit: every sum runs over the keys in their order.
"""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import part
from engine.kernels.cpu.packing import KEYS_PER_BLOCK
from engine.kernels.cpu.products import TILE_ROWS
from engine.kernels.cpu.rows import encode_part
from engine.kernels.cpu.shared_work import done, take, wait
from engine.kernels.cpu.softmax import exponentials
from engine.kernels.cpu.tile_code import LANES, call_code

_ZERO, _ONE = np.float32(0), np.float32(1)


def queries_per_group(num_shared: int) -> int:
    """Queries of a chunk that are attended together, `num_shared` heads each, in one block of rows if they fit."""
    return max(1, TILE_ROWS // num_shared)


def padded_dim(head_dim: int) -> int:
    """Columns of values, in pairs of panels."""
    return -(-head_dim // KEYS_PER_BLOCK) * KEYS_PER_BLOCK


@cache
def chunk_phase(per_word: int, num_shared: int, head_dim: int, load: Any) -> Any:
    """The phase that attends the chunks' queries. `load` is what gets a tile's queries, rotated and scaled."""
    attend_group, num_queries = _attend_group(per_word, num_shared, head_dim, load), queries_per_group(num_shared)

    @part
    def attend_all(
        phases: Any, phase: int, qkv: Any, rotation: Any, plan: Any, packed: Any, window: int, attended: Any
    ) -> int:
        """plan: (chunks, groups [., 3]: chunk, first query, place of the chunk's first key) · attended [T, H, D]."""
        chunks, groups = plan
        num_kv_heads = packed[0].shape[0]
        num_items = len(groups) * num_kv_heads
        item = num_items - 1 - take(phases, phase, 1)  # the longest first, so that none is left for the end
        while item >= 0:
            chunk, query, place = groups[item // num_kv_heads]
            _, start, length, offset = chunks[chunk]
            first, end = offset + query, offset + min(query + num_queries, length)
            oldest_seen = start + query + 1
            attend_group(
                qkv, first, rotation, packed, place, item % num_kv_heads, oldest_seen, window, attended[first:end]
            )
            done(phases, phase, 1)
            item = num_items - 1 - take(phases, phase, 1)
        wait(phases, phase, num_items)
        return phase + 1

    return attend_all


def _attend_group(per_word: int, num_shared: int, head_dim: int, load: Any) -> Any:
    score, weigh, encode = _score(), _weigh(head_dim), encode_part(per_word)
    encode_weights, num_words = _encode_weights(per_word), -(-head_dim // per_word)

    @part
    def attend_group(
        qkv: Any, first: int, rotation: Any, packed: Any, place: int, head: int, num_seen: int, window: int, output: Any
    ) -> None:
        """output [Q, H, D]: what the heads that share `head` get, of the queries from token `first` on.

        The first query sees `num_seen` keys, each further one another; the first key is at `place` of the packed ones.
        """
        num_rows = len(output) * num_shared
        # [0, oldest) nobody sees · [oldest, end) in whole blocks is looked at
        oldest = max(0, num_seen - window) // KEYS_PER_BLOCK * KEYS_PER_BLOCK
        end = -(-(num_seen + len(output) - 1) // KEYS_PER_BLOCK) * KEYS_PER_BLOCK
        queries = np.empty((num_rows, head_dim), np.float32)
        load(qkv, first, rotation, head, queries)
        scales = np.empty(num_rows, np.float32)
        rows = np.empty((num_rows, num_words), np.int32)
        for row in range(num_rows):
            encode(queries[row], rows[row], scales, row)
        weights = np.empty((num_rows, end - oldest), np.float32)
        score(packed[2], rows, packed[0][head], (place + oldest) // LANES, weights)
        encoded = np.empty((num_rows, (end - oldest) // per_word), np.int32)
        for row in range(num_rows):
            seen = num_seen + row // num_shared
            scales[row] = _ONE / exponentials(weights[row], max(0, seen - window - oldest), seen - oldest)
            encode_weights(weights[row], encoded[row])
        weigh(packed[2], encoded, scales, packed[1][head], (place + oldest) // per_word, head, output)

    return attend_group


def _encode_weights(per_word: int) -> Any:
    encode = encode_part(per_word)

    @part
    def encode_weights(weights: Any, words: Any) -> None:
        encode(weights, words, weights, 0)  # it has no scale

    return encode_weights


@cache
def _score() -> Any:
    @part
    def score(code: int, rows: Any, keys: Any, panel: int, weights: Any) -> None:
        """weights [R, keys] become the products of rows with keys [panels, words, 16] from `panel` on."""
        panel_bytes, no_bias = keys.strides[0], np.zeros(KEYS_PER_BLOCK, np.float32)
        for block in range(weights.shape[1] // KEYS_PER_BLOCK):
            words = keys.ctypes.data + (panel + 2 * block) * panel_bytes
            _multiply(code, rows, words, panel_bytes, no_bias, weights, block * KEYS_PER_BLOCK)

    return score


def _weigh(head_dim: int) -> Any:
    num_pairs = padded_dim(head_dim) // KEYS_PER_BLOCK

    @part
    def weigh(code: int, rows: Any, scales: Any, values: Any, word: int, head: int, output: Any) -> None:
        """output becomes the sums of values [panels, words, 16] from `word` on by their weights, times the scales."""
        panel_bytes, no_bias = values.strides[0], np.zeros(KEYS_PER_BLOCK, np.float32)
        sums = np.empty((len(rows), KEYS_PER_BLOCK), np.float32)
        num_shared = len(rows) // len(output)
        for pair in range(num_pairs):
            words = values.ctypes.data + 2 * pair * panel_bytes + word * values.strides[1]
            _multiply(code, rows, words, panel_bytes, no_bias, sums, 0)
            width = min(KEYS_PER_BLOCK, head_dim - pair * KEYS_PER_BLOCK)
            for row in range(len(rows)):
                query, of = row // num_shared, head * num_shared + row % num_shared
                for lane in range(width):
                    output[query, of, pair * KEYS_PER_BLOCK + lane] = sums[row, lane] * scales[row]

    return weigh


@part
def _multiply(code: int, rows: Any, words: int, panel_bytes: int, no_bias: Any, target: Any, column: int) -> None:
    """target [R, column : column + 32] becomes the products of rows with the two panels at `words`."""
    zeros, row = no_bias.ctypes.data, 0
    while row < len(rows):
        at, to = rows.ctypes.data + row * rows.strides[0], target.ctypes.data + row * target.strides[0] + 4 * column
        row += call_code(
            code, len(rows) - row, at, rows.strides[0], zeros, words, zeros, zeros, zeros, 0, 1, panel_bytes,
            rows.shape[1], to, target.strides[0],
        )  # fmt: skip
