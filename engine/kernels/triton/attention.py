"""Paged attention: chunks in tiles of queries, single tokens split over their keys. Source: Kwon et al. 2023, §4.1.

Both keep a running maximum and sum while they go through the keys (Dao et al. 2022), in base 2. The heads that share a
key-value head are rows of one product, so that each key is read once for all of them. The splits of a single token are
added up by a second kernel (Dao et al. 2023, "Flash-Decoding").
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.cache import rotate_and_store
from engine.kernels.triton.chunks import TritonChunks
from engine.kernels.triton.keys import sum_values
from engine.kernels.triton.launches import OPTIONS, next_power_of_2

_LOG2_E = 1.4426950408889634
NO_WINDOW = 0


def attend(
    qkv: Tensor, rotation: tuple[Tensor, Tensor], cached: Tensor, plan: TritonChunks, window: int | None = None
) -> Tensor:
    """Attention of each token to its sequence's last `window` keys up to its own, after its key and value were stored.

    qkv [T, H + 2 KH, D], unrotated · rotation, cosine and sine [T, D/2] float32 · cached [B, S, 2, KH, D], a layer's
    part of each block, written. Returns [T, H * D] in qkv's dtype.
    """
    queries = rotate_and_store(qkv, rotation, cached, plan.slots)
    return paged_attention(queries, cached, plan, window).flatten(1)


def paged_attention(q: Tensor, cached: Tensor, plan: TritonChunks, window: int | None = None) -> Tensor:
    """As `reference.paged_attention`: q [T, H, D], contiguous and rotated; returns the same shape."""
    output = torch.empty_like(q)
    if plan.tiles.shape[1]:
        attend_tiles(q, cached, plan, window, output)
    if plan.decodes.shape[1]:
        attend_decodes(q, cached, plan, window, output)
    return output


def attend_tiles(q: Tensor, cached: Tensor, plan: TritonChunks, window: int | None, output: Tensor) -> None:
    """The tokens of `plan.tiles` are in `output`."""
    launch = plan.launches.prefill
    _attend_tiles[(plan.tiles.shape[1], plan.shape.num_kv_heads)](
        q,
        cached,
        plan.table,
        plan.tiles,
        output,
        plan.tiles.shape[1],
        plan.table.shape[1],
        cached.stride(0),
        cached.stride(1),
        cached.stride(2),
        plan.shape.head_dim**-0.5 * _LOG2_E,
        window or NO_WINDOW,
        **_constants(plan, launch.rows, launch.keys),
        has_window=window is not None,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **OPTIONS,
    )


def attend_decodes(q: Tensor, cached: Tensor, plan: TritonChunks, window: int | None, output: Tensor) -> None:
    """The tokens of `plan.decodes` are in `output`."""
    launch, num_splits, num_decodes = plan.launches.decode, plan.num_splits, plan.decodes.shape[1]
    partial, logs = (output, output) if num_splits == 1 else _room_for_parts(q, num_decodes, num_splits)
    _attend_decodes[(num_decodes, plan.shape.num_kv_heads, num_splits)](
        q,
        cached,
        plan.table,
        plan.decodes,
        partial,
        logs,
        num_decodes,
        plan.table.shape[1],
        cached.stride(0),
        cached.stride(1),
        cached.stride(2),
        plan.shape.head_dim**-0.5 * _LOG2_E,
        window or NO_WINDOW,
        **_constants(plan, launch.rows, launch.keys),
        num_splits=num_splits,
        has_window=window is not None,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        **OPTIONS,
    )
    if num_splits > 1:
        _add_parts(partial, logs, plan, output)


def _room_for_parts(q: Tensor, num_decodes: int, num_splits: int) -> tuple[Tensor, Tensor]:
    """What each part of the keys gives, and the logarithm of the sum of its weights; float32."""
    shape = (num_decodes, q.shape[1], num_splits)
    partial = torch.empty((*shape, q.shape[2]), dtype=torch.float32, device=q.device)
    return partial, torch.empty(shape, dtype=torch.float32, device=q.device)


def _add_parts(partial: Tensor, logs: Tensor, plan: TritonChunks, output: Tensor) -> None:
    num_decodes, num_heads, num_splits, head_dim = partial.shape
    _add_splits[(num_decodes, num_heads)](
        partial,
        logs,
        plan.decodes,
        output,
        num_decodes,
        head_dim=head_dim,
        block_d=next_power_of_2(head_dim),
        num_splits=num_splits,
        num_warps=4,
        **OPTIONS,
    )


def _constants(plan: TritonChunks, rows: int, keys: int) -> dict[str, Any]:  # Any: what kernels are compiled for
    shape = plan.shape
    return {
        "num_kv_heads": shape.num_kv_heads,
        "num_shared": shape.num_shared,
        "head_dim": shape.head_dim,
        "block_size": shape.block_size,
        "block_m": rows,
        "block_n": keys,
        "block_d": max(16, next_power_of_2(shape.head_dim)),
        "precision": "ieee" if shape.dtype == torch.float32 else "tf32",
        "product": _product_type(shape.dtype),
    }


def _product_type(dtype: torch.dtype) -> Any:  # Any: a type of Triton's
    """What factors are of. The interpreter, which keeps bfloat16 as bits, would multiply these."""
    is_interpreted = not isinstance(_attend_tiles, triton.JITFunction)
    by_dtype = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    return tl.float32 if is_interpreted else by_dtype[dtype]


@triton.jit(do_not_specialize=["num_tiles"])
def _attend_tiles(
    q: tl.tensor,
    cached: tl.tensor,
    table: tl.tensor,
    tiles: tl.tensor,
    output: tl.tensor,
    num_tiles: tl.tensor,
    table_width: tl.tensor,
    block_stride: tl.tensor,
    slot_stride: tl.tensor,
    value_offset: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    num_kv_heads: tl.constexpr,
    num_shared: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
    precision: tl.constexpr,
    product: tl.constexpr,
    has_window: tl.constexpr,
) -> None:
    """One tile of a chunk and one key-value head: row m is query m // num_shared with head m % num_shared of these."""
    tile, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.load(tiles + tile)
    first_position = tl.load(tiles + num_tiles + tile).to(tl.int32)
    first_token = tl.load(tiles + 2 * num_tiles + tile)
    num_queries = tl.load(tiles + 3 * num_tiles + tile).to(tl.int32)
    m, d = tl.arange(0, block_m), tl.arange(0, block_d)
    position = first_position + m // num_shared
    head = kv_head * num_shared + m % num_shared
    places = ((first_token + m // num_shared) * (num_kv_heads * num_shared) + head)[:, None] * head_dim + d[None, :]
    is_real = (m // num_shared < num_queries)[:, None] & (d < head_dim)[None, :]
    queries = tl.load(q + places, mask=is_real, other=0.0).to(product)

    end = first_position + num_queries
    begin = tl.maximum(first_position - window + 1, 0) if has_window else 0
    blocks, slots = table + row * table_width, cached + kv_head * head_dim
    _, total, summed = sum_values(
        queries, position, slots, blocks, begin, end, block_stride, slot_stride, value_offset, scale, window,
        head_dim, block_size, block_m, block_n, block_d, precision, product, has_window,
    )  # fmt: skip
    attended = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(output + places, attended.to(output.dtype.element_ty), mask=is_real)


@triton.jit(do_not_specialize=["num_decodes"])
def _attend_decodes(
    q: tl.tensor,
    cached: tl.tensor,
    table: tl.tensor,
    decodes: tl.tensor,
    partial: tl.tensor,
    logs: tl.tensor,
    num_decodes: tl.tensor,
    table_width: tl.tensor,
    block_stride: tl.tensor,
    slot_stride: tl.tensor,
    value_offset: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    num_kv_heads: tl.constexpr,
    num_shared: tl.constexpr,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
    precision: tl.constexpr,
    product: tl.constexpr,
    num_splits: tl.constexpr,
    has_window: tl.constexpr,
) -> None:
    """One token, one key-value head, one part of the keys. `partial` is the output itself if there is only one part."""
    decode, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(decodes + decode)
    position = tl.load(decodes + num_decodes + decode).to(tl.int32)
    token = tl.load(decodes + 2 * num_decodes + decode)
    m, d = tl.arange(0, block_m), tl.arange(0, block_d)
    head = kv_head * num_shared + m
    is_real = (m < num_shared)[:, None] & (d < head_dim)[None, :]
    places = (token * (num_kv_heads * num_shared) + head)[:, None] * head_dim + d[None, :]
    queries = tl.load(q + places, mask=is_real, other=0.0).to(product)

    first = tl.maximum(position + 1 - window, 0) if has_window else 0
    per_split = tl.cdiv(tl.cdiv(position + 1 - first, num_splits), block_n) * block_n
    begin = first + split * per_split
    end = tl.minimum(begin + per_split, position + 1)
    blocks, slots = table + row * table_width, cached + kv_head * head_dim
    positions = position + tl.zeros((block_m,), tl.int32)
    largest, total, summed = sum_values(
        queries, positions, slots, blocks, begin, end, block_stride, slot_stride, value_offset, scale, window,
        head_dim, block_size, block_m, block_n, block_d, precision, product, has_window=False,
    )  # fmt: skip
    attended = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    if num_splits == 1:
        tl.store(partial + places, attended.to(partial.dtype.element_ty), mask=is_real)
    else:
        part = (decode.to(tl.int64) * (num_kv_heads * num_shared) + head) * num_splits + split
        tl.store(partial + part[:, None] * head_dim + d[None, :], attended, mask=is_real)
        tl.store(logs + part, largest + tl.log2(total), mask=m < num_shared)


@triton.jit(do_not_specialize=["num_decodes"])
def _add_splits(
    partial: tl.tensor,
    logs: tl.tensor,
    decodes: tl.tensor,
    output: tl.tensor,
    num_decodes: tl.tensor,
    head_dim: tl.constexpr,
    block_d: tl.constexpr,
    num_splits: tl.constexpr,
) -> None:
    """One token and head: its parts, by the sums of their weights."""
    decode, head = tl.program_id(0), tl.program_id(1)
    num_heads = tl.num_programs(1)
    token = tl.load(decodes + 2 * num_decodes + decode)
    split, d = tl.arange(0, num_splits), tl.arange(0, block_d)
    parts = (decode * num_heads + head).to(tl.int64) * num_splits + split
    by_split = tl.load(logs + parts)
    largest = tl.max(by_split, 0)
    shares = tl.exp2(by_split - tl.where(largest == float("-inf"), 0.0, largest))
    total = tl.sum(shares, 0)
    is_real = d < head_dim
    attended = tl.load(partial + parts[:, None] * head_dim + d[None, :], mask=is_real[None, :], other=0.0)
    mean = tl.sum(attended * shares[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    place = (token * num_heads + head) * head_dim + d
    tl.store(output + place, mean.to(output.dtype.element_ty), mask=is_real)
