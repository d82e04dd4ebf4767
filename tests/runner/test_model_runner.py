import random

import pytest
import torch

from engine.core.config import SchedulerConfig
from engine.core.plan import StepOutput, StepPlan
from engine.core.types import SamplingParams
from engine.model.loader import load_model
from engine.runner.model_runner import NON_FINITE_ERROR, ModelRunner
from tests.model import tiny_llama
from tests.runner.driver import GREEDY

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


def make_prompt(seed, length):
    rng = random.Random(seed)
    return [rng.randrange(2, tiny_llama.VOCABULARY_SIZE) for _ in range(length)]


def compute_alone(make_driver, model, prompt, num_output_tokens, sampling=GREEDY):
    """(output, logits of each step) of a request that shares the engine with nobody."""
    driver = make_driver(model)
    row = driver.add(0, prompt, sampling)
    driver.prefill([0], chunk_size=len(prompt))
    logits = [driver.logits, *driver.decode([0], num_output_tokens - 1)]
    return row.output, torch.cat(logits)


def test_prompts_and_decodes_in_one_step_do_not_disturb_each_other(model, make_driver):
    prompts = {0: make_prompt(0, 40), 3: make_prompt(1, 7), 5: make_prompt(2, 70), 2: make_prompt(3, 1)}
    driver = make_driver(model)
    collected = {row: [] for row in prompts}

    def step(chunks):
        output = driver.step(chunks)
        for row, logits in zip(output.accepted, driver.logits, strict=True):
            collected[row].append(logits)

    driver.add(0, prompts[0])
    step({0: 40})
    driver.add(3, prompts[3])
    step({0: 1, 3: 7})
    driver.add(5, prompts[5])
    step({3: 1, 0: 1, 5: 33})
    driver.add(2, prompts[2])
    step({0: 1, 3: 1, 2: 1, 5: 20})
    step({2: 1, 3: 1, 5: 17})
    step({5: 1, 0: 1, 3: 1, 2: 1})
    for row, prompt in prompts.items():
        output, logits = compute_alone(make_driver, model, prompt, len(collected[row]))
        assert driver.rows[row].output == output
        torch.testing.assert_close(torch.stack(collected[row]), logits, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_random_traffic_over_reused_poisoned_blocks_gives_what_each_request_gives_alone(
    model, make_driver, seed, block_size
):
    """Preempted, resumed and ended sequences leave NaN behind in their blocks; none of it may be read."""
    rng = random.Random(seed)
    driver = make_driver(model, num_rows=6, num_blocks=300 // block_size + 20, block_size=block_size)
    ended = []
    for number in range(60):
        if len(driver.rows) < 6 and rng.random() < 0.5:
            free_row = rng.choice([row for row in range(6) if row not in driver.rows])
            sampling = rng.choice([GREEDY, SamplingParams(seed=number, top_p=0.9, presence_penalty=0.5)])
            driver.add(free_row, make_prompt(number, rng.randrange(1, 40)), sampling)
        running = sorted(driver.rows, key=lambda row: driver.rows[row].num_pending > 1)
        chunks = {row: rng.randint(1, driver.rows[row].num_pending) for row in running if rng.random() < 0.8}
        if chunks:
            assert not driver.step(chunks).errors
        if driver.rows and rng.random() < 0.2:
            driver.preempt(rng.choice(list(driver.rows)))
        done = [row for row, state in driver.rows.items() if len(state.output) >= 8]
        ended += [driver.remove(row) for row in done]
    assert len(ended) > 5
    for state in ended:
        prompt = state.token_ids[: state.num_prompt_tokens]
        assert compute_alone(make_driver, model, prompt, len(state.output), state.sampling)[0] == state.output


def test_chunk_that_ends_before_the_prompt_does_samples_nothing(model, make_driver):
    driver = make_driver(model)
    driver.add(0, make_prompt(0, 20))
    assert driver.step({0: 19}) == StepOutput(0)
    assert driver.step({0: 1}).accepted.keys() == {0}


def test_plan_without_chunks_gives_an_empty_output(model):
    runner = ModelRunner(model, SchedulerConfig(4, 64, 16, 8, 512))
    assert runner.execute(StepPlan(7, stopped=(1,))) == StepOutput(7)


def test_sequence_that_kept_its_blocks_goes_on_in_another_row(model, make_driver):
    prompt = make_prompt(4, 30)
    expected, _ = compute_alone(make_driver, model, prompt, 6)
    driver = make_driver(model)
    driver.add(1, prompt)
    driver.prefill([1], chunk_size=30)
    driver.decode([1], 2)
    driver.rows[4] = driver.rows.pop(1)
    driver.rows[4].is_known = False
    driver.add(1, make_prompt(5, 9))
    driver.step({4: 1, 1: 9})
    driver.decode([4, 1], 2)
    assert driver.rows[4].output == expected


def test_row_with_values_that_are_not_finite_ends_alone(model, make_driver):
    prompts = [make_prompt(6, 20), make_prompt(7, 20), make_prompt(8, 20)]
    expected, _ = compute_alone(make_driver, model, prompts[2], 3)
    driver = make_driver(model)
    for row, prompt in enumerate(prompts):
        driver.add(row, prompt)
    driver.prefill([0, 1, 2], chunk_size=20)
    first_block = driver.rows[1].block_ids[0]
    driver.runner.kv_cache.blocks[first_block] = torch.inf
    output = driver.step({0: 1, 1: 1, 2: 1})
    assert output.errors == {1: NON_FINITE_ERROR}
    assert output.accepted.keys() == {0, 2}
    driver.step({0: 1, 2: 1})
    assert driver.rows[2].output == expected


def test_seed_decides_the_text_whatever_shares_the_batch(model, make_driver):
    prompt = make_prompt(9, 25)
    sampling = SamplingParams(temperature=1.5, seed=42, repetition_penalty=1.2, frequency_penalty=0.3)
    expected, _ = compute_alone(make_driver, model, prompt, 12, sampling)
    driver = make_driver(model)
    for row in range(5):
        driver.add(row, make_prompt(20 + row, 5 + row), SamplingParams(seed=row))
    driver.add(9, prompt, sampling)
    driver.prefill([0, 1, 2, 3, 4, 9], chunk_size=4)
    driver.decode([9], 5)
    driver.preempt(9)
    driver.prefill_again(9, chunk_size=7)
    driver.decode([3, 9, 0], 12 - len(driver.rows[9].output))
    assert driver.rows[9].output == expected
    others = [compute_alone(make_driver, model, prompt, 12, SamplingParams(temperature=1.5, seed=s))[0] for s in (1, 2)]
    assert others[0] != others[1]


def test_logprobs_are_those_of_the_unmodified_distribution(model, make_driver):
    sampling = SamplingParams(temperature=2.0, top_k=50, seed=1, presence_penalty=2.0, num_logprobs=5)
    driver = make_driver(model)
    for row, num_logprobs in enumerate((5, 0, None, 20)):
        driver.add(row, make_prompt(row, 10), SamplingParams(seed=row, num_logprobs=num_logprobs))
    driver.add(4, make_prompt(4, 10), sampling)
    output = driver.step(dict.fromkeys(range(5), 10))
    assert output.logprobs.keys() == {0, 1, 3, 4}
    expected = driver.logits.double().log_softmax(-1)
    for row, num_top in ((0, 5), (1, 0), (3, 20), (4, 5)):
        (found,) = output.logprobs[row]
        assert found.logprob == pytest.approx(expected[row, output.accepted[row][0]].item(), abs=1e-5)
        values, token_ids = expected[row].topk(num_top)
        assert [token for token, _ in found.top] == token_ids.tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_penalties_change_what_is_sampled(model, make_driver):
    prompt = make_prompt(10, 15)
    plain, _ = compute_alone(make_driver, model, prompt, 40)
    sampling = SamplingParams(temperature=0.0, presence_penalty=1000.0)
    penalized, _ = compute_alone(make_driver, model, prompt, 40, sampling)
    assert penalized[0] == plain[0]
    assert len(set(penalized)) == 40


def test_warm_up_leaves_nothing_behind(model, make_driver):
    prompt = make_prompt(11, 60)
    expected, _ = compute_alone(make_driver, model, prompt, 4)
    driver = make_driver(model, num_blocks=8)
    driver.runner.warm_up()
    driver.add(0, prompt)
    driver.prefill([0], chunk_size=60)
    driver.decode([0], 3)
    assert driver.rows[0].output == expected


def test_bfloat16_agrees_with_float32_where_it_is_sure(model, make_driver, tmp_path):
    folder = tiny_llama.write_folder(tmp_path / "m", tiny_llama.make_model())
    rounded = load_model(folder, dtype="bfloat16", device="cpu")
    prompt = make_prompt(12, 100)
    for length in range(1, 100, 9):
        _, exact = compute_alone(make_driver, model, prompt[:length], 1)
        _, coarse = compute_alone(make_driver, rounded, prompt[:length], 1)
        assert (exact - coarse).abs().max() < 0.05 * exact.abs().max()
