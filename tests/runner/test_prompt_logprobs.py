"""Log-probabilities of prompts, against `transformers`, however the prompt is chunked and whoever shares the step."""

import random

import pytest
import torch

from engine.core.types import SamplingParams
from engine.model.loader import load_model
from engine.runner import prompt_logprobs
from engine.runner.model_runner import NON_FINITE_ERROR
from tests.model import tiny_llama

TOLERANCE = 1e-4
NUM_TOP = 3
SCORED = SamplingParams(temperature=0.0, num_prompt_logprobs=NUM_TOP)


@pytest.fixture(scope="module")
def reference():
    return tiny_llama.make_model()


@pytest.fixture(scope="module")
def model(reference, tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", reference)
    return load_model(folder, dtype="float32", device="cpu")


def make_prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(length)]


def expected_logprobs(reference, prompt):
    with torch.no_grad():
        return reference(torch.tensor([prompt])).logits[0].float().log_softmax(-1)


def assert_scores(entries, reference, prompt):
    logprobs = expected_logprobs(reference, prompt)
    assert len(entries) == len(prompt) - 1
    for position, entry in enumerate(entries):
        of_token = logprobs[position, prompt[position + 1]].item()
        assert entry.logprob == pytest.approx(of_token, abs=TOLERANCE)
        top = logprobs[position].topk(NUM_TOP).values.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(top, abs=TOLERANCE)
        for token_id, logprob in entry.top:
            assert logprobs[position, token_id].item() == pytest.approx(logprob, abs=TOLERANCE)


@pytest.mark.parametrize("chunk_size", [1, 2, 7, 64, 65, 150])
def test_every_token_but_the_first_is_scored_once_whatever_the_chunks(model, reference, make_driver, chunk_size):
    prompt = make_prompt(chunk_size, 140)
    driver = make_driver(model)
    row = driver.add(0, prompt, SCORED)
    entries = []
    while not row.output:
        output = driver.step({0: min(chunk_size, row.num_pending)})
        entries += output.prompt_logprobs.get(0, ())
    assert_scores(entries, reference, prompt)


def test_neighbours_that_did_not_ask_are_not_scored_and_draw_the_same(model, reference, make_driver):
    prompts = {0: make_prompt(1, 20), 1: make_prompt(2, 30), 2: make_prompt(3, 1)}
    alone = make_driver(model)
    alone.add(0, prompts[0])
    alone.step({0: 20})

    driver = make_driver(model)
    driver.add(0, prompts[0])
    driver.step({0: 20})
    driver.add(1, prompts[1], SCORED)
    driver.add(2, prompts[2], SCORED)
    output = driver.step({0: 1, 2: 1, 1: 30})
    alone.step({0: 1})

    assert output.prompt_logprobs.keys() == {1}
    assert_scores(output.prompt_logprobs[1], reference, prompts[1])
    assert driver.rows[0].output == alone.rows[0].output
    assert driver.step({0: 1, 1: 1, 2: 1}).prompt_logprobs == {}


def test_logits_of_a_long_prompt_exist_a_slice_at_a_time(model, make_driver, monkeypatch):
    monkeypatch.setattr(prompt_logprobs, "SLICE_TOKENS", 16)
    sizes = []
    inner = model.module.logits

    def watched(streams, index):
        sizes.append(len(index))
        return inner(streams, index)

    monkeypatch.setattr(model.module, "logits", watched)
    driver = make_driver(model)
    driver.add(0, make_prompt(4, 100), SCORED)
    output = driver.step({0: 100})
    assert len(output.prompt_logprobs[0]) == 99
    assert max(sizes) == 16


def test_scores_that_are_not_finite_end_the_request_and_no_other(model, reference, make_driver, monkeypatch):
    prompts = {0: make_prompt(5, 12), 1: make_prompt(6, 12)}
    driver = make_driver(model)
    for row, prompt in prompts.items():
        driver.add(row, prompt, SCORED)
    inner = model.module.logits

    def poisoned(streams, index):
        logits = inner(streams, index)
        if index[0] == 0 and len(index) > 2:  # of the first row's prompt; its last token's logits stay good
            logits[3] = torch.nan
        return logits

    monkeypatch.setattr(model.module, "logits", poisoned)
    output = driver.step({0: 12, 1: 12})
    assert output.errors == {0: NON_FINITE_ERROR}
    assert output.accepted.keys() == {1}
    assert_scores(output.prompt_logprobs[1], reference, prompts[1])


def test_top_logprobs_of_outputs_are_those_of_transformers(model, reference, make_driver):
    prompt = make_prompt(7, 25)
    driver = make_driver(model)
    row = driver.add(0, prompt, SamplingParams(temperature=0.8, seed=3, presence_penalty=1.0, num_logprobs=5))
    entries = []
    for _ in range(6):
        entries += driver.step({0: row.num_pending}).logprobs[0]
    logprobs = expected_logprobs(reference, row.token_ids)[len(prompt) - 1 :]
    for position, (entry, token_id) in enumerate(zip(entries, row.output, strict=True)):
        assert entry.logprob == pytest.approx(logprobs[position, token_id].item(), abs=TOLERANCE)
        top = logprobs[position].topk(5)
        assert [each for _, each in entry.top] == pytest.approx(top.values.tolist(), abs=TOLERANCE)
        assert [each for each, _ in entry.top] == top.indices.tolist()
