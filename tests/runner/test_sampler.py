import numpy as np
import pytest
import torch

from engine.runner.random_draws import uniform
from engine.runner.row_table import SAMPLING_DTYPE
from engine.runner.sampler import sample

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "repetition_penalty": 1.0, "num_logprobs": -1}


def make_settings(num_rows, **columns):
    settings = np.zeros(num_rows, dtype=SAMPLING_DTYPE)
    for name, value in (NEUTRAL | columns).items():
        settings[name] = value
    return settings


def draw_many(logits, num_draws, **columns):
    """Tokens drawn from one distribution at `num_draws` positions."""
    rows = logits.repeat(num_draws, 1)
    return sample(rows, make_settings(num_draws, **columns), np.arange(num_draws)).numpy()


def naive_support(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """Token ids that may be drawn, found one by one in float64."""
    scaled = (logits.double() / temperature).tolist()
    ranked = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    if top_k:
        ranked = [token for token in ranked if scaled[token] >= scaled[ranked[min(top_k, len(ranked)) - 1]]]
    weights = [np.exp(scaled[token] - scaled[ranked[0]]) for token in ranked]
    kept, mass = [], 0.0
    for token, weight in zip(ranked, weights, strict=True):
        if mass < top_p * sum(weights):
            kept.append(token)
        mass += weight
    return {token for token in kept if np.exp(scaled[token] - scaled[ranked[0]]) >= min_p}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
def test_tokens_are_drawn_with_their_probabilities(temperature):
    torch.manual_seed(1)
    logits = torch.randn(12) * 2
    num_draws = 50_000
    counts = np.bincount(draw_many(logits, num_draws, temperature=temperature, seed=3), minlength=12)
    expected = torch.softmax(logits.double() / temperature, -1).numpy() * num_draws
    assert counts[expected < 0.01].sum() == 0
    likely = expected >= 5
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum()
    assert chi_square < 45  # 11 degrees of freedom: exceeded once in 200,000


@pytest.mark.parametrize(
    "filters",
    [
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 5000},
        {"top_p": 0.01},
        {"top_p": 0.6},
        {"top_p": 0.95},
        {"min_p": 0.2},
        {"min_p": 1.0},
        {"top_k": 20, "top_p": 0.8},
        {"top_k": 30, "top_p": 0.9, "min_p": 0.05},
        {"top_p": 0.7, "temperature": 3.0},
    ],
    ids=str,
)
def test_filters_leave_the_tokens_that_brute_force_leaves(filters):
    torch.manual_seed(2)
    logits = torch.randn(60) * 2
    expected = naive_support(logits, **filters)
    drawn = set(draw_many(logits, 20_000, **filters).tolist())
    probability = torch.softmax(logits / filters.get("temperature", 1.0), -1)
    assert drawn <= expected
    assert {token for token in expected if probability[token] > 1e-3} <= drawn


def test_nucleus_wider_than_what_is_ranked_first_is_exact():
    torch.manual_seed(3)
    logits = torch.randn(1500) * 0.1
    expected = naive_support(logits, top_p=0.5)
    assert 600 < len(expected) < 750
    drawn = set(draw_many(logits, 5000, top_p=0.5).tolist())
    assert drawn <= expected
    assert len(drawn) > 0.99 * len(expected)


def test_tokens_that_tie_at_the_border_are_all_kept():
    logits = torch.tensor([0.0, 2.0, 1.0, 1.0, 1.0])
    assert set(draw_many(logits, 2000, top_k=2).tolist()) == {1, 2, 3, 4}


def test_each_row_is_filtered_by_its_own_settings():
    torch.manual_seed(4)
    logits = torch.randn(40, 900) * 2
    columns = {
        "temperature": np.resize([0.0, 0.7, 1.3], 40),
        "top_k": np.resize([0, 3, 0, 700], 40),
        "top_p": np.resize([1.0, 0.5, 0.9, 1.0, 0.8], 40),
        "min_p": np.resize([0.0, 0.0, 0.3], 40),
        "seed": np.arange(40),
    }
    together = sample(logits, make_settings(40, **columns), np.arange(40))
    for row in range(40):
        settings = make_settings(1, **{name: values[row] for name, values in columns.items()})
        assert sample(logits[row : row + 1], settings, np.array([row])).tolist() == [together[row]]


@pytest.mark.parametrize("temperature", [0.0, 1e-30])
def test_no_temperature_takes_the_likeliest_token(temperature):
    torch.manual_seed(5)
    logits = torch.randn(50)
    assert set(draw_many(logits, 100, temperature=temperature).tolist()) == {int(logits.argmax())}


def test_huge_logits_do_not_overflow():
    logits = torch.tensor([3e38, -3e38, 2.9e38])
    assert set(draw_many(logits, 100, temperature=1e-3).tolist()) == {0}


def test_same_seed_and_position_draw_the_same_number():
    seeds = np.array([0, 1, 2**64 - 1], dtype=np.uint64)
    positions = np.array([5, 6, 0])
    draws = uniform(seeds, positions)
    np.testing.assert_array_equal(uniform(seeds[::-1].copy(), positions[::-1].copy()), draws[::-1])
    assert uniform(seeds[1:2], positions[1:2]) == draws[1]


@pytest.mark.parametrize("by", ["seed", "position"])
def test_draws_are_uniform_and_uncorrelated_over_seeds_and_over_positions(by):
    many, one = np.arange(100_000), np.zeros(100_000, dtype=np.int64)
    seeds, positions = (many, one) if by == "seed" else (one, many)
    draws = uniform(seeds.astype(np.uint64), positions)
    assert draws.dtype == np.float32
    assert draws.min() >= 0
    assert draws.max() < 1
    counts = np.histogram(draws, bins=100, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 180  # 99 degrees of freedom: exceeded once in 1,000,000
    for lag in (1, 2, 3, 64):
        assert abs(np.corrcoef(draws[:-lag], draws[lag:])[0, 1]) < 0.015  # five standard deviations
