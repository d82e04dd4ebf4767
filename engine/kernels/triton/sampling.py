"""From logits to tokens, a row to a program: the likeliest, whether all is finite, and a draw by temperature."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.launches import OPTIONS

_TOKENS_AT_A_TIME = 4096


def argmax_finite(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(token ids [R] int64, the first of the likeliest of each row; is finite [R] bool, whether all of its row is).

    logits [R, V] float32, rows contiguous. A row that is not finite gets some token of the vocabulary.
    """
    num_rows, size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    is_finite = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows:
        _argmax_finite[(num_rows,)](
            logits, token_ids, is_finite, logits.stride(0), size=size, block=_TOKENS_AT_A_TIME, num_warps=8, **OPTIONS
        )
    return token_ids, is_finite


def draw(logits: Tensor, temperature: Tensor, smallest: Tensor, draws: Tensor) -> Tensor:
    """As `ops.draw`, everything on the device: a token from each row [R] int64.

    logits [R, V] float32, rows contiguous · temperature, smallest, draws [R] float32
    """
    num_rows, size = logits.shape
    token_ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _draw[(num_rows,)](
            logits,
            temperature,
            smallest,
            draws,
            token_ids,
            logits.stride(0),
            size=size,
            block=_TOKENS_AT_A_TIME,
            num_warps=8,
            **OPTIONS,
        )
    return token_ids


@triton.jit
def _argmax_finite(
    logits: tl.tensor,
    token_ids: tl.tensor,
    is_finite: tl.tensor,
    row_stride: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    largest = float("-inf")
    found = 0
    num_bad = 0
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        values = tl.load(logits + row * row_stride + column, mask=column < size, other=float("-inf"))
        num_bad += tl.sum(((values - values != 0.0) & (column < size)).to(tl.int32), 0)
        here = tl.max(values, 0)
        first = tl.min(tl.where(values == here, column, size), 0)
        found = tl.where(here > largest, first, found)
        largest = tl.maximum(largest, here)
    tl.store(token_ids + row, tl.minimum(found, size - 1).to(tl.int64))
    tl.store(is_finite + row, num_bad == 0)


@triton.jit
def _weights(
    logits: tl.tensor,
    column: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    least: tl.tensor,
    size: tl.constexpr,
) -> tl.tensor:
    """What each of a row's tokens weighs: the likeliest 1, those that are filtered out nothing."""
    values = tl.load(logits + column, mask=column < size, other=float("-inf"))
    weights = tl.exp((values - largest) / temperature)
    # The likeliest is exactly 1: a quotient with a tiny temperature need not be.
    weights = tl.where(values == largest, 1.0, weights)
    return tl.where((column < size) & (values >= least), weights, 0.0)


@triton.jit
def _largest(logits: tl.tensor, size: tl.constexpr, block: tl.constexpr) -> tl.tensor:
    """A row's largest logit."""
    largest = float("-inf")
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        largest = tl.maximum(largest, tl.max(tl.load(logits + column, mask=column < size, other=float("-inf")), 0))
    return largest


@triton.jit
def _total(
    logits: tl.tensor,
    largest: tl.tensor,
    temperature: tl.tensor,
    least: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
) -> tl.tensor:
    """What a row's tokens weigh together."""
    total = 0.0
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        total += tl.sum(_weights(logits, column, largest, temperature, least, size), 0)
    return total


@triton.jit
def _draw(
    logits: tl.tensor,
    temperatures: tl.tensor,
    smallest: tl.tensor,
    draws: tl.tensor,
    token_ids: tl.tensor,
    row_stride: tl.tensor,
    size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Three passes over a row, which stays cached: the largest logit, the sum of weights, the place of the draw."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    temperature = tl.maximum(tl.load(temperatures + row), 1.1754943508222875e-38)
    least = tl.load(smallest + row)
    largest = _largest(logits, size, block)
    target = tl.load(draws + row) * _total(logits, largest, temperature, least, size, block)
    before = 0.0
    found = size
    last = 0  # the last token with any weight, which is drawn where rounding hides it
    for start in range(0, size, block):
        column = start + tl.arange(0, block)
        weights = _weights(logits, column, largest, temperature, least, size)
        has_passed = (before + tl.cumsum(weights, 0) > target) & (weights > 0.0)
        found = tl.minimum(found, tl.min(tl.where(has_passed, column, size), 0))
        last = tl.maximum(last, tl.max(tl.where(weights > 0.0, column, 0), 0))
        before += tl.sum(weights, 0)
    tl.store(token_ids + row, tl.where(found < size, found, last).to(tl.int64))
