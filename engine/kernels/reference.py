"""The operations of the layer stack, as plainly as torch can say them: these are the specification.

`ops` must agree with them; the tests compare over odd sizes. Written for reading, never for speed.
"""

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Scale each row to root mean square 1, then by `weight`.

    x [T, E] float32 · weight [E]. Source: Zhang, Sennrich 2019.
    """
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, positions: Tensor, frequencies: Tensor, scale: float = 1.0) -> Tensor:
    """Rotate the pair (x[i], x[i + D/2]) of each head by position * frequencies[i], in radians; then times `scale`.

    x [T, N, D] · positions [T] · frequencies [D/2]. Source: Su et al. 2021, in Hugging Face's half-by-half order.
    """
    angles = (positions[:, None].float() * frequencies)[:, None]  # [T, 1, D/2]
    first, second = x.float().chunk(2, dim=-1)
    rotated = (first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin())
    return (torch.cat(rotated, dim=-1) * scale).to(x.dtype)


def norm_heads(qkv: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The first N heads of each token by `rms_norm`, the others as they are.

    qkv [T, H + 2 KH, D] · weight [N, D] float32, of each head. Source: Qwen3, whose N are the heads of q and of k.
    """
    normed = rms_norm(qkv[:, : len(weight)].float(), weight, eps)
    return torch.cat((normed.to(qkv.dtype), qkv[:, len(weight) :]), dim=1)


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, where gate_up [T, 2 * I] holds both side by side. Source: Shazeer 2020 (SwiGLU)."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gate * torch.sigmoid(gate) * up


def store_kv(kv_cache: Tensor, kv: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's keys and values into its slot, block * P + offset, where blocks begin P >= S slots apart.

    kv_cache [B, S, 2, KH, D], written in place · kv [T, 2 * KH, D], keys before values · slot_mapping [T] int64
    """
    block_slots = kv_cache.stride(0) // kv_cache.stride(1)
    for token, slot in enumerate(slot_mapping.tolist()):
        kv_cache[slot // block_slots, slot % block_slots] = kv[token].view(kv_cache.shape[2:])


def paged_attention(
    q: Tensor,
    kv_cache: Tensor,
    block_tables: list[list[int]],
    chunks: list[tuple[int, int]],
    window: int | None = None,
) -> Tensor:
    """Attend each query token to its sequence's cached keys, up to and including its own, at most `window` of them.

    q [T, H, D], the tokens of all chunks in order · kv_cache [B, S, 2, KH, D] · block_tables, one list of block ids per
    chunk · chunks, the (first position, number of tokens) of each. Head h reads key-value head h // (H / KH).
    Returns [T, H, D]. Source: Kwon et al. 2023, §4.1.
    """
    outputs = []
    num_shared = q.shape[1] // kv_cache.shape[3]
    for block_ids, (start, num_tokens) in zip(block_tables, chunks, strict=True):
        queries, q = q[:num_tokens].float(), q[num_tokens:]
        cached = kv_cache[block_ids].flatten(0, 1)[: start + num_tokens].float()  # [L, 2, KH, D]
        keys, values = cached.repeat_interleave(num_shared, dim=2).unbind(1)  # [L, H, D]
        scores = torch.einsum("thd,lhd->htl", queries, keys) / queries.shape[-1] ** 0.5
        keys_at, queries_at = torch.arange(start + num_tokens), torch.arange(start, start + num_tokens)[:, None]
        hidden = (keys_at > queries_at) | (keys_at <= queries_at - (window or start + num_tokens))
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        outputs.append(torch.einsum("htl,lhd->thd", weights, values).to(kv_cache.dtype))
    return torch.cat(outputs)
