"""What a sequence computes does not depend on what happened to its blocks: swapped whole, in part, computed again."""

import itertools
import random

import pytest

from engine.core.types import SamplingParams
from engine.model.loader import load_model
from tests.model import tiny_llama
from tests.runner.driver import GREEDY

NUM_OUTPUT = 20
PENALIZED = SamplingParams(temperature=1.2, seed=3, repetition_penalty=1.3, presence_penalty=0.4)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_llama.write_folder(tmp_path_factory.mktemp("tiny") / "m", tiny_llama.make_model())
    return load_model(folder, dtype="float32", device="cpu")


def make_prompt(seed, length, vocabulary_size=tiny_llama.VOCABULARY_SIZE):
    rng = random.Random(seed)
    return [rng.randrange(2, vocabulary_size) for _ in range(length)]


def undisturbed(make_driver, model, prompt, sampling, num_output=NUM_OUTPUT, **sizes):
    driver = make_driver(model, **sizes)
    row = driver.add(0, prompt, sampling)
    driver.prefill([0], chunk_size=7)
    driver.decode([0], num_output - 1)
    return row.output


def bring_back(driver, row):
    driver.finish_copies()
    driver.swap_in(row)
    driver.finish_copies()


def swap_whole(driver, row):
    driver.swap_out(row, len(driver.rows[row].block_ids))
    bring_back(driver, row)


def swap_tail(driver, row):
    driver.swap_out(row, (len(driver.rows[row].block_ids) + 1) // 2)
    bring_back(driver, row)


def swap_last(driver, row):
    driver.swap_out(row, 1)
    bring_back(driver, row)


def recompute(driver, row):
    driver.preempt(row)


MODES = [swap_whole, swap_tail, swap_last, recompute]


def advance(driver, row, chunk_size=7):
    """Compute until one more token is known."""
    num_known = len(driver.rows[row].token_ids)
    while len(driver.rows[row].token_ids) == num_known:
        driver.step({row: min(chunk_size, driver.rows[row].num_pending)})


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("sampling", [GREEDY, PENALIZED], ids=["greedy", "penalized"])
@pytest.mark.parametrize("preempt", MODES)
def test_preempted_at_every_token_it_says_the_same(model, make_driver, preempt, sampling, block_size):
    prompt = make_prompt(1, 29)
    sizes = {"block_size": block_size, "num_blocks": 80, "num_host_blocks": 80}
    expected = undisturbed(make_driver, model, prompt, sampling, **sizes)
    driver = make_driver(model, **sizes)
    state = driver.add(0, prompt, sampling)
    while len(state.output) < NUM_OUTPUT:
        advance(driver, 0)
        preempt(driver, 0)
    assert state.output == expected


@pytest.mark.parametrize("block_size", [4, 16])
@pytest.mark.parametrize("preempt", MODES)
def test_preempted_after_every_chunk_of_its_prompt_it_says_the_same(model, make_driver, preempt, block_size):
    prompt = make_prompt(2, 61)
    sizes = {"block_size": block_size, "num_host_blocks": 20}
    expected = undisturbed(make_driver, model, prompt, GREEDY, 3, **sizes)
    driver = make_driver(model, **sizes)
    state = driver.add(0, prompt)
    for chunk_size in (5, 11, 16, 32):
        driver.step({0: chunk_size - state.num_computed_tokens})
        preempt(driver, 0)
    for _ in range(3):
        advance(driver, 0)
    assert state.output == expected


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_random_traffic_with_copies_beside_the_steps_gives_what_each_request_gives_alone(
    model, make_driver, seed, block_size
):
    """Copies run while others compute; blocks are given away, poisoned, as soon as a copy has ended, never before.

    How many steps pass meanwhile is the machine's affair: it goes on until enough has ended.
    """
    rng = random.Random(seed)
    num_blocks = 300 // block_size + 20
    driver = make_driver(model, num_rows=6, num_blocks=num_blocks, num_host_blocks=num_blocks, block_size=block_size)
    ended, swapped, num_swaps = [], [], 0
    for number in itertools.count():
        if number >= 80 and len(ended) > 3 and num_swaps > 5:
            break
        taken = driver.rows.keys()
        if len(taken) < 6 and rng.random() < 0.5:
            driver.add(
                rng.choice([row for row in range(6) if row not in taken]),
                make_prompt(number, rng.randrange(1, 40)),
                rng.choice([GREEDY, SamplingParams(seed=number, top_p=0.9, presence_penalty=0.5)]),
            )
        for row in [row for row in swapped if not driver.is_moving(row)]:
            if not driver.rows[row].host_block_ids:
                swapped.remove(row)
            elif rng.random() < 0.5:
                driver.swap_in(row)
        running = sorted(taken - set(swapped), key=lambda row: driver.rows[row].num_pending > 1)
        if running and rng.random() < 0.4:
            row = rng.choice(running)
            num_blocks_held = len(driver.rows[row].block_ids)
            if num_blocks_held and rng.random() < 0.8:
                driver.swap_out(row, rng.randint(1, num_blocks_held))
                swapped.append(row)
                running.remove(row)
                num_swaps += 1
            else:
                driver.preempt(row)
        chunks = {row: rng.randint(1, driver.rows[row].num_pending) for row in running if rng.random() < 0.8}
        assert not driver.step(chunks).errors
        done = [row for row in running if len(driver.rows[row].output) >= 8]
        ended += [driver.remove(row) for row in done]
    for state in ended:
        prompt = state.token_ids[: state.num_prompt_tokens]
        assert undisturbed(make_driver, model, prompt, state.sampling, len(state.output)) == state.output


@pytest.mark.parametrize("preempt", [swap_whole, swap_tail, recompute])
def test_default_model_says_what_an_undisturbed_twin_says(default_model, make_driver, preempt):
    prompts = [make_prompt(row, length, default_model.config.vocabulary_size) for row, length in enumerate((40, 21))]
    sizes = {"num_blocks": 24, "num_host_blocks": 24}
    driver = make_driver(default_model, **sizes)
    for row, prompt in enumerate(prompts):
        driver.add(row, prompt)
        driver.add(row + 2, prompt)
        advance(driver, row, chunk_size=32)
        advance(driver, row + 2, chunk_size=32)
    for step in range(5):
        for row in (0, 1):
            if step % 2 == row:
                preempt(driver, row)
            advance(driver, row, chunk_size=32)
        driver.decode([2, 3], 1)
    assert driver.rows[0].output == driver.rows[2].output
    assert driver.rows[1].output == driver.rows[3].output
