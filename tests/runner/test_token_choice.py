"""Biases, lists of allowed tokens, and rows for which no token is left: what they do to one step's logits."""

import random

import numpy as np
import pytest
import torch

from engine.core.plan import RowStart
from engine.core.types import SamplingParams, SequenceKey
from engine.grammars.dead_ends import DeadEnd
from engine.runner.biases import BiasTable
from engine.runner.row_table import SAMPLING_DTYPE
from engine.runner.sampler import sample
from engine.runner.token_masks import TokenMasks

VOCABULARY_SIZE = 70  # no multiple of a mask's word


def make_start(row, **sampling):
    return RowStart(row, SequenceKey(str(row), 0), (1, 2), 2, (), SamplingParams(**sampling))


def make_logits(num_rows):
    torch.manual_seed(num_rows)
    return torch.randn(num_rows, VOCABULARY_SIZE) * 3


def draw(logits, temperature=1.0, seed=0, **filters):
    settings = np.zeros(len(logits), dtype=SAMPLING_DTYPE)
    settings["temperature"], settings["top_p"], settings["seed"] = temperature, 1.0, seed + np.arange(len(logits))
    for name, value in filters.items():
        settings[name] = value
    return sample(logits, settings, np.zeros(len(logits), dtype=np.int64)).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_biases_are_added_to_their_tokens_of_their_rows_and_to_nothing_else(seed):
    rng = random.Random(seed)
    table = BiasTable(8)
    biases = {
        row: {rng.randrange(VOCABULARY_SIZE): rng.uniform(-100, 100) for _ in range(rng.choice([0, 1, 5]))}
        for row in rng.sample(range(8), 5)
    }
    table.start([make_start(row, logit_biases=tuple(each.items())) for row, each in biases.items()])
    logits = make_logits(len(biases))
    expected = logits.clone()
    for index, each in enumerate(biases.values()):
        for token_id, bias in each.items():
            expected[index, token_id] += np.float32(bias)
    before = logits.clone()
    torch.testing.assert_close(table.adjust(logits, np.array(list(biases))), expected)
    assert torch.equal(logits, before)


def test_step_without_biases_or_masks_is_not_copied():
    table, masks = BiasTable(2), TokenMasks(2, VOCABULARY_SIZE)
    table.start([make_start(0)])
    masks.start([make_start(0)])
    logits, rows = make_logits(1), np.array([0])
    assert table.adjust(logits, rows) is logits
    assert masks.apply(logits, rows) == (logits, {})


def test_bias_that_overflows_leaves_logits_finite():
    table = BiasTable(1)
    table.start([make_start(0, logit_biases=((3, 100.0), (4, -100.0)))])
    limits = torch.finfo(torch.float32)
    logits = torch.full((1, VOCABULARY_SIZE), limits.max)
    logits[0, 4] = limits.min
    assert table.adjust(logits, np.array([0])).isfinite().all()


def test_row_forgets_its_biases_and_its_list_when_another_sequence_takes_it():
    table, masks = BiasTable(1), TokenMasks(1, VOCABULARY_SIZE)
    first = make_start(0, logit_biases=((3, 50.0),), allowed_token_ids=(3,))
    for each in (table, masks):
        each.start([first])
        each.start([make_start(0)])
    logits = make_logits(1)
    assert masks.apply(table.adjust(logits, np.array([0])), np.array([0]))[0] is logits


@pytest.mark.parametrize("seed", range(20))
def test_only_allowed_tokens_are_drawn_whatever_the_filters(seed):
    rng = random.Random(seed)
    masks = TokenMasks(6, VOCABULARY_SIZE)
    allowed = {
        row: tuple(rng.sample(range(VOCABULARY_SIZE), rng.choice([1, 2, 40]))) if rng.random() < 0.7 else None
        for row in range(6)
    }
    masks.start([make_start(row, allowed_token_ids=each) for row, each in allowed.items()])
    rows = np.array(rng.sample(range(6), 6))
    logits = make_logits(6)
    masked, stuck = masks.apply(logits, rows)
    assert stuck == {}
    filters = {"top_k": rng.choice([0, 3]), "min_p": rng.choice([0.0, 0.2])}
    for number in range(20):
        drawn = draw(masked, rng.choice([0.0, 0.1, 1.0, 50.0]), seed=number, **filters)
        for row, token_id in zip(rows.tolist(), drawn, strict=True):
            assert allowed[row] is None or token_id in allowed[row]
    for index, row in enumerate(rows.tolist()):
        open_ids = range(VOCABULARY_SIZE) if allowed[row] is None else allowed[row]
        assert torch.equal(masked[index, list(open_ids)], logits[index, list(open_ids)])


def test_draws_among_allowed_tokens_have_the_models_own_proportions():
    masks = TokenMasks(1, VOCABULARY_SIZE)
    allowed = (5, 6, 69)
    masks.start([make_start(0, allowed_token_ids=allowed)])
    logits = torch.zeros(1, VOCABULARY_SIZE)
    logits[0, list(allowed)] = torch.tensor([1.0, 2.0, 3.0])
    masked, _ = masks.apply(logits, np.array([0]))
    num_draws = 20_000
    drawn = draw(masked.expand(num_draws, -1).contiguous())
    shares = torch.tensor([drawn.count(token_id) / num_draws for token_id in allowed])
    expected = torch.tensor([1.0, 2.0, 3.0]).softmax(0)
    # Four standard deviations of a share; the seeds are fixed.
    assert ((shares - expected).abs() < 4 * (expected * (1 - expected) / num_draws).sqrt()).all()


def test_row_without_an_allowed_token_is_told_and_left_as_it_was():
    masks = TokenMasks(2, VOCABULARY_SIZE)
    masks.start([make_start(0, allowed_token_ids=()), make_start(1, allowed_token_ids=(7,))])
    logits = make_logits(2)
    masked, stuck = masks.apply(logits, np.array([1, 0]))
    assert stuck == {1: DeadEnd.NOTHING_ALLOWED}
    assert torch.equal(masked[1], logits[1])
    assert draw(masked)[0] == 7
