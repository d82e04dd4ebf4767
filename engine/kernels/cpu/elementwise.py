"""What stands between a layer's products, each in one pass over its tokens. Residual streams are float32."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.kernels.cpu.compiled import elements, unlocked
from engine.kernels.cpu.shared_work import counters, done, run_together, take, wait
from engine.kernels.cpu.softmax import exponential
from engine.kernels.cpu.vectors import narrow, widen

_ONE = np.float32(1)
_GRAIN = 16  # tokens that are taken at a time
_TOKENS_PER_THREAD = 64  # for fewer it is not worth it to wake another one


def add_rms_norm(residual: Tensor, delta: Tensor, weight: Tensor, eps: float) -> Tensor:
    """residual [T, E] float32 += delta [T, E]; returns the norm of the sum in delta's dtype. weight [E] float32."""
    normed = torch.empty_like(delta)
    run_together(
        _num_threads(len(delta)),
        _add_rms_norm,
        counters(1),
        residual.numpy(),
        elements(delta),
        weight.numpy(),
        np.float32(eps),
        elements(normed),
    )
    return normed


def silu_mul(gate_up: Tensor) -> Tensor:
    """As `reference.silu_mul`, in gate_up's dtype."""
    product = torch.empty((gate_up.shape[0], gate_up.shape[1] // 2), dtype=gate_up.dtype)
    run_together(_num_threads(len(gate_up)), _silu_mul, counters(1), elements(gate_up), elements(product))
    return product


def _num_threads(num_tokens: int) -> int:
    return min(torch.get_num_threads(), 1 + num_tokens // _TOKENS_PER_THREAD)


@unlocked
def _add_rms_norm(phases: Any, residual: Any, delta: Any, weight: Any, eps: Any, normed: Any) -> None:
    num_tokens, size = len(residual), residual.shape[1]
    begin = take(phases, 0, _GRAIN)
    while begin < num_tokens:
        end = min(num_tokens, begin + _GRAIN)
        for token in range(begin, end):
            total = np.float32(0)
            for index in range(size):
                value = residual[token, index] + widen(delta[token, index])
                residual[token, index] = value
                total += value * value
            scale = _ONE / np.sqrt(total / np.float32(size) + eps)
            for index in range(size):
                normed[token, index] = narrow(residual[token, index] * scale * weight[index], normed[token, 0])
        done(phases, 0, end - begin)
        begin = take(phases, 0, _GRAIN)
    wait(phases, 0, num_tokens)


@unlocked
def _silu_mul(phases: Any, gate_up: Any, product: Any) -> None:
    num_tokens, size = len(product), product.shape[1]
    begin = take(phases, 0, _GRAIN)
    while begin < num_tokens:
        end = min(num_tokens, begin + _GRAIN)
        for token in range(begin, end):
            for index in range(size):
                gate, up = widen(gate_up[token, index]), widen(gate_up[token, size + index])
                product[token, index] = narrow(gate / (_ONE + exponential(-gate)) * up, product[token, 0])
        done(phases, 0, end - begin)
        begin = take(phases, 0, _GRAIN)
    wait(phases, 0, num_tokens)
