"""The operations that the layer stack calls, each in the form for its device. `reference` says what they compute.

Triton's forms are imported where they run only: everybody else's engine needs no Triton.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from engine.kernels import attention, cpu, reference
from engine.kernels.attention import GatheredChunks
from engine.kernels.cpu.attention import PagedChunks
from engine.kernels.cpu.layer_stack import HeadShape, LayerStack, LayerWeights
from engine.kernels.cpu.panels import Panels
from engine.kernels.linear import Packed, linear, pack
from engine.kernels.triton import runs_on
from engine.kernels.triton.chunks import TritonChunks

__all__ = [
    "ChunkPlan",
    "GatheredChunks",
    "HeadShape",
    "LayerStack",
    "LayerWeights",
    "Packed",
    "PagedChunks",
    "Rotation",
    "TritonChunks",
    "add_rms_norm",
    "attend",
    "draw",
    "finite_rows",
    "judge",
    "largest_products",
    "likeliest",
    "linear",
    "norm_heads",
    "pack",
    "rotation",
    "silu_mul",
]

Rotation = tuple[Tensor, Tensor]
"""Cosine and sine of a step's tokens, [T, D/2] float32 each: the same for every layer."""

ChunkPlan = PagedChunks | GatheredChunks | TritonChunks
"""Where a step's tokens find their keys; its type says which form of `attend` it is for."""


def rotation(positions: Tensor, frequencies: Tensor, scale: float = 1.0) -> Rotation:
    """What `attend` rotates tokens at `positions` [T] by, and makes `scale` times as long; `frequencies` [D/2] in
    radians per token."""
    angles = positions[:, None].float() * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return (cosine, sine) if scale == 1.0 else (cosine.mul_(scale), sine.mul_(scale))


def norm_heads(qkv: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `reference.norm_heads`, in place."""
    if runs_on(qkv.device.type):
        from engine.kernels.triton import elementwise

        return elementwise.norm_heads(qkv, weight, eps)
    heads = qkv[:, : len(weight)]
    heads.copy_(rms_norm(heads.float(), [weight.shape[-1]], eps=eps).mul_(weight))
    return qkv


def attend(qkv: Tensor, by: Rotation, cached: Tensor, plan: ChunkPlan, window: int | None = None) -> Tensor:
    """Rotates queries and keys, stores keys and values, and attends each token to its sequence up to itself, or to
    the last `window` tokens of it.

    qkv [T, H + 2 KH, D], queries, keys, values · cached [B, S, 2, KH, D], a layer's part of each block, written.
    Returns [T, H * D]. Specified by `rope`, `store_kv` and `paged_attention` of `reference`, one after the other.
    """
    if isinstance(plan, PagedChunks):
        return cpu.attend(qkv, by, cached, plan, window)
    if isinstance(plan, TritonChunks):
        from engine.kernels.triton import attention as triton_attention

        return triton_attention.attend(qkv, by, cached, plan, window)
    return attention.attend(qkv, by, cached, plan, window)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, E] float32 += delta [T, E]; returns the sum's `reference.rms_norm` in delta's dtype."""
    if runs_on(residual.device.type):
        from engine.kernels.triton import elementwise

        return elementwise.add_rms_norm(residual, delta, weight, eps)
    if residual.device.type == "cpu":
        return cpu.add_rms_norm(residual, delta, weight, eps)
    return reference.rms_norm(residual.add_(delta), weight, eps).to(delta.dtype)


def silu_mul(gate_up: Tensor) -> Tensor:
    if runs_on(gate_up.device.type):
        from engine.kernels.triton import elementwise

        return elementwise.silu_mul(gate_up)
    if gate_up.device.type == "cpu":
        return cpu.silu_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def likeliest(logits: Tensor) -> Tensor:
    """The likeliest token of each row [R] int64. logits [R, V] float32."""
    if runs_on(logits.device.type):
        from engine.kernels.triton import sampling

        return sampling.argmax_finite(logits)[0]
    return cpu.likeliest(logits) if logits.device.type == "cpu" else logits.argmax(-1)


def finite_rows(logits: Tensor) -> Tensor:
    """Whether all logits of a row are finite [R] bool. logits [R, V] float32."""
    if runs_on(logits.device.type):
        from engine.kernels.triton import sampling

        return sampling.argmax_finite(logits)[1]
    return cpu.finite_rows(logits) if logits.device.type == "cpu" else logits.sum(-1).isfinite()


def judge(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`likeliest`, and `finite_rows`."""
    if runs_on(logits.device.type):
        from engine.kernels.triton import sampling

        return sampling.argmax_finite(logits)
    return likeliest(logits), finite_rows(logits)


def largest_products(x: Tensor, packed: Packed, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """`judge` of the float32 that `linear` makes of these, which need not exist for it. x [R, E], R > 0."""
    if isinstance(packed, Panels):
        return cpu.largest_products(x, packed)
    return judge(linear(x, packed, bias, torch.float32))


def draw(logits: Tensor, temperature: NDArray[np.float32], smallest: Tensor, draws: NDArray[np.float32]) -> Tensor:
    """A token from each row [R] int64: where the distribution function, in order of token id, first passes its draw.

    logits [R, V] float32, finite · temperature [R], above 0 · smallest [R]: tokens with a smaller logit are not drawn ·
    draws [R] in [0, 1)
    """
    if runs_on(logits.device.type):
        from engine.kernels.triton import sampling

        settings = torch.from_numpy(np.stack((temperature, draws))).to(logits.device)
        return sampling.draw(logits, settings[0], smallest, settings[1])
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
