"""What a program of attention does with its part of the keys, for tiles of queries and for single tokens alike.

A running maximum and sum go through the keys with it (Dao et al. 2022), in base 2.
"""

import triton
import triton.language as tl


@triton.jit
def sum_values(
    queries: tl.tensor,
    position: tl.tensor,
    slots: tl.tensor,
    blocks: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    block_stride: tl.tensor,
    slot_stride: tl.tensor,
    value_offset: tl.tensor,
    scale: tl.tensor,
    window: tl.tensor,
    head_dim: tl.constexpr,
    block_size: tl.constexpr,
    block_m: tl.constexpr,
    block_n: tl.constexpr,
    block_d: tl.constexpr,
    precision: tl.constexpr,
    product: tl.constexpr,
    has_window: tl.constexpr,
) -> tl.tensor:
    """Of the keys [begin, end) of one sequence and head: each row's largest score, the sum of its weights, and the sum
    of the values by them. Row m sees the keys up to `position[m]`.
    """
    d = tl.arange(0, block_d)
    has_d = d < head_dim
    largest = tl.full((block_m,), float("-inf"), tl.float32)
    total = tl.zeros((block_m,), tl.float32)
    summed = tl.zeros((block_m, block_d), tl.float32)
    for start in range(begin, end, block_n):
        n = start + tl.arange(0, block_n)
        is_key = n < end
        block = tl.load(blocks + n // block_size, mask=is_key, other=0).to(tl.int64)
        slot = slots + block * block_stride + (n % block_size) * slot_stride
        keys = tl.load(slot[None, :] + d[:, None], mask=is_key[None, :] & has_d[:, None], other=0.0)
        scores = tl.dot(queries, keys.to(product), input_precision=precision) * scale
        is_seen = is_key[None, :] & (n[None, :] <= position[:, None])
        if has_window:
            is_seen = is_seen & (n[None, :] > position[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))
        larger = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet must not subtract one infinity from another.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        fading = tl.exp2(largest - base)
        at = slot[:, None] + value_offset + d[None, :]
        values = tl.load(at, mask=is_key[:, None] & has_d[None, :], other=0.0)
        total = total * fading + tl.sum(weights, 1)
        rounded = weights.to(values.dtype).to(product)
        summed = tl.dot(rounded, values.to(product), summed * fading[:, None], input_precision=precision)
        largest = larger
    return largest, total, summed
