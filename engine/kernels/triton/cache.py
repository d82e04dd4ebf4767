"""What writes the paged cache: rotary embedding with the write of keys and values, and blocks that change pools."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launches import OPTIONS, next_power_of_2

_HEADS_PER_PROGRAM = 8
_WORDS_PER_PROGRAM = 1024  # of eight bytes
NO_SLOT = -1


def rotate_and_store(qkv: Tensor, rotation: tuple[Tensor, Tensor], cached: Tensor, slots: Tensor) -> Tensor:
    """Keys, rotated, and values are in `cached`; returns the rotated queries.

    qkv [T, H + 2 KH, D], the heads of a token contiguous · rotation, cosine and sine [T, D/2] float32 · cached
    [B, S, 2, KH, D], written · slots [T] int64, block * P + place where blocks begin P slots apart, or -1: the token is
    kept nowhere. Returns [T, H, D].
    """
    num_tokens, num_rows, head_dim = qkv.shape
    num_heads = num_rows - 2 * cached.shape[3]
    _check_layout(qkv, cached)
    queries = torch.empty((num_tokens, num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
    block_h = min(_HEADS_PER_PROGRAM, next_power_of_2(num_rows))
    _rotate_and_store[(num_tokens, triton.cdiv(num_rows, block_h))](
        qkv,
        rotation[0],
        rotation[1],
        slots,
        queries,
        cached,
        qkv.stride(0),
        cached.stride(1),
        num_heads=num_heads,
        num_kv_heads=cached.shape[3],
        head_dim=head_dim,
        block_h=block_h,
        block_i=next_power_of_2(head_dim // 2),
        num_warps=4,
        **OPTIONS,
    )
    return queries


def _check_layout(qkv: Tensor, cached: Tensor) -> None:
    if qkv.stride()[1:] != (qkv.shape[2], 1) or not cached[0, 0].is_contiguous():
        raise ValueError("the heads of a token, and the keys and values of a slot, must be contiguous")


def copy_blocks(source: Tensor, target: Tensor, source_ids: Tensor, target_ids: Tensor, max_programs: int) -> None:
    """target[target_ids[i]] becomes source[source_ids[i]], all in one launch of at most `max_programs` programs.

    source, target [blocks, ...], contiguous, on the device or page-locked, blocks of a multiple of eight bytes ·
    ids [n] int64, likewise
    """
    words = [pool.view(pool.shape[0], pool[0].numel()).view(torch.int64) for pool in (source, target)]
    block_words = words[0].shape[1]
    num_items = len(source_ids) * triton.cdiv(block_words, _WORDS_PER_PROGRAM)
    if num_items:
        _copy_blocks[(min(max_programs, num_items),)](
            *words,
            source_ids,
            target_ids,
            num_items,
            block_words=block_words,
            block=_WORDS_PER_PROGRAM,
            num_warps=4,
            **OPTIONS,
        )


@triton.jit
def _rotate_and_store(
    qkv: tl.tensor,
    cosine: tl.tensor,
    sine: tl.tensor,
    slots: tl.tensor,
    queries: tl.tensor,
    cached: tl.tensor,
    token_stride: tl.tensor,
    slot_stride: tl.tensor,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    block_h: tl.constexpr,
    block_i: tl.constexpr,
) -> None:
    """Some heads of one token: element i of a head and element i + D/2 are rotated together, values not at all."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * block_h + tl.arange(0, block_h)
    half: tl.constexpr = head_dim // 2
    i = tl.arange(0, block_i)
    is_pair = i < half
    is_real = (head < num_heads + 2 * num_kv_heads)[:, None] & is_pair[None, :]
    source = qkv + token * token_stride + head[:, None] * head_dim + i[None, :]
    first = tl.load(source, mask=is_real, other=0.0).to(tl.float32)
    second = tl.load(source + half, mask=is_real, other=0.0).to(tl.float32)
    cos = tl.load(cosine + token * half + i, mask=is_pair, other=1.0)[None, :]
    sin = tl.load(sine + token * half + i, mask=is_pair, other=0.0)[None, :]
    is_value = (head >= num_heads + num_kv_heads)[:, None]
    upper = tl.where(is_value, first, first * cos - second * sin).to(qkv.dtype.element_ty)
    lower = tl.where(is_value, second, second * cos + first * sin).to(qkv.dtype.element_ty)

    is_query = is_real & (head < num_heads)[:, None]
    query = queries + (token * num_heads + head)[:, None] * head_dim + i[None, :]
    tl.store(query, upper, mask=is_query)
    tl.store(query + half, lower, mask=is_query)
    slot = tl.load(slots + token + tl.zeros((block_h,), tl.int64))
    is_kept = is_real & ((head >= num_heads) & (slot >= 0))[:, None]
    # Keys and values of a slot follow each other as they do in `qkv`.
    kept = cached + (slot * slot_stride + (head - num_heads) * head_dim)[:, None] + i[None, :]
    tl.store(kept, upper.to(cached.dtype.element_ty), mask=is_kept)
    tl.store(kept + half, lower.to(cached.dtype.element_ty), mask=is_kept)


@triton.jit(do_not_specialize=["num_items"])
def _copy_blocks(
    source: tl.tensor,
    target: tl.tensor,
    source_ids: tl.tensor,
    target_ids: tl.tensor,
    num_items: tl.tensor,
    block_words: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Each program takes every so many-th piece of all the blocks."""
    pieces: tl.constexpr = (block_words + block - 1) // block
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        word = (item % pieces) * block + tl.arange(0, block)
        is_word = word < block_words
        from_block = tl.load(source_ids + item // pieces) * block_words
        to_block = tl.load(target_ids + item // pieces) * block_words
        tl.store(target + to_block + word, tl.load(source + from_block + word, mask=is_word), mask=is_word)
