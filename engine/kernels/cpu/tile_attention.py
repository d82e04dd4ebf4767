"""Attention of a few queries that share each key's way: a decode, or some tokens of a chunk. And the write of keys.

Keys and values are read where they lie, block by block, each once for all query heads that share it and for several
queries of one chunk. What a query gets does not depend on its neighbours, bit for bit.
"""

from functools import cache
from typing import Any

import numpy as np

from engine.kernels.cpu.compiled import inlined, part
from engine.kernels.cpu.softmax import exponentials
from engine.kernels.cpu.vectors import add_weighted, dot_rows, narrow, widen

# Float32 numbers of query that are held in registers: three quarters of the 512 that AVX-512 has.
_HELD_NUMBERS = 384


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
def tile_part(num_shared: int, head_dim: int) -> Any:
    """What attends some queries of one chunk, which share each key's way."""
    load, unload = load_part(num_shared, head_dim), _unload(num_shared, head_dim)
    score, weigh = _score(num_shared, head_dim), _weigh(num_shared, head_dim)

    @part
    def attend_tile(
        qkv: Any, first: int, rotation: Any, cached: Any, blocks: Any, num_keys: int, window: int, output: Any
    ) -> None:
        """output [Q, H, D] becomes what the queries from token `first` on get; the last of them sees `num_keys`."""
        num_queries, num_kv_heads, like, size = len(output), cached.shape[3], qkv[0, 0, 0], cached.shape[1]
        # [0, oldest) nobody sees · [oldest, num_keys), from a block's first key on, is looked at
        oldest = max(0, num_keys - num_queries + 1 - window) // size * size
        rows = np.empty((num_kv_heads, num_queries * num_shared, head_dim), np.float32)
        weights = np.empty((num_kv_heads, num_queries * num_shared, num_keys - oldest), np.float32)
        for head in range(num_kv_heads):
            load(qkv, first, rotation, head, rows[head])
        for begin in range(oldest, num_keys, size):
            block = cached[blocks[begin // size], : min(size, num_keys - begin)]
            for head in range(num_kv_heads):
                score(like, rows[head], block, head, weights[head], begin - oldest)
        sums = np.empty(rows.shape[:2], np.float32)
        for head in range(num_kv_heads):
            for row in range(num_queries * num_shared):
                num_seen = num_keys - num_queries + 1 + row // num_shared
                hidden = max(0, num_seen - window - oldest)
                sums[head, row] = exponentials(weights[head, row], hidden, num_seen - oldest)
        rows[:] = np.float32(0)
        for begin in range(oldest, num_keys, size):
            block = cached[blocks[begin // size], : min(size, num_keys - begin)]
            for head in range(num_kv_heads):
                weigh(like, weights[head], begin - oldest, block, head, rows[head])
        for head in range(num_kv_heads):
            unload(rows[head], sums[head], head, output)

    return attend_tile


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
        keys, key_bytes, soon = block.ctypes.data + head * block.strides[2], block.strides[0], block.strides[1]
        if len(rows) == held:
            dot_rows(held, head_dim, like, at, keys, key_bytes, len(block), to, stride, soon)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * row_bytes, to + row * stride
            dot_rows(num_shared, head_dim, like, from_row, keys, key_bytes, len(block), to_row, stride, soon)

    return score


def _weigh(num_shared: int, head_dim: int) -> Any:
    held, row_bytes = queries_per_tile(num_shared, head_dim) * num_shared, 4 * head_dim

    @part
    def weigh(like: Any, weights: Any, begin: int, block: Any, head: int, rows: Any) -> None:
        """To rows adds a block's values by their weights."""
        stride, at, to = weights.strides[0], weights.ctypes.data + 4 * begin, rows.ctypes.data
        values, value_bytes = block.ctypes.data + block.strides[1] + head * block.strides[2], block.strides[0]
        if len(rows) == held:
            add_weighted(held, head_dim, like, at, stride, values, value_bytes, len(block), to)
            return
        for row in range(0, len(rows), num_shared):
            from_row, to_row = at + row * stride, to + row * row_bytes
            add_weighted(num_shared, head_dim, like, from_row, stride, values, value_bytes, len(block), to_row)

    return weigh
