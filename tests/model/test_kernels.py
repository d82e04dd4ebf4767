"""The operations that run, against their specification."""

import pytest
import torch

from engine.kernels import ops, reference
from engine.kernels.linear import linear, pack

NUM_ROWS = [1, 2, 15, 16, 17, 130]


@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_rope_rotates_as_specified(num_tokens):
    x, positions = torch.randn(num_tokens, 5, 16), torch.randint(0, 9000, (num_tokens,))
    frequencies = 10000.0 ** (-torch.arange(8) / 8)
    rotated = ops.rope(x, ops.rotation(positions, frequencies, torch.float32))
    torch.testing.assert_close(rotated, reference.rope(x, positions, frequencies))


@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_silu_mul_is_as_specified(num_tokens):
    gate_up = torch.randn(num_tokens, 22)
    torch.testing.assert_close(ops.silu_mul(gate_up), reference.silu_mul(gate_up))


def test_rms_norm_is_torchs_own():
    x, weight = torch.randn(7, 33), torch.randn(33)
    torch.testing.assert_close(ops.rms_norm(x, weight, 1e-5), torch.nn.functional.rms_norm(x, (33,), weight, 1e-5))


@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_store_kv_writes_the_specified_slots_and_no_others(num_tokens):
    stored, expected = torch.randn(2, 40, 4, 2, 3, 8).unbind()
    stored.copy_(expected)
    kv, slots = torch.randn(num_tokens, 6, 8), torch.randperm(160)[:num_tokens]
    ops.store_kv(stored, kv, slots)
    reference.store_kv(expected, kv, slots)
    assert torch.equal(stored, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_packed_product_is_the_plain_one(num_tokens, dtype):
    x, weight = torch.randn(num_tokens, 48).to(dtype), torch.randn(80, 48).to(dtype)
    exact = x.double() @ weight.double().T
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(linear(x, pack(weight)).double(), exact, atol=tolerance, rtol=0)
