"""Rotary embedding, the write into the paged cache, and attention over it, as phases of a step.

A step takes what its tokens take: no sequence is padded to another's length. Sequences that add a few tokens read their
keys where they lie (`tile_attention`), those that add many bring them into panels first (`chunk_attention`); the
planner says which. What a query gets does not depend on what else is in the step, bit for bit.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.kernels.cpu.chunk_attention import chunk_phase, padded_dim
from engine.kernels.cpu.compiled import elements, part, unlocked
from engine.kernels.cpu.packing import KEYS_PER_BLOCK, pack_phase
from engine.kernels.cpu.products import rows_code
from engine.kernels.cpu.rows import norm_heads
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.tile_attention import load_part, queries_per_tile, store_part, tile_part
from engine.kernels.cpu.tile_code import LANES

NO_WINDOW = np.iinfo(np.int64).max >> 1
NUM_PHASES = 4
_GRAINS = 16  # items of a phase that goes by tokens, about
_FEW_TILES = 8  # fewer leave threads without any

PackedKeys = tuple[NDArray[np.int32], NDArray[np.int32], int]
"""Memory for one layer's keys and values of the chunks that are packed, and the code that multiplies with them."""


@dataclass(frozen=True, slots=True)
class PagedChunks:
    """The chunks of a step, for `attend`. All int64.

    table    [rows of the batch, M], each row's block ids; those behind the last key are never read
    chunks   [N, 4]: row, first position, number of tokens, first token in the step
    slots    [T, 2]: block and place in it, where each token's key and value go
    tiles    [., 2]: chunk and first query in it, of the queries that are attended together where their keys lie
    packed   [., 3]: chunk, first of 32 keys that are packed together, and their place among all that are
    groups   [., 3]: chunk, first query, and place of the chunk's first key, of queries that read packed keys
    """

    table: NDArray[np.int64]
    chunks: NDArray[np.int64]
    slots: NDArray[np.int64]
    tiles: NDArray[np.int64]
    packed: NDArray[np.int64]
    groups: NDArray[np.int64]

    @property
    def num_packed_keys(self) -> int:
        return len(self.packed) * KEYS_PER_BLOCK

    def arrays(self) -> tuple[NDArray[np.int64], ...]:
        """As kernels take them."""
        return self.table, self.chunks, self.slots, self.tiles, self.packed, self.groups


def attend(
    qkv: Tensor, rotation: tuple[Tensor, Tensor], cached: Tensor, plan: PagedChunks, window: int | None = None
) -> Tensor:
    """Attention of each token to its sequence's keys up to its own, after its key and value were stored.

    qkv [T, H + 2 KH, D], unrotated · rotation, cosine and sine [T, D/2] float32 · cached [B, S, 2, KH, D], a layer's
    part of each block, written · window: how many tokens each one sees, its own included. Returns [T, H * D] in qkv's
    dtype. Source: Kwon et al. 2023, §4.1.
    """
    num_kv_heads, head_dim = cached.shape[3:]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    output = torch.empty((len(qkv), num_heads, head_dim))
    run_together(
        torch.get_num_threads(),
        _kernel(cached.dtype.itemsize, num_heads // num_kv_heads, head_dim),
        counters(NUM_PHASES),
        elements(qkv.contiguous()),
        (np.empty((0, head_dim), np.float32), np.float32(0)),
        (rotation[0].numpy(), rotation[1].numpy()),
        elements(cached),
        plan.arrays(),
        packed_keys(plan.num_packed_keys, num_kv_heads, head_dim, cached.dtype),
        NO_WINDOW if window is None else window,
        output.numpy(),
    )
    return output.flatten(1).to(qkv.dtype)


def packed_keys(num_keys: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> PackedKeys:
    """For `num_keys` keys, of which some stay empty."""
    per_word = 4 // dtype.itemsize
    keys = np.zeros((num_kv_heads, num_keys // LANES, -(-head_dim // per_word), LANES), np.int32)
    values = np.zeros((num_kv_heads, padded_dim(head_dim) // LANES, num_keys // per_word, LANES), np.int32)
    return keys, values, rows_code(per_word)


@cache
def _kernel(element_bytes: int, num_shared: int, head_dim: int) -> Any:
    """For one shape of heads, which is a constant of its code."""
    attend_all = attention_phases(element_bytes, num_shared, head_dim)

    def kernel(
        phases: Any, qkv: Any, norms: Any, rotation: Any, cached: Any, plan: Any, packed: Any, window: int, output: Any
    ) -> None:
        attend_all(phases, 0, qkv, norms, rotation, cached, plan, packed, window, output)

    return unlocked(kernel, element_bytes, num_shared, head_dim)


@cache
def attention_phases(element_bytes: int, num_shared: int, head_dim: int) -> Any:
    """NUM_PHASES phases: keys are stored, packed, and attended."""
    per_word = 4 // element_bytes
    store, tiles = _store(head_dim), _tiles(per_word, num_shared, head_dim)
    pack = pack_phase(per_word, head_dim)
    groups = chunk_phase(per_word, num_shared, head_dim, load_part(num_shared, head_dim))

    @part
    def attend_all(
        phases: Any, phase: int, qkv: Any, norms: Any, rotation: Any, cached: Any, plan: Any, packed: Any, window: int,
        output: Any,
    ) -> Any:  # fmt: skip
        """output [T, H, D] float32. norms: those of the heads of q and k, if any, and eps. The next phase's number."""
        table, chunks, slots, few, blocks, many = plan
        phase = store(phases, phase, qkv, norms, rotation, cached, slots)
        phase = pack(phases, phase, cached, (table, chunks, blocks), packed)
        phase = groups(phases, phase, qkv, rotation, (chunks, many), packed, window, output)
        return tiles(phases, phase, qkv, rotation, cached, (table, chunks, few), window, output)

    return attend_all


@cache
def _store(head_dim: int) -> Any:
    store_token = store_part(head_dim)

    @part
    def store(phases: Any, phase: int, qkv: Any, norms: Any, rotation: Any, cached: Any, slots: Any) -> int:
        """Keys and values of the step's tokens are in the cache, and the heads of q and k normed where they are."""
        num_tokens, grain = len(qkv), 1 + len(qkv) // _GRAINS
        num_heads = qkv.shape[1] - 2 * cached.shape[3]
        weights, eps = norms
        begin = take(phases, phase, grain)
        while begin < num_tokens:
            end = min(num_tokens, begin + grain)
            for token in range(begin, end):
                norm_heads(qkv[token], weights, eps)
                store_token(qkv, token, num_heads, rotation, cached[slots[token, 0], slots[token, 1]])
            done(phases, phase, end - begin)
            begin = take(phases, phase, grain)
        wait(phases, phase, num_tokens)
        return phase + 1

    return store


@cache
def _tiles(per_word: int, num_shared: int, head_dim: int) -> Any:
    attend_tile, size = tile_part(per_word, num_shared, head_dim), queries_per_tile(num_shared, head_dim)

    @part
    def attend(
        phases: Any, phase: int, qkv: Any, rotation: Any, cached: Any, plan: Any, window: int, output: Any
    ) -> int:
        """Queries that read keys where they lie. Few of them are shared out by head, too."""
        table, chunks, tiles = plan
        num_kv_heads = cached.shape[3]
        num_parts = num_kv_heads if len(tiles) < _FEW_TILES else 1
        num_items, num_heads = len(tiles) * num_parts, num_kv_heads // num_parts
        item = take(phases, phase, 1)
        while item < num_items:
            chunk, query = tiles[item // num_parts]
            heads = (item % num_parts * num_heads, (item % num_parts + 1) * num_heads)
            row, start, length, offset = chunks[chunk]
            first, end = offset + query, offset + min(query + size, length)
            num_keys = start + end - offset
            attend_tile(qkv, first, rotation, cached, table[row], num_keys, window, heads, output[first:end])
            done(phases, phase, 1)
            item = take(phases, phase, 1)
        wait(phases, phase, num_items)
        return phase + 1

    return attend
