"""Paged attention in torch calls, for any device: chunks of similar size are gathered, padded and attended together.

Keys are read only through block tables, into a buffer that is used again by every layer, so that it stays in the
cache of the processor and costs no page faults. Padding reads the null block, which holds zeros.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class PaddedQueries:
    """Where a group's N * Q queries come from and go to; padding repeats a chunk's last query.

    source   [N * Q] int64, the token of the step that each query is
    is_real  [tokens of the group] int64, which of the N * Q are no padding
    target   [tokens of the group] int64, the token of the step that each of those is
    """

    source: Tensor
    is_real: Tensor
    target: Tensor


@dataclass(frozen=True, slots=True)
class AttentionGroup:
    """N chunks that are attended in one call, as if each had Q query tokens and L keys.

    block_ids   [N * M] int64, M blocks for each chunk, M * S >= L
    mask        [N, 1, Q * G, L], 0 or -inf, in the model's dtype, for G query heads to a key-value head; None if every
                query sees every key
    queries     None if the group is the whole step, without padding
    window_mask the same as `mask`, for the layers in which tokens see the last ones only
    """

    num_chunks: int
    num_keys: int
    block_ids: Tensor
    mask: Tensor | None
    queries: PaddedQueries | None
    window_mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class GatheredChunks:
    """The chunks of a step, for `attend`: each is in exactly one group.

    gathered      [>= N * M, S, 2, KH, D], scratch memory
    slot_mapping  [T] int64, where each token's key and value go, as in `reference.store_kv`
    """

    groups: tuple[AttentionGroup, ...]
    gathered: Tensor
    slot_mapping: Tensor


def attend(
    qkv: Tensor, rotation: tuple[Tensor, Tensor], cached: Tensor, plan: GatheredChunks, window: int | None = None
) -> Tensor:
    """The same as `cpu.attention.attend`. How long the window is, the plan knows."""
    num_kv_heads = cached.shape[3]
    num_heads = qkv.shape[1] - 2 * num_kv_heads
    rotated = rope(qkv[:, :-num_kv_heads], rotation)
    store_kv(cached, torch.cat((rotated[:, num_heads:], qkv[:, -num_kv_heads:]), dim=1), plan.slot_mapping)
    return paged_attention(rotated[:, :num_heads], cached, plan, has_window=window is not None)


def rope(x: Tensor, by: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate x [T, N, D] by the cosine and sine [T, D/2] of each token's angles."""
    cosine, sine = by[0][:, None], by[1][:, None]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1).to(x.dtype)


def store_kv(kv_cache: Tensor, kv: Tensor, slot_mapping: Tensor) -> None:
    """As `reference.store_kv`, all tokens at once."""
    num_slots = (kv_cache.shape[0] - 1) * (kv_cache.stride(0) // kv_cache.stride(1)) + kv_cache.shape[1]
    token_size = kv_cache.stride(1)
    kv_cache.as_strided((num_slots, *kv.shape[1:]), (token_size, kv.shape[2], 1)).index_copy_(0, slot_mapping, kv)


def paged_attention(q: Tensor, kv_cache: Tensor, plan: GatheredChunks, *, has_window: bool = False) -> Tensor:
    """Attend each query token to its sequence's cached keys, up to and including its own; with a window, to the last.

    q [T, H, D] · kv_cache [B, S, 2, KH, D]. Returns [T, H * D] in q's dtype. Specified by `reference.paged_attention`.
    """
    output = torch.empty_like(q)
    for group in plan.groups:
        if group.queries is None:
            return _attend(q, kv_cache, group, plan.gathered, has_window=has_window).flatten(1)
        padded = q.index_select(0, group.queries.source)
        attended = _attend(padded, kv_cache, group, plan.gathered, has_window=has_window)
        output.index_copy_(0, group.queries.target, attended.index_select(0, group.queries.is_real))
    return output.flatten(1)


def _attend(q: Tensor, kv_cache: Tensor, group: AttentionGroup, gathered: Tensor, *, has_window: bool) -> Tensor:
    """Returns [N * Q, H, D] for q of that shape."""
    num_queries, num_heads, head_dim = q.shape
    num_kv_heads = kv_cache.shape[3]
    blocks = gathered[: group.block_ids.shape[0]]
    torch.index_select(kv_cache, 0, group.block_ids, out=blocks)
    keys, values = (
        blocks.view(group.num_chunks, -1, 2, num_kv_heads, head_dim)[:, : group.num_keys]
        .permute(2, 0, 3, 1, 4)  # [2, N, KH, L, D]
        .unbind()
    )
    # The query heads that share a key-value head count as further queries: their keys are then read once.
    shape = (group.num_chunks, -1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    queries = q.view(shape).transpose(1, 2).flatten(2, 3)  # [N, KH, Q * G, D]
    mask = group.window_mask if has_window else group.mask
    attended = scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    per_query = attended.view(group.num_chunks, num_kv_heads, -1, num_heads // num_kv_heads, head_dim)
    return per_query.transpose(1, 2).reshape(num_queries, num_heads, head_dim)
