"""Priority through the whole scheduler: an urgent request takes a row or memory; an equal one takes nothing."""

import pytest

from engine.core.events import Preempted, TokensEmitted
from engine.core.types import PriorityClass
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ConstantRunner, expected_output

LOW, URGENT = PriorityClass("low", 5), PriorityClass("urgent", 0)
LIMITS = {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 4_096}


def busy(**limits: int) -> Driver:
    """Two long requests of the low class run."""
    driver = Driver(make_scheduler("priority", "over_served", **{**LIMITS, **limits}), ConstantRunner())
    driver.add(*(make_request(f"low{i}", prompt=16, max_output_tokens=400, priority_class=LOW) for i in range(2)))
    for _ in range(12):
        driver.step()
    return driver


def steps_to_first_token(driver: Driver, generation_id: str, max_steps: int) -> int | None:
    """None if it takes more than `max_steps`."""
    for step in range(1, max_steps + 1):
        events = driver.step()
        if any(isinstance(event, TokensEmitted) and event.key.generation_id == generation_id for event in events):
            return step
    return None


def test_an_urgent_request_gets_a_row_within_two_steps():
    driver = busy(num_device_blocks=1_024)
    driver.add(make_request("urgent", prompt=8, max_output_tokens=4, priority_class=URGENT))

    assert steps_to_first_token(driver, "urgent", 10) <= 2


@pytest.mark.parametrize("num_host_blocks", [0, 512])
def test_an_urgent_request_gets_memory_within_a_few_steps(num_host_blocks: int):
    driver = busy(num_device_blocks=128, max_num_seqs=8, num_host_blocks=num_host_blocks)
    while driver.scheduler.stats().num_free_blocks > 30:
        driver.step()
    driver.add(make_request("urgent", prompt=160, max_output_tokens=4, priority_class=URGENT))

    # One step for the blocks, three for a prompt of 160 tokens beside decodes.
    assert steps_to_first_token(driver, "urgent", 20) <= 6


def test_an_equal_request_takes_nothing():
    driver = busy(num_device_blocks=1_024)
    driver.add(make_request("equal", prompt=8, max_output_tokens=4, priority_class=LOW))

    assert steps_to_first_token(driver, "equal", 100) is None
    assert not [event for event in driver.events if isinstance(event, Preempted)]


def test_nothing_of_a_preempted_request_is_lost():
    driver = Driver(make_scheduler("priority", "over_served", **{**LIMITS, "max_num_seqs": 3}, num_device_blocks=24))
    lows = [make_request(f"low{i}", prompt=12, max_output_tokens=40, priority_class=LOW) for i in range(3)]
    driver.add(*lows)
    for number in range(6):
        for _ in range(10):
            driver.step()
        driver.add(make_request(f"urgent{number}", prompt=40, max_output_tokens=4, priority_class=URGENT))
    driver.run()

    assert driver.scheduler.stats().num_preemptions > 0
    for request in lows:
        assert driver.output(request.generation_id) == expected_output(request)
        assert driver.finished(request.generation_id).usage.num_preemptions <= 6
