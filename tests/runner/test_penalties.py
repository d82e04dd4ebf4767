import numpy as np
import pytest
import torch

from engine.core.plan import RowStart
from engine.core.types import SamplingParams, SequenceKey
from engine.runner.penalties import PenaltyTable
from engine.runner.row_table import SAMPLING_DTYPE
from engine.runner.sampler import sample
from engine.runner.verification import NO_DRAFT, Drafted

VOCABULARY_SIZE = 12


def make_start(row, prompt, output, **penalties):
    return RowStart(row, SequenceKey(str(row), 0), (*prompt, *output), len(prompt), (), SamplingParams(**penalties))


def make_settings(starts):
    settings = np.zeros(len(starts), dtype=SAMPLING_DTYPE)
    for index, start in enumerate(starts):
        for name in ("repetition_penalty", "presence_penalty", "frequency_penalty"):
            settings[name][index] = getattr(start.sampling, name)
    return settings


def naively_adjusted(logits, prompt, output, sampling):
    adjusted = logits.tolist()
    for token in {*prompt, *output}:
        adjusted[token] *= sampling.repetition_penalty if adjusted[token] < 0 else 1 / sampling.repetition_penalty
    for token in set(output):
        adjusted[token] -= sampling.presence_penalty
        adjusted[token] -= sampling.frequency_penalty * output.count(token)
    return torch.tensor(adjusted)


@pytest.fixture
def table():
    return PenaltyTable(8, VOCABULARY_SIZE, torch.device("cpu"))


def test_rows_are_adjusted_as_the_naive_formula_says(table):
    texts = {5: ([1, 2, 2], [3, 3, 3, 4]), 0: ([], [7]), 3: ([8], []), 6: ([9, 10], [9, 1])}
    penalties = {
        5: {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.25},
        0: {"presence_penalty": -1.0},
        3: {},
        6: {"repetition_penalty": 0.7, "frequency_penalty": -0.1},
    }
    starts = [make_start(row, *texts[row], **penalties[row]) for row in texts]
    table.start(starts)
    torch.manual_seed(0)
    logits = torch.randn(4, VOCABULARY_SIZE) * 3
    before = logits.clone()
    adjusted = table.adjust(logits, np.array(list(texts)), make_settings(starts))
    for index, start in enumerate(starts):
        expected = naively_adjusted(before[index], *texts[start.row], start.sampling)
        torch.testing.assert_close(adjusted[index], expected)
    assert torch.equal(logits, before)


def test_sampled_tokens_count_and_those_of_other_rows_do_not(table):
    starts = [make_start(row, [0], [1], frequency_penalty=1.0) for row in (1, 2)]
    table.start(starts)
    for token_ids in ([1, 5], [6, 5]):
        table.record(np.array([1, 2]), torch.tensor(token_ids))
    adjusted = table.adjust(torch.zeros(2, VOCABULARY_SIZE), np.array([1, 2]), make_settings(starts))
    assert adjusted[0].tolist() == [0, -2, 0, 0, 0, 0, -1, 0, 0, 0, 0, 0]
    assert adjusted[1].tolist() == [0, -1, 0, 0, 0, -2, 0, 0, 0, 0, 0, 0]


def test_row_that_changes_hands_forgets_the_last_sequence(table):
    table.start([make_start(4, [1, 2], [3], repetition_penalty=2.0, presence_penalty=1.0)])
    start = make_start(4, [5], [], repetition_penalty=2.0, presence_penalty=1.0)
    table.start([start])
    adjusted = table.adjust(torch.ones(1, VOCABULARY_SIZE), np.array([4]), make_settings([start]))
    assert adjusted[0].tolist() == [1, 1, 1, 1, 1, 0.5, 1, 1, 1, 1, 1, 1]


def test_rows_without_penalties_cost_no_copy(table):
    start = make_start(0, [1], [2])
    table.start([start])
    logits = torch.ones(1, VOCABULARY_SIZE)
    assert table.adjust(logits, np.array([0]), make_settings([start])) is logits


@pytest.mark.parametrize("repetition_penalty", [1e-50, 1e-38, 1e-30, 100.0])
def test_extreme_penalties_leave_every_logit_finite_and_every_draw_in_the_vocabulary(table, repetition_penalty):
    sampling = {"repetition_penalty": repetition_penalty, "temperature": 1.0, "frequency_penalty": 2.0}
    start = make_start(0, list(range(VOCABULARY_SIZE)), [1, 1], **sampling)
    table.start([start])
    settings = make_settings([start])
    adjusted = table.adjust(torch.linspace(-30, 30, VOCABULARY_SIZE)[None], np.array([0]), settings)
    assert adjusted.isfinite().all()
    for position in range(20):
        assert 0 <= int(sample(adjusted, settings, np.array([position]))) < VOCABULARY_SIZE


def test_logits_behind_drafts_are_penalized_as_if_the_drafts_had_been_said():
    torch.manual_seed(2)
    logits = torch.randn(5, VOCABULARY_SIZE)
    drafts = [3, 3, 7]
    plain = make_start(0, [1], [])
    start = make_start(1, [1, 2, 3], [5], repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.7)
    settings = make_settings([plain, start, start, start, start])
    together, one_by_one = (PenaltyTable(2, VOCABULARY_SIZE, torch.device("cpu")) for _ in range(2))
    together.start([plain, start])
    one_by_one.start([start])
    drafted = Drafted(np.array([0, 1]), np.array([NO_DRAFT, *drafts, NO_DRAFT]))
    adjusted = together.adjust(logits, np.array([0, 1, 1, 1, 1]), settings, drafted)
    assert torch.equal(adjusted[0], logits[0])
    for index, draft in enumerate((*drafts, 0), start=1):
        expected = one_by_one.adjust(logits[index : index + 1], np.array([1]), settings[index : index + 1])
        assert torch.equal(adjusted[index], expected[0])
        one_by_one.record(np.array([1]), torch.tensor([draft]))


def test_token_that_is_accepted_twice_in_a_step_counts_twice(table):
    start = make_start(0, [1], [], frequency_penalty=0.5)
    table.start([start])
    table.record(np.array([0, 0, 0]), torch.tensor([4, 4, 6]))
    adjusted = table.adjust(torch.zeros(1, VOCABULARY_SIZE), np.array([0]), make_settings([start]))
    assert adjusted[0, [4, 6, 1]].tolist() == [-1.0, -0.5, 0.0]
