"""What stands between a layer's products, each in one pass over its tokens. Residual streams are float32."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launches import OPTIONS, next_power_of_2

_COLUMNS_PER_PROGRAM = 1024


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, E] float32 += delta [T, E]; returns the norm of the sum in delta's dtype. weight [E] float32."""
    num_tokens, size = residual.shape
    if not (residual.is_contiguous() and delta.is_contiguous()):
        raise ValueError("the residual stream, and what is added to it, must be contiguous")
    normed = torch.empty_like(delta)
    block = next_power_of_2(size)
    if num_tokens:
        _add_rms_norm[(num_tokens,)](
            residual,
            delta,
            weight,
            normed,
            eps,
            size=size,
            block=block,
            num_warps=min(16, max(1, block // 512)),
            **OPTIONS,
        )
    return normed


def silu_mul(gate_up: Tensor) -> Tensor:
    """As `reference.silu_mul`, in gate_up's dtype. gate_up [T, 2 * I]."""
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    if not gate_up.is_contiguous():
        raise ValueError("gate and up must be contiguous")
    product = torch.empty((num_tokens, size), dtype=gate_up.dtype, device=gate_up.device)
    block = min(_COLUMNS_PER_PROGRAM, next_power_of_2(size))
    if num_tokens:
        _silu_mul[(num_tokens, triton.cdiv(size, block))](
            gate_up, product, size=size, block=block, num_warps=4, **OPTIONS
        )
    return product


def norm_heads(qkv: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As `reference.norm_heads`, in place. qkv [T, heads, D], a token's heads contiguous · weight [N, D] float32."""
    num_tokens, _, head_dim = qkv.shape
    if qkv.stride()[1:] != (head_dim, 1) or not weight.is_contiguous():
        raise ValueError("the heads of a token, and their weights, must be contiguous")
    if num_tokens:
        _norm_heads[(num_tokens, weight.shape[0])](
            qkv, weight, qkv.stride(0), eps, head_dim=head_dim, block=next_power_of_2(head_dim), num_warps=1, **OPTIONS
        )
    return qkv


@triton.jit
def _add_rms_norm(
    residual: tl.tensor,
    delta: tl.tensor,
    weight: tl.tensor,
    normed: tl.tensor,
    eps: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    column = tl.arange(0, block)
    is_real = column < size
    place = tl.program_id(0).to(tl.int64) * size + column
    added = tl.load(residual + place, mask=is_real, other=0.0)
    added += tl.load(delta + place, mask=is_real, other=0.0).to(tl.float32)
    tl.store(residual + place, added, mask=is_real)
    scale = tl.rsqrt(tl.sum(added * added, 0) / size + eps)
    scaled = added * scale * tl.load(weight + column, mask=is_real, other=0.0)
    tl.store(normed + place, scaled.to(normed.dtype.element_ty), mask=is_real)


@triton.jit
def _silu_mul(gate_up: tl.tensor, product: tl.tensor, size: tl.constexpr, block: tl.constexpr) -> None:
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_real = column < size
    gate = tl.load(gate_up + token * 2 * size + column, mask=is_real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + (token * 2 + 1) * size + column, mask=is_real, other=0.0).to(tl.float32)
    activated = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(product + token * size + column, activated.to(product.dtype.element_ty), mask=is_real)


@triton.jit
def _norm_heads(
    qkv: tl.tensor,
    weight: tl.tensor,
    token_stride: tl.tensor,
    eps: tl.tensor,
    head_dim: tl.constexpr,
    block: tl.constexpr,
) -> None:
    head = tl.program_id(1)
    column = tl.arange(0, block)
    is_real = column < head_dim
    place = tl.program_id(0).to(tl.int64) * token_stride + head * head_dim + column
    values = tl.load(qkv + place, mask=is_real, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / head_dim + eps)
    normed = values * scale * tl.load(weight + head * head_dim + column, mask=is_real, other=0.0)
    tl.store(qkv + place, normed.to(qkv.dtype.element_ty), mask=is_real)
