"""Attention of a few queries that share each key's way: a decode, or some tokens of a chunk. And the write of keys.

Keys and values are read where they lie, block by block, each once for all query heads that share it and for several
queries of one chunk. What a query gets does not depend on its neighbours, bit for bit. Where the processor multiplies
bfloat16 in pairs, queries and weights are rounded to it, as those of packed keys are.

Keys come in groups that stay in the second cache from their scores to the sum of their values, so that each comes from
memory once; what was summed up before a larger score is scaled down then (Milakov and Gimelshein 2018, §3).
"""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import inlined, part
from engine.kernels.cpu.pair_rows import add_pairs, dot_pairs, has_pairs
from engine.kernels.cpu.softmax import LOWEST_SCORE
from engine.kernels.cpu.tile_code import LANES
from engine.kernels.cpu.tile_weights import (
    as_they_are,
    exponentiate_part,
    rows_as_they_are,
    words_of_blocks,
    words_of_rows,
)
from engine.kernels.cpu.vectors import add_weighted, dot_rows, fetch, narrow, widen

# Float32 numbers of query that are held in registers: three quarters of the 512 that AVX-512 has.
_HELD_NUMBERS = 384
_KEYS_PER_GROUP = 512


def queries_per_tile(num_shared: int, head_dim: int) -> int:
    """Queries of a chunk that share each key's way into the registers, `num_shared` heads each."""
    return max(1, _HELD_NUMBERS // (num_shared * head_dim))


@cache
def _rotated(head_dim: int) -> Any:
    half = head_dim // 2

    @inlined
    def rotated(qkv: Any, token: int, head: int, d: int, rotation: Any) -> Any:
        """Elements d and d + D/2 of a head, which are rotated together."""
        first, second = widen(qkv[token, head, d]), widen(qkv[token, head, d + half])
        cosine, sine = rotation[0][token, d], rotation[1][token, d]
        return first * cosine - second * sine, second * cosine + first * sine

    return rotated


@cache
def store_part(head_dim: int) -> Any:
    """What puts a token's key and value into the cache."""
    half, rotated = head_dim // 2, _rotated(head_dim)

    @part
    def store(qkv: Any, token: int, num_heads: int, rotation: Any, place: Any) -> None:
        """place [2, KH, D] becomes the token's keys, rotated, and values."""
        num_kv_heads, like = place.shape[1], qkv[0, 0, 0]
        for head in range(num_kv_heads):
            for d in range(half):
                first, second = rotated(qkv, token, num_heads + head, d, rotation)
                place[0, head, d], place[0, head, d + half] = narrow(first, like), narrow(second, like)
            for d in range(head_dim):
                place[1, head, d] = qkv[token, num_heads + num_kv_heads + head, d]

    return store


@cache
def tile_part(per_word: int, num_shared: int, head_dim: int) -> Any:
    """What attends some queries of one chunk, which share each key's way."""
    load, as_queries, score_group, exponentiate, weights_of, add_group, unload = _parts(per_word, num_shared, head_dim)

    @part
    def attend_tile(
        qkv: Any, first: int, rotation: Any, cached: Any, blocks: Any, num_keys: int, window: int, heads: Any,
        output: Any,
    ) -> None:  # fmt: skip
        """output [Q, H, D] becomes what the queries from token `first` on get, of those that share the heads [from,
        to) of keys; the last of the queries sees `num_keys`."""
        (first_head, end_head), num_rows, like, size = heads, len(output) * num_shared, qkv[0, 0, 0], cached.shape[1]
        # [0, oldest) nobody sees · [oldest, num_keys), from a block's first key on, is looked at
        oldest = max(0, num_keys - len(output) + 1 - window) // size * size
        group = max(1, _KEYS_PER_GROUP // size) * size
        rows = np.empty((end_head - first_head, num_rows, head_dim), np.float32)
        for head in range(first_head, end_head):
            load(qkv, first, rotation, head, rows[head - first_head])
        queries, weights = as_queries(rows), np.empty((len(rows), num_rows, min(group, num_keys) + LANES), np.float32)
        largest, sums = np.full(rows.shape[:2], LOWEST_SCORE), np.zeros(rows.shape[:2], np.float32)
        rows = np.zeros(rows.shape, np.float32)
        for begin in range(oldest, num_keys, group):
            keys = (begin, min(num_keys, begin + group), num_keys)
            score_group(like, queries, cached, blocks, keys, first_head, weights)
            exponentiate(weights, keys, window, largest, sums, rows)
            add_group(like, weights_of(weights, keys[1] - begin, size), cached, blocks, keys, first_head, rows)
        for index in range(len(rows)):
            unload(rows[index], sums[index], first_head + index, output)

    return attend_tile


def _parts(per_word: int, num_shared: int, head_dim: int) -> tuple[Any, ...]:
    """In the order in which a tile goes through them."""
    of_pairs = has_pairs(per_word, head_dim)
    score, weigh = (_score_pairs, _weigh_pairs) if of_pairs else (_score, _weigh)
    as_queries, weights_of = (words_of_rows, words_of_blocks) if of_pairs else (rows_as_they_are, as_they_are)
    score_group, add_group = _score_group(score(num_shared, head_dim)), _add_group(weigh(num_shared, head_dim))
    load, unload = load_part(num_shared, head_dim), _unload(num_shared, head_dim)
    return load, as_queries, score_group, exponentiate_part(num_shared), weights_of, add_group, unload


def _score_group(score: Any) -> Any:
    @part
    def score_group(
        like: Any, queries: Any, cached: Any, blocks: Any, keys: Any, first_head: int, weights: Any
    ) -> None:
        """weights [KH, R, keys, and some room] become the products of queries and keys [begin, end)."""
        (begin, end, num_keys), size = keys, cached.shape[1]
        for at in range(begin, end, size):
            block, soon = cached[blocks[at // size], : end - at], _way_to_next(cached, blocks, at // size, num_keys)
            for index in range(len(queries)):
                if soon:
                    _fetch_part(block, soon, first_head + index, len(queries))
                score(like, queries[index], block, first_head + index, weights[index], at - begin)

    return score_group


def _add_group(weigh: Any) -> Any:
    @part
    def add_group(like: Any, weights: Any, cached: Any, blocks: Any, keys: Any, first_head: int, rows: Any) -> None:
        """To rows [KH, R, D] adds the values of keys [begin, end) by their weights."""
        (begin, end, _), size = keys, cached.shape[1]
        for at in range(begin, end, size):
            block, number = cached[blocks[at // size], : end - at], (at - begin) // size
            for index in range(len(rows)):
                weigh(like, weights[index], number, size, block, first_head + index, rows[index])

    return add_group


@part
def _way_to_next(cached: Any, blocks: Any, number: int, num_keys: int) -> Any:
    """Bytes from a sequence's block to its next one, if that holds keys; else 0."""
    if (number + 1) * cached.shape[1] >= num_keys:
        return 0
    return (blocks[number + 1] - blocks[number]) * cached.strides[0]


@part
def _fetch_part(block: Any, soon: int, head: int, num_heads: int) -> None:
    """A head's part of what lies `soon` bytes from a block: its keys and values, or, where all heads are asked for, as
    many bytes in a row."""
    begin, kind_bytes, head_bytes = block.ctypes.data + soon, block.strides[1], block.strides[2]
    if num_heads == block.shape[2]:
        num_bytes = len(block) * block.strides[0] // num_heads
        fetch(begin + head * num_bytes, num_bytes)
        return
    for key in range(len(block)):
        at = begin + key * block.strides[0] + head * head_bytes
        fetch(at, head_bytes)
        fetch(at + kind_bytes, head_bytes)


@cache
def load_part(num_shared: int, head_dim: int) -> Any:
    """What gets queries from the step's."""
    half, rotated, scale = head_dim // 2, _rotated(head_dim), np.float32(head_dim**-0.5)

    @part
    def load(qkv: Any, first: int, rotation: Any, head: int, rows: Any) -> None:
        """rows [Q * G, D] become the queries of a tile, rotated and scaled, all heads of a query side by side."""
        for row in range(len(rows)):
            token, of = first + row // num_shared, head * num_shared + row % num_shared
            for d in range(half):
                upper, lower = rotated(qkv, token, of, d, rotation)
                rows[row, d], rows[row, d + half] = upper * scale, lower * scale

    return load


def _unload(num_shared: int, head_dim: int) -> Any:
    @part
    def unload(rows: Any, sums: Any, head: int, output: Any) -> None:
        """What was summed up, over the sum of its weights, to where its query and head are in the output."""
        for row in range(len(rows)):
            for d in range(head_dim):
                query, of = row // num_shared, head * num_shared + row % num_shared
                output[query, of, d] = narrow(rows[row, d] / sums[row], output[0, 0, 0])

    return unload


def _score(num_shared: int, head_dim: int) -> Any:
    held, row_bytes = queries_per_tile(num_shared, head_dim) * num_shared, 4 * head_dim

    @part
    def score(like: Any, rows: Any, block: Any, head: int, weights: Any, begin: int) -> None:
        """weights [R, begin + key] become the products of rows and a block's keys. A whole tile goes in one pass."""
        stride, at, to = weights.strides[0], rows.ctypes.data, weights.ctypes.data + 4 * begin
        keys, key_bytes = block.ctypes.data + head * block.strides[2], block.strides[0]
        if len(rows) == held:
            dot_rows(held, head_dim, like, at, keys, key_bytes, len(block), to, stride)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * row_bytes, to + row * stride
            dot_rows(num_shared, head_dim, like, from_row, keys, key_bytes, len(block), to_row, stride)

    return score


def _weigh(num_shared: int, head_dim: int) -> Any:
    held, row_bytes = queries_per_tile(num_shared, head_dim) * num_shared, 4 * head_dim

    @part
    def weigh(like: Any, weights: Any, number: int, size: int, block: Any, head: int, rows: Any) -> None:
        """To rows adds the values of the block of that number by their weights."""
        stride, at, to = weights.strides[0], weights.ctypes.data + 4 * number * size, rows.ctypes.data
        values, value_bytes = block.ctypes.data + block.strides[1] + head * block.strides[2], block.strides[0]
        if len(rows) == held:
            add_weighted(held, head_dim, like, at, stride, values, value_bytes, len(block), to)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * stride, to + row * row_bytes
            add_weighted(num_shared, head_dim, like, from_row, stride, values, value_bytes, len(block), to_row)

    return weigh


def _score_pairs(num_shared: int, head_dim: int) -> Any:
    held, row_bytes = queries_per_tile(num_shared, head_dim) * num_shared, 2 * head_dim

    @part
    def score(like: Any, rows: Any, block: Any, head: int, weights: Any, begin: int) -> None:
        """As `_score`, of rows in words of two bfloat16."""
        stride, at, to = weights.strides[0], rows.ctypes.data, weights.ctypes.data + 4 * begin
        keys, key_bytes = block.ctypes.data + head * block.strides[2], block.strides[0]
        if len(rows) == held:
            dot_pairs(held, head_dim, at, keys, key_bytes, len(block), to, stride)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * row_bytes, to + row * stride
            dot_pairs(num_shared, head_dim, from_row, keys, key_bytes, len(block), to_row, stride)

    return score


def _weigh_pairs(num_shared: int, head_dim: int) -> Any:
    held, row_bytes = queries_per_tile(num_shared, head_dim) * num_shared, 4 * head_dim

    @part
    def weigh(like: Any, weights: Any, number: int, size: int, block: Any, head: int, rows: Any) -> None:
        """As `_weigh`, with weights in words of two bfloat16."""
        stride, at = weights.strides[0], weights.ctypes.data + 4 * number * ((size + 1) // 2)
        values, value_bytes = block.ctypes.data + block.strides[1] + head * block.strides[2], block.strides[0]
        if len(rows) == held:
            add_pairs(held, head_dim, at, stride, values, value_bytes, len(block), rows.ctypes.data)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * stride, rows.ctypes.data + row * row_bytes
            add_pairs(num_shared, head_dim, from_row, stride, values, value_bytes, len(block), to_row)

    return weigh
