"""The operations that run, against their specification."""

import numpy as np
import pytest
import torch
from numba import njit

from engine.kernels import attention, ops, reference
from engine.kernels.cpu.compiled import elements
from engine.kernels.cpu.vectors import narrow
from engine.kernels.linear import linear, pack

NUM_ROWS = [1, 2, 15, 16, 17, 130]


DTYPES = {torch.float32: 1e-6, torch.bfloat16: 0.01}


@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_rope_rotates_as_specified(num_tokens):
    x, positions = torch.randn(num_tokens, 5, 16), torch.randint(0, 9000, (num_tokens,))
    frequencies = 10000.0 ** (-torch.arange(8) / 8)
    rotated = attention.rope(x, ops.rotation(positions, frequencies))
    torch.testing.assert_close(rotated, reference.rope(x, positions, frequencies))


def test_rotated_pairs_are_as_much_longer_as_asked_for():
    x, positions, frequencies = torch.randn(5, 3, 16), torch.arange(5), 10000.0 ** (-torch.arange(8) / 8)
    rotated = attention.rope(x, ops.rotation(positions, frequencies, 1.25))
    torch.testing.assert_close(rotated, reference.rope(x, positions, frequencies, 1.25))
    torch.testing.assert_close(rotated, 1.25 * reference.rope(x, positions, frequencies))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_heads_of_q_and_k_are_normed_as_specified_and_those_of_v_left(num_tokens, dtype):
    qkv, weight = 3 * torch.randn(num_tokens, 8, 16).to(dtype), torch.rand(6, 16)
    expected = reference.norm_heads(qkv, weight, 1e-5)
    by_head = torch.nn.functional.rms_norm(qkv[:, :6].float(), (16,), eps=1e-5) * weight
    normed = ops.norm_heads(qkv.clone(), weight, 1e-5)
    torch.testing.assert_close(normed, expected, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    torch.testing.assert_close(normed[:, :6].float(), by_head, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    assert torch.equal(normed[:, 6:], qkv[:, 6:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_silu_mul_is_as_specified(num_tokens, dtype):
    gate_up = 20 * torch.randn(num_tokens, 22).to(dtype)
    expected = reference.silu_mul(gate_up.float())
    torch.testing.assert_close(ops.silu_mul(gate_up).float(), expected, atol=DTYPES[dtype], rtol=DTYPES[dtype])


def test_silu_of_what_float32_cannot_hold_the_exponential_of():
    gates = torch.tensor([[-1e4, 1e30, -200.0, 0.0], [torch.nan, torch.inf, 1.0, 2.0]])
    product = ops.silu_mul(torch.cat((gates, torch.ones(2, 4)), dim=1))
    torch.testing.assert_close(product[0], torch.tensor([0.0, 1e30, 0.0, 0.0]))
    assert product[1].isnan().tolist() == [True, False, False, False]
    assert product[1, 1] == torch.inf


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_norm_of_what_was_added_to_the_residual_stream(num_tokens, dtype):
    residual, weight = torch.randn(num_tokens, 33), torch.randn(33)
    delta = torch.randn(num_tokens, 33).to(dtype)
    added = residual + delta.float()
    normed = ops.add_rms_norm(residual, delta, weight, 1e-5)
    assert torch.equal(residual, added)
    assert normed.dtype == dtype
    expected = torch.nn.functional.rms_norm(added, (33,), weight, 1e-5)
    torch.testing.assert_close(normed.float(), expected, atol=DTYPES[dtype], rtol=DTYPES[dtype])
    torch.testing.assert_close(reference.rms_norm(added, weight, 1e-5), expected)


def test_a_token_that_is_no_number_leaves_the_others_as_they_are():
    residual = torch.randn(3, 33)
    residual[1, 7] = torch.nan
    normed = ops.add_rms_norm(residual, torch.zeros(3, 33), torch.ones(33), 1e-5)
    assert normed.isnan().all(-1).tolist() == [False, True, False]
    assert not normed[[0, 2]].isnan().any()


def test_narrowing_is_torchs_own():
    bits = torch.randint(-(2**31), 2**31, (1000, 64), dtype=torch.int64).to(torch.int32)
    numbers = torch.cat((bits.view(torch.float32).ravel(), torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0])))
    narrowed = torch.empty(len(numbers), dtype=torch.bfloat16)
    _narrow(numbers.numpy(), elements(narrowed))
    torch.testing.assert_close(narrowed, numbers.to(torch.bfloat16), atol=0, rtol=0, equal_nan=True)


@njit
def _narrow(numbers, narrowed):
    for index in range(len(numbers)):
        narrowed[index] = narrow(numbers[index], narrowed[0])


@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_store_kv_writes_the_specified_slots_and_no_others(num_tokens):
    stored, expected = torch.randn(2, 40, 4, 2, 3, 8).unbind()
    stored.copy_(expected)
    kv, slots = torch.randn(num_tokens, 6, 8), torch.randperm(160)[:num_tokens]
    attention.store_kv(stored, kv, slots)
    reference.store_kv(expected, kv, slots)
    assert torch.equal(stored, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_tokens", NUM_ROWS)
def test_packed_product_is_the_plain_one(num_tokens, dtype):
    x, weight = torch.randn(num_tokens, 48).to(dtype), torch.randn(80, 48).to(dtype)
    exact = x.double() @ weight.double().T
    tolerance = 1e-4 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(linear(x, pack(weight)).double(), exact, atol=tolerance, rtol=0)


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_draw_is_where_the_distribution_function_first_passes_it(num_threads, torch_threads):
    torch_threads(num_threads)
    torch.manual_seed(0)
    logits = torch.randn(200, 1300) * 4
    temperature = np.linspace(0.05, 3, 200, dtype=np.float32)
    smallest = torch.where(torch.arange(200) % 3 == 0, logits.topk(5).values[:, -1], -torch.inf)
    draws = np.linspace(0, 1, 200, endpoint=False, dtype=np.float32)
    token_ids = ops.draw(logits, temperature, smallest, draws).numpy()
    weights = np.exp((logits - logits.amax(-1, keepdim=True)).double().numpy() / temperature[:, None])
    weights[logits.numpy() < smallest.numpy()[:, None]] = 0
    passed = weights.cumsum(-1) / weights.sum(-1, keepdims=True)
    rows = np.arange(200)
    assert (passed[rows, token_ids] > draws - 1e-6).all()
    assert (passed[rows, token_ids] - weights[rows, token_ids] / weights.sum(-1) <= draws + 1e-6).all()
    assert (weights[rows, token_ids] > 0).all()


@pytest.mark.parametrize("drawn", [0.0, 1 - 2.0**-24])
def test_the_first_and_the_last_draw_find_a_token_that_has_weight(drawn):
    logits = torch.full((1, 2000), -1e30)
    logits[0, [700, 1400]] = 1.0
    one = np.ones(1, np.float32)
    [token_id] = ops.draw(logits, one, torch.tensor([-torch.inf]), drawn * one).tolist()
    assert token_id == (700 if drawn == 0 else 1400)


@pytest.mark.parametrize("temperature", [1e-37, np.finfo(np.float32).tiny, 1e-40, 1e-45])
def test_a_temperature_of_almost_nothing_draws_the_likeliest(temperature):
    logits = torch.tensor([[1.0, 1.0 + 1e-6, -3e38]])
    by = np.full(1, temperature, np.float32)
    assert ops.draw(logits, by, torch.tensor([-torch.inf]), np.full(1, 0.3, np.float32)).tolist() == [1]


def test_what_is_no_number_draws_a_token_of_the_vocabulary():
    logits = torch.full((1, 600), torch.nan)
    [token_id] = ops.draw(logits, np.ones(1, np.float32), torch.tensor([-torch.inf]), np.zeros(1, np.float32)).tolist()
    assert 0 <= token_id < 600
