"""What a step tells besides tokens: outputs that are complete, and log-probabilities of prompts."""

import io
from dataclasses import replace

import pytest

from engine.core.events import PromptScored
from engine.core.plan import TokenLogprobs
from engine.core.types import FinishReason, Nanos, SamplingParams
from engine.decision_log import DecisionLog, LogHeader, PolicyChoice, RecordedScheduler
from engine.sim.replay import replay
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ReferenceRunner, expected_output

HELD = SamplingParams(seed=1, constraint=object())
SCORED = SamplingParams(seed=1, num_prompt_logprobs=0)


class TellingRunner(ReferenceRunner):
    """Ends each output after the tokens that `lengths` says, and scores each prompt token by its position."""

    def __init__(self, block_size, lengths=None, **fields):
        super().__init__(block_size, **fields)
        self.lengths = lengths or {}
        self._prompts = {}

    def execute(self, plan):
        for start in plan.started:
            self._prompts[start.row] = start.num_prompt_tokens
        output = super().execute(plan)
        ended = set()
        for row in output.accepted:
            state = self.rows[row]
            wanted = self.lengths.get(state.key.generation_id)
            if wanted is not None and len(state.token_ids) - self._prompts[row] == wanted:
                ended.add(row)
        scores = {}
        for row, start, num_tokens in zip(plan.rows, plan.starts, plan.num_tokens, strict=True):
            positions = range(start + 1, min(start + num_tokens, self._prompts[row] - 1) + 1)
            if positions:
                scores[row] = tuple(TokenLogprobs(-float(position)) for position in positions)
        return replace(output, ended=frozenset(ended), prompt_logprobs=scores)


def scores_of(driver, generation_id):
    """The positions that were told of, in order."""
    return [
        -int(entry.logprob)
        for event in driver.events
        if isinstance(event, PromptScored) and event.key.generation_id == generation_id
        for entry in event.logprobs
    ]


@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_an_output_that_is_complete_ends_with_what_was_accepted(length):
    scheduler = make_scheduler()
    driver = Driver(scheduler, TellingRunner(scheduler.config.block_size, {"g": length}))
    request = make_request("g", max_output_tokens=8, sampling=HELD)
    other = make_request("other", max_output_tokens=8)
    driver.add(request, other)
    driver.run()
    assert driver.output("g") == expected_output(request)[:length]
    assert driver.finished("g").reason is FinishReason.STOP
    assert driver.finished("g").usage.num_output_tokens == length
    assert driver.output("other") == expected_output(other)
    assert driver.finished("other").reason is FinishReason.LENGTH


@pytest.mark.parametrize("chunk", [4, 7, 32])
def test_each_token_of_a_prompt_but_the_first_is_scored_once_and_in_order(chunk):
    scheduler = make_scheduler(max_num_batched_tokens=chunk)
    driver = Driver(scheduler, TellingRunner(scheduler.config.block_size))
    driver.add(make_request("g", prompt=20, sampling=SCORED), make_request("one", prompt=1, sampling=SCORED))
    driver.run()
    assert scores_of(driver, "g") == list(range(1, 20))
    assert scores_of(driver, "one") == []


@pytest.mark.parametrize("num_host_blocks", [0, 24])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_computed_again_is_not_told_again(seed, num_host_blocks):
    scheduler = make_scheduler(
        "fair", "over_served", num_device_blocks=16, num_host_blocks=num_host_blocks, max_num_batched_tokens=7
    )
    runner = TellingRunner(scheduler.config.block_size, max_copy_delay=2, seed=seed)
    driver = Driver(scheduler, runner)
    for number in range(6):
        prompt = 10 + (seed * 7 + number * 5) % 14
        driver.add(make_request(f"g{number}", tenant="ab"[number % 2], prompt=prompt, max_output_tokens=20))
        for _ in range(3):
            driver.step()
    driver.run()
    assert any(driver.finished(f"g{number}").usage.num_preemptions for number in range(6))
    for number in range(6):
        prompt = 10 + (seed * 7 + number * 5) % 14
        assert scores_of(driver, f"g{number}") == list(range(1, prompt))


def test_a_log_says_where_an_output_was_complete():
    file = io.StringIO()
    scheduler = make_scheduler()
    choices = PolicyChoice("fcfs", {}), PolicyChoice("latest_arrival", {})
    recorded = RecordedScheduler(scheduler, DecisionLog(file, LogHeader(scheduler.config, *choices)))
    runner = TellingRunner(scheduler.config.block_size, {"g": 2})
    recorded.add(make_request("g", max_output_tokens=8, sampling=HELD), Nanos(0))
    recorded.add(make_request("other", max_output_tokens=8), Nanos(0))
    now = 0
    while (plan := recorded.plan(Nanos(now))) is not None:
        now += 1
        recorded.commit(runner.execute(plan), Nanos(now))
    report = replay(file.getvalue().splitlines())
    assert report.is_identical
    assert report.num_plans > 8
