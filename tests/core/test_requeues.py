"""Steps that a device has no memory for: who was in one is computed again, once in a row, and nobody else notices."""

import random

import pytest

from engine.core.config import PreemptionChoice
from engine.core.events import Finished, Preempted
from engine.core.requeues import NO_MEMORY
from engine.core.types import FinishReason, PauseReason, PreemptionMode, SequenceStatus
from tests.builders import Driver, make_request, make_scheduler
from tests.core.searching import make_search
from tests.core.stories import check_nothing_is_left, check_story
from tests.core.traffic import make_policy
from tests.fakes import expected_output


def lose_step(driver: Driver) -> list:
    """A step is computed, and what came of it is lost; its copies end."""
    plan = driver.plan()
    assert plan is not None
    completed = driver.runner.execute(plan).completed_copies
    events = driver._note(driver.scheduler.requeue(driver.now))
    driver._note(driver.scheduler.complete_copies(completed, driver.now))
    return events


def is_nobodys_second(driver: Driver) -> bool:
    """Whether everybody in the open plan got on since a step of theirs was lost."""
    lost = driver.scheduler._requeues._num_computed
    return all(seq.num_computed_tokens > lost.get(seq, -1) for seq in driver.scheduler.open_sequences)


def statuses(driver: Driver) -> dict[str, SequenceStatus]:
    return {name: seq.status for name, seq in driver.scheduler.lifecycle.by_generation.items()}


def test_those_of_the_step_wait_and_the_others_stay_as_they_are():
    driver = Driver(make_scheduler(max_num_seqs=2))
    requests = [make_request(name, prompt=6, max_output_tokens=3) for name in "abc"]
    driver.add(*requests)
    driver.step()
    held = make_request("held", prompt=4, granted_output_tokens=0)
    driver.add(held)
    events = lose_step(driver)
    assert events == [
        Preempted(request_key, PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE)
        for request_key in (driver.plans[0].started[0].key, driver.plans[0].started[1].key)
    ]
    waiting = SequenceStatus.WAITING
    assert statuses(driver) == {"a": waiting, "b": waiting, "c": waiting, "held": SequenceStatus.PAUSED}
    assert driver.scheduler.stats().num_free_blocks == driver.scheduler.config.num_device_blocks

    driver.scheduler.grant("held", 4, driver.now)
    driver.run()
    for request in (*requests, held):
        assert driver.output(request.generation_id) == expected_output(request)
        assert driver.finished(request.generation_id).reason is FinishReason.LENGTH
    assert driver.finished("a").usage.num_recomputed_tokens == 6
    check_nothing_is_left(driver)


def test_lost_steps_and_those_that_were_sent_back_are_counted():
    driver = Driver(make_scheduler(max_num_seqs=2))
    driver.add(*(make_request(name, prompt=6, max_output_tokens=3) for name in "abc"))
    driver.step()
    assert (driver.scheduler.stats().num_lost_steps, driver.scheduler.stats().num_requeues) == (0, 0)
    lose_step(driver)
    assert (driver.scheduler.stats().num_lost_steps, driver.scheduler.stats().num_requeues) == (1, 2)
    lose_step(driver)  # a and b have got no further, and end
    stats = driver.scheduler.stats()
    assert (stats.num_lost_steps, stats.num_requeues, stats.num_preemptions) == (2, 2, 2)


def test_a_request_with_several_beams_is_sent_back_once():
    driver = Driver(make_scheduler(max_num_seqs=4))
    driver.add(make_search("s", width=3, prompt=5, max_output_tokens=6))
    driver.step()
    lose_step(driver)
    assert len(driver.plans[-1].rows) == 3
    assert (driver.scheduler.stats().num_lost_steps, driver.scheduler.stats().num_requeues) == (1, 1)


def test_a_second_time_in_a_row_is_the_end():
    driver = Driver(make_scheduler())
    driver.add(request := make_request("g", prompt=6), other := make_request("other", prompt=6, arrived_at=1))
    driver.step()
    lose_step(driver)
    driver.abort("other")
    (end,) = [event for event in lose_step(driver) if isinstance(event, Finished)]
    assert (end.key.generation_id, end.reason, end.error) == ("g", FinishReason.ERROR, NO_MEMORY)
    assert driver.output("g") == expected_output(request)[:1]
    assert driver.output("other") == expected_output(other)[:1]
    check_nothing_is_left(driver)
    assert driver.plan() is None


def test_who_got_on_in_between_is_tried_again():
    driver = Driver(make_scheduler())
    driver.add(request := make_request("g", prompt=6, max_output_tokens=8))
    for _ in range(6):
        lose_step(driver)
        driver.step()
    driver.run()
    assert driver.output("g") == expected_output(request)


def test_a_prompt_whose_second_chunk_never_fits_ends():
    """Its first one, computed again, is no progress: else it would be tried for ever."""
    driver = Driver(make_scheduler(max_num_batched_tokens=4))
    driver.add(make_request("g", prompt=8))
    driver.step()
    lose_step(driver)
    driver.step()
    lose_step(driver)
    assert driver.finished("g").error == NO_MEMORY
    assert driver.finished("g").usage.num_recomputed_tokens == 4


def test_what_ended_or_was_held_while_the_plan_was_open_is_not_computed_again():
    driver = Driver(make_scheduler())
    driver.add(*(make_request(name, prompt=6, max_output_tokens=6) for name in "abc"))
    driver.step()
    plan = driver.plan()
    driver.abort("a")
    driver.scheduler.grant("b", 1, driver.now)
    driver.runner.execute(plan)
    driver._note(driver.scheduler.requeue(driver.now))
    assert statuses(driver) == {"b": SequenceStatus.PAUSED, "c": SequenceStatus.WAITING}
    driver.run()
    assert driver.finished("c").reason is FinishReason.LENGTH
    driver.scheduler.grant("b", 6, driver.now)
    driver.run()
    assert len(driver.output("b")) == 6
    check_nothing_is_left(driver)


def test_copies_that_the_step_began_go_on():
    fields = {"num_device_blocks": 8, "num_host_blocks": 16, "preemption_mode": PreemptionChoice.SWAP}
    fields |= {"growth_reserve_tokens": 0, "min_resident_steps": 0}
    driver = Driver(make_scheduler(**fields))
    requests = [make_request(name, prompt=10, max_output_tokens=10) for name in "ab"]
    driver.add(*requests)
    for _ in range(100):
        plan = driver.plan()
        assert plan is not None
        if plan.copies:
            break
        driver.commit(plan)
    completed = driver.runner.execute(plan).completed_copies
    driver._note(driver.scheduler.requeue(driver.now))
    assert driver.scheduler.num_copies_in_flight == len(plan.copies)
    driver._note(driver.scheduler.complete_copies(completed, driver.now))
    driver.run()
    for request in requests:
        assert driver.output(request.generation_id) == expected_output(request)
    check_nothing_is_left(driver)


@pytest.mark.parametrize("scheduling", ["fcfs", "fair", "fair, strict", "drr"])
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(s, marks=pytest.mark.slow) for s in range(2, 12))])
def test_random_steps_are_lost_and_nothing_that_was_said(scheduling, seed):
    rng, charged = random.Random(seed), []
    fields = {"num_device_blocks": 24, "num_host_blocks": rng.choice([0, 20]), "num_draft_tokens": rng.choice([0, 3])}
    fields |= {"enable_prefix_caching": rng.random() < 0.5, "max_num_batched_tokens": rng.choice([5, 32])}
    driver = Driver(make_scheduler(make_policy(scheduling, charged), **fields), max_copy_delay=rng.choice([0, 3]))
    requests = [
        make_request(f"g{n}", tenant="ab"[n % 2], prompt=rng.randint(1, 30), max_output_tokens=rng.randint(1, 20))
        for n in range(10)
    ]
    driver.add(*requests)
    while driver.scheduler.has_unfinished or driver.scheduler.num_copies_in_flight:
        plan = driver.plan()
        if plan is None:
            assert driver.wait()
        elif rng.random() < 0.3 and is_nobodys_second(driver):
            completed = driver.runner.execute(plan).completed_copies
            driver._note(driver.scheduler.requeue(driver.now))
            driver._note(driver.scheduler.complete_copies(completed, driver.now))
        else:
            driver.commit(plan)
    for request in requests:
        check_story(driver, request)
        assert driver.finished(request.generation_id).reason is FinishReason.LENGTH
    check_nothing_is_left(driver)
