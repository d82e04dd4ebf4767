"""The engine against `transformers` on the same dequantized weights, in float32."""

import random

import pytest
import torch

TOLERANCE = 1e-3
NUM_OUTPUT_TOKENS = 64
PROMPT_LENGTHS = (1, 2, 7, 16, 17, 33, 64, 100)


def make_prompt(length):
    rng = random.Random(length)
    return [rng.randrange(17, 49152) for _ in range(length)]


def reference_logits(model, token_ids):
    """[tokens, vocabulary], each row predicts the token behind it."""
    with torch.inference_mode():
        return model(torch.tensor([token_ids])).logits[0]


@pytest.fixture(scope="module")
def expected(reference_model):
    """The reference's logits of each prompt's last token, by length."""
    return {length: reference_logits(reference_model, make_prompt(length))[-1] for length in (*PROMPT_LENGTHS, 500)}


@pytest.mark.parametrize("chunk_size", [1, 7, 16, 100])
def test_prompts_in_chunks_side_by_side_give_the_references_logits(default_model, make_driver, expected, chunk_size):
    driver = make_driver(default_model)
    for row, length in enumerate(PROMPT_LENGTHS):
        driver.add(row, make_prompt(length))
    waiting = dict(enumerate(PROMPT_LENGTHS))
    while waiting:
        driver.step({row: min(chunk_size, driver.rows[row].num_pending) for row in waiting})
        finished = [row for row in waiting if driver.rows[row].output]
        for row, logits in zip(finished, driver.logits, strict=True):
            torch.testing.assert_close(logits, expected[waiting.pop(row)], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [*PROMPT_LENGTHS, 500])
def test_prompt_computed_whole_gives_the_references_logits(default_model, make_driver, expected, length):
    driver = make_driver(default_model)
    driver.add(3, make_prompt(length))
    driver.prefill([3], chunk_size=length)
    torch.testing.assert_close(driver.logits[0], expected[length], atol=TOLERANCE, rtol=0)


def test_greedy_text_is_the_references_where_it_is_sure(default_model, make_driver, reference_model):
    driver = make_driver(default_model)
    for row, length in enumerate(PROMPT_LENGTHS):
        driver.add(row, make_prompt(length))
    rows = range(len(PROMPT_LENGTHS))
    driver.prefill(rows, chunk_size=100)
    logits = driver.decode(rows, NUM_OUTPUT_TOKENS - 1)
    num_sure = 0
    for row, length in enumerate(PROMPT_LENGTHS):
        token_ids = driver.rows[row].token_ids
        assert len(driver.rows[row].output) == NUM_OUTPUT_TOKENS
        expected = reference_logits(reference_model, token_ids[:-1])[length - 1 :]
        torch.testing.assert_close(torch.stack([step[row] for step in logits]), expected[1:], atol=TOLERANCE, rtol=0)
        likeliest, second = expected.topk(2).values.T
        is_sure = likeliest - second > TOLERANCE
        chosen = torch.tensor(driver.rows[row].output)
        assert torch.equal(chosen[is_sure], expected.argmax(-1)[is_sure])
        num_sure += int(is_sure.sum())
    assert num_sure > 0.9 * NUM_OUTPUT_TOKENS * len(PROMPT_LENGTHS)
