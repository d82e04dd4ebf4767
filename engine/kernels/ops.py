"""The operations that the layer stack calls, each in the form for its device. `reference` says what they compute."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import silu

from engine.kernels import attention, cpu, reference
from engine.kernels.attention import GatheredChunks
from engine.kernels.cpu.attention import PagedChunks
from engine.kernels.linear import linear, pack

__all__ = [
    "ChunkPlan",
    "GatheredChunks",
    "PagedChunks",
    "Rotation",
    "add_rms_norm",
    "attend",
    "draw",
    "linear",
    "pack",
    "rotation",
    "silu_mul",
]

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of a step's tokens, [T, D/2] float32 each: the same for every layer."""

ChunkPlan = PagedChunks | GatheredChunks
"""Where a step's tokens find their keys; its type says which form of `attend` it is for."""


def rotation(positions: Tensor, frequencies: Tensor) -> Rotation:
    """What `attend` rotates tokens at `positions` [T] by; `frequencies` [D/2] in radians per token."""
    angles = positions[:, None].float() * frequencies
    return angles.cos(), angles.sin()


def attend(qkv: Tensor, by: Rotation, cached: Tensor, plan: ChunkPlan) -> Tensor:
    """Rotates queries and keys, stores keys and values, and attends each token to its sequence up to itself.

    qkv [T, H + 2 KH, D], queries, keys, values · cached [B, S, 2, KH, D], a layer's part of each block, written.
    Returns [T, H * D]. Specified by `rope`, `store_kv` and `paged_attention` of `reference`, one after the other.
    """
    if isinstance(plan, PagedChunks):
        return cpu.attend(qkv, by, cached, plan)
    return attention.attend(qkv, by, cached, plan)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, E] float32 += delta [T, E]; returns the sum's `reference.rms_norm` in delta's dtype."""
    if residual.device.type == "cpu":
        return cpu.add_rms_norm(residual, delta, weight, eps)
    return reference.rms_norm(residual.add_(delta), weight, eps).to(delta.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    if gate_up.device.type == "cpu":
        return cpu.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def draw(logits: Tensor, temperature: NDArray[np.float32], smallest: Tensor, draws: NDArray[np.float32]) -> Tensor:
    """A token from each row [R] int64: where the distribution function, in order of token id, first passes its draw.

    logits [R, V] float32, finite · temperature [R], above 0 · smallest [R]: tokens with a smaller logit are not drawn ·
    draws [R] in [0, 1)
    """
    if logits.device.type == "cpu":
        return cpu.draw(logits, temperature, smallest.numpy(), draws)
    by = torch.from_numpy(temperature).to(logits.device)[:, None]
    scaled = (logits - logits.amax(-1, keepdim=True)) / by
    # Asking for sums in float64 would double the time of a draw.
    cumulative = scaled.exp().masked_fill_(logits < smallest[:, None], 0.0).cumsum(-1)
    total = cumulative[:, -1:]
    target = torch.from_numpy(draws).to(logits.device)[:, None] * total
    # Strictly below the whole, so that the last token that can be drawn is the last one that is.
    within = torch.minimum(target, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, within, right=True)[:, 0]
