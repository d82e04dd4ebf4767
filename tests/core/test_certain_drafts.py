"""Drafts that a runner is certain of: they are verified where no guess is worth it, and are none."""

from dataclasses import replace

import pytest

from engine.core.drafting import PRIOR_RIGHT
from tests.builders import make_request
from tests.core.drafting import CHEAP_TOKENS, drafting_driver, seq_of


def certain_driver(num_certain: int, *, hits: float, **fields):
    """Its runner is certain of the first of its drafts, so many of each sequence."""
    driver = drafting_driver(hits=hits, **fields)
    execute = driver.runner.execute

    def execute_and_tell(plan):
        output = execute(plan)
        return replace(output, certain={row: min(count, num_certain) for row, count in output.proposed.items()})

    driver.runner.execute = execute_and_tell
    return driver


@pytest.mark.parametrize(("num_certain", "carried"), [(0, 0), (2, 2), (4, 4)])
def test_certain_drafts_are_verified_where_no_guess_is_worth_it(num_certain, carried):
    """A step of sixteen takes 25 units and gives 16 tokens: a draft must be right with a probability of 0.64."""
    driver = certain_driver(num_certain, hits=1.0, max_num_seqs=16, max_num_batched_tokens=128, num_device_blocks=512)
    driver.scheduler.calibrate(CHEAP_TOKENS, driver.now)
    driver.add(*[make_request(prompt=4, max_output_tokens=20) for _ in range(16)])
    driver.step()
    assert max(driver.plan().num_drafts, default=0) == carried


def test_certain_drafts_tell_nothing_of_what_guesses_are_worth():
    driver = certain_driver(4, hits=1.0)
    driver.add(make_request("r", prompt=4, max_output_tokens=40))
    driver.step()
    state = seq_of(driver, "r").drafting
    before = state.right, state.tried
    for _ in range(4):
        driver.step()
    assert state.num_accepted >= 12
    assert (state.right, state.tried) == before
    driver.run()
    assert driver.finished("r").usage.num_output_tokens == 40


def test_a_certain_draft_that_was_wrong_counts_as_tried():
    driver = certain_driver(4, hits=0.0)
    driver.add(make_request("r", prompt=4, max_output_tokens=40))
    driver.step()
    state = seq_of(driver, "r").drafting
    before = state.tried
    driver.step()
    assert state.num_drafted > 0
    assert (state.right, state.tried) == (0.75 * PRIOR_RIGHT, 0.75 * before + 1)
