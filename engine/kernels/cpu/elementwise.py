"""What stands between a layer's products, each in one pass over its tokens. Residual streams are float32."""

from typing import Any

import numpy as np
import torch
from numba import prange
from torch import Tensor

from engine.kernels.cpu.compiled import Compiled, elements
from engine.kernels.cpu.softmax import exponential
from engine.kernels.cpu.vectors import narrow, widen

_ONE = np.float32(1)


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, E] float32 += delta [T, E]; returns the norm of the sum in delta's dtype. weight [E] float32."""
    normed = torch.empty_like(delta)
    _add_rms_norm(residual.numpy(), elements(delta), weight.numpy(), np.float32(eps), elements(normed))
    return normed


def silu_mul(gate_up: Tensor) -> Tensor:
    """As `reference.silu_mul`, in gate_up's dtype."""
    product = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype)
    _silu_mul(elements(gate_up), elements(product))
    return product


@Compiled
def _add_rms_norm(residual: Any, delta: Any, weight: Any, eps: Any, normed: Any) -> None:
    size = residual.shape[1]
    like = delta[0, 0]
    for token in prange(len(residual)):
        total = np.float32(0)
        for index in range(size):
            value = residual[token, index] + widen(delta[token, index])
            residual[token, index] = value
            total += value * value
        scale = _ONE / np.sqrt(total / np.float32(size) + eps)
        for index in range(size):
            normed[token, index] = narrow(residual[token, index] * scale * weight[index], like)


@Compiled
def _silu_mul(gate_up: Any, product: Any) -> None:
    size = product.shape[1]
    like = gate_up[0, 0]
    for token in prange(len(product)):
        for index in range(size):
            gate, up = widen(gate_up[token, index]), widen(gate_up[token, size + index])
            product[token, index] = narrow(gate / (_ONE + exponential(-gate)) * up, like)
