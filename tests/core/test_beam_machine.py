"""Random traffic in tiny pools, with searches among the requests: they find what they would find undisturbed."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from engine.core.errors import RequestTooLargeError
from engine.core.events import BeamFound, Finished, Preempted, Resumed
from engine.core.types import FinishReason, PauseReason
from tests.core.machine import SchedulerMachine, run_machine_of
from tests.core.searching import assert_found, make_search
from tests.core.stories import check_accounts, check_nothing_is_left, check_story
from tests.core.traffic import ANY, SCHEDULING, Shape


class SearchingMachine(SchedulerMachine):
    """The rules of the other machine, and requests that search."""

    @rule(
        shape=ANY,
        width=st.integers(2, 4),
        length_penalty=st.sampled_from([-1.0, 0.0, 1.0]),
        early_stopping=st.booleans(),
    )
    def add_search(self, shape: Shape, width: int, length_penalty: float, early_stopping: bool) -> None:
        number = len(self.requests)
        max_tokens = self.driver.scheduler.config.max_request_tokens
        request = make_search(
            f"g{number}",
            width=width,
            num_returned=1 + number % width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            seed=number,
            tenant=shape.tenant,
            prompt=shape.prompt(number, 1 + int(shape.prompt_part * max_tokens / 2)),
            cache_salt=shape.salt,
            max_output_tokens=1 + int(shape.output_part * max_tokens / 3),
            arrived_at=self.driver.now,
            priority_class=shape.priority_class,
            stop_token_ids=shape.stop_token_ids,
            granted_output_tokens=shape.granted_output_tokens,
            deadline=self.in_steps(shape.deadline),
            queue_deadline=self.in_steps(shape.queue_deadline),
        )
        try:
            self.driver.add(request)
        except RequestTooLargeError:
            return
        self.requests[request.generation_id] = request

    @precondition(lambda self: self.open_plan is None)
    @rule()
    def plan(self) -> None:
        self.open_plan = self.driver.plan()
        lifecycle = self.driver.scheduler.lifecycle
        if self.open_plan is None and not self.driver.scheduler.num_copies_in_flight:
            for seq in lifecycle.by_generation.values():
                waited_for = seq if seq.beam is None else seq.beam.group.foremost
                assert waited_for.hold_reason in (PauseReason.QUOTA, PauseReason.READER), "work got nothing"

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.finish_everything()
        for request in self.requests.values():
            if request.beam_search is None:
                check_story(self.driver, request)
            else:
                check_search(self.driver, request)
        check_nothing_is_left(self.driver)
        check_accounts(self.driver, self.charged)


def check_search(driver, request) -> None:
    """One end, with all hypotheses right before it or none; preempted and resumed in turn."""
    story = [event for event in driver.events if event.key.generation_id == request.generation_id]
    end = driver.finished(request.generation_id)
    if end.reason in (FinishReason.LENGTH, FinishReason.STOP) and any(isinstance(e, BeamFound) for e in story):
        assert_found(driver, request)
        assert end.usage.num_prompt_tokens == len(request.prompt_token_ids)
    else:
        assert not any(isinstance(event, BeamFound) for event in story)
    assert isinstance(story[-1], Finished)
    is_preempted = False
    for event in story:
        if isinstance(event, Preempted | Resumed):
            assert is_preempted is isinstance(event, Resumed)
            is_preempted = not is_preempted
    assert end.usage.num_output_tokens <= request.max_charged_tokens
    assert 0 <= end.timings.preempted_ns <= end.timings.prefill_ns + end.timings.decode_ns


@pytest.mark.parametrize("scheduling", ["fair", "fcfs", "vtc"])
def test_random_searches_find_what_they_would_find_undisturbed(scheduling: str):
    run_machine_of(SearchingMachine, scheduling, max_examples=12, num_rules=30)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scheduling", SCHEDULING)
def test_many_random_searches_find_what_they_would_find_undisturbed(scheduling: str):
    run_machine_of(SearchingMachine, scheduling, max_examples=50, num_rules=60)
