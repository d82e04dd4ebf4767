"""Steps in which nothing but the likeliest token of each row is asked for: they do without logits, and say the same."""

import numpy as np
import pytest

from engine.core.config import SchedulerConfig
from engine.core.plan import RowStart, StepPlan
from engine.core.types import BlockId, SamplingParams, SequenceKey
from engine.model.loader import load_model
from engine.runner.inputs import step_arrays
from engine.runner.paged_planner import PagedPlanner
from engine.runner.row_table import RowTable
from tests.model import tiny_llama
from tests.runner.driver import GREEDY

PRECISIONS = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "int8": ("float32", "int8")}
CONFIG = SchedulerConfig(8, 64, 4, num_device_blocks=100, max_model_len=120)


@pytest.fixture(scope="module", params=PRECISIONS.values(), ids=PRECISIONS.keys())
def model(request, tmp_path_factory):
    dtype, quantization = request.param
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype=dtype, device="cpu", quantization=quantization)


def make_prompt(length):
    return [(37 * index * index + length) % tiny_llama.VOCABULARY_SIZE for index in range(length)]


def outputs(driver, rows):
    """Of greedy rows 0, 1 and 2, beside `rows`. All prompts end in the same step."""
    sampled = dict.fromkeys(range(3), GREEDY) | rows
    for row, sampling in sampled.items():
        driver.add(row, make_prompt(9 + row), sampling)
    driver.step(dict.fromkeys(sampled, 5))
    driver.step({row: 4 + row for row in sampled})
    driver.decode(list(sampled), 12)
    return [driver.rows[row].output for row in range(3)]


def count_rows(monkeypatch, path, name):
    """The rows that sampled in each step whose path took this way."""
    counts, inner = [], getattr(path, name)
    monkeypatch.setattr(path, name, lambda inputs: counts.append(len(inputs.sampled_rows)) or inner(inputs))
    return counts


def test_the_likeliest_tokens_are_the_same_with_logits_and_without(model, make_driver, monkeypatch):
    alone, crowded = make_driver(model), make_driver(model)
    with_logits = count_rows(monkeypatch, alone.runner._path, "logits")
    greedy = outputs(alone, {})
    assert not any(with_logits)
    without_logits = count_rows(monkeypatch, crowded.runner._path, "likeliest")
    asking = {5: SamplingParams(seed=1), 6: SamplingParams(temperature=0.0, num_logprobs=2)}
    assert outputs(crowded, asking) == greedy
    assert not any(without_logits)


WISHES = {
    "draws": SamplingParams(temperature=0.5),
    "log-probabilities": SamplingParams(temperature=0.0, num_logprobs=0),
    "a repetition penalty": SamplingParams(temperature=0.0, repetition_penalty=1.1),
    "a presence penalty": SamplingParams(temperature=0.0, presence_penalty=0.1),
    "a frequency penalty": SamplingParams(temperature=0.0, frequency_penalty=0.1),
    "biases": SamplingParams(temperature=0.0, logit_biases=((1, 2.0),)),
    "a list of tokens": SamplingParams(temperature=0.0, allowed_token_ids=(4,)),
    "a grammar": SamplingParams(temperature=0.0, constraint=object()),
}
NO_WISHES = [GREEDY, SamplingParams(temperature=0.0, seed=3, top_k=4, top_p=0.5, min_p=0.1, num_prompt_logprobs=1)]


def plan_of(*samplings):
    started = tuple(
        RowStart(row, SequenceKey("", row), (1, 2), 1, (BlockId(row),), sampling)
        for row, sampling in enumerate(samplings)
    )
    return StepPlan(0, started=started)


def test_rows_that_ask_for_more_than_the_likeliest_are_known():
    rows = RowTable(CONFIG)
    rows.apply(plan_of(*WISHES.values()))
    assert not rows.is_plain.any()
    rows.apply(plan_of(*NO_WISHES))
    assert rows.is_plain.tolist() == [True, True, *[False] * 6]


@pytest.mark.parametrize("seed", range(4))
def test_steps_of_single_tokens_have_the_inputs_that_they_have_beside_longer_chunks(model, seed):
    rng, rows = np.random.default_rng(seed), RowTable(CONFIG)
    rows.token_ids[:] = rng.integers(1000, size=rows.token_ids.shape)
    rows.block_ids[:] = rng.integers(100, size=rows.block_ids.shape)
    numbers = rng.permutation(7)
    starts, samples = rng.integers(100, size=7), rng.random(7) < 0.7
    single = [tuple(column.tolist()) for column in (numbers, starts, np.ones(7, np.int64), samples)]
    mixed = [(*column, last) for column, last in zip(single, (7, 3, 2, True), strict=True)]
    ours, theirs = (step_arrays(StepPlan(0, (), (), (), *columns), rows, 4) for columns in (single, mixed))
    for name in ("token_ids", "positions"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)[:7])
    for name in ("sampled_index", "sampled_rows", "sampled_positions"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)[:-1])
    planner = PagedPlanner(model, rows)
    few, many = (planner.plan(arrays.chunks, arrays.slots) for arrays in (ours, theirs))
    for name in ("chunks", "slots", "tiles"):
        assert np.array_equal(getattr(few, name), getattr(many, name)[:7])
        assert getattr(few, name).dtype == getattr(many, name).dtype == np.int64
    assert len(few.packed) == len(few.groups) == 0
