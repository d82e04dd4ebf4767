"""The operations that the layer stack calls. Each agrees with its namesake in `reference`; shapes are given there."""

import torch
from torch import Tensor
from torch.nn.functional import silu

from engine.kernels.attention import AttentionGroup, AttentionPlan, PaddedQueries, paged_attention
from engine.kernels.linear import linear, pack
from engine.kernels.reference import rms_norm

__all__ = [
    "AttentionGroup",
    "AttentionPlan",
    "PaddedQueries",
    "Rotation",
    "linear",
    "pack",
    "paged_attention",
    "rms_norm",
    "rope",
    "rotation",
    "silu_mul",
    "store_kv",
]

Rotation = tuple[Tensor, Tensor]
"""Cosine and signed sine of a step's tokens, [T, 1, D] each: the same for every layer."""


def rotation(positions: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
    """What `rope` needs for tokens at `positions` [T]; `frequencies` [D/2] in radians per token."""
    angles = (positions[:, None].float() * frequencies)[:, None]
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat((cosine, cosine), dim=-1), torch.cat((-sine, sine), dim=-1)


def rope(x: Tensor, by: Rotation) -> Tensor:
    """Rotate x [T, N, D]. A roll by half a head brings each element's partner beside it."""
    cosine, signed_sine = by
    return (x * cosine).addcmul_(x.roll(x.shape[-1] // 2, -1), signed_sine)


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def store_kv(kv_cache: Tensor, kv: Tensor, slot_mapping: Tensor) -> None:
    num_slots = (kv_cache.shape[0] - 1) * (kv_cache.stride(0) // kv_cache.stride(1)) + kv_cache.shape[1]
    token_size = kv_cache.stride(1)
    kv_cache.as_strided((num_slots, *kv.shape[1:]), (token_size, kv.shape[2], 1)).index_copy_(0, slot_mapping, kv)
