"""What a step costs, counted in function calls: no clock, no noise."""

import gc
import sys
from collections import abc
from types import FrameType

import pytest

from engine.core.scheduler import Scheduler
from engine.core.types import Nanos
from tests.builders import make_request, make_scheduler
from tests.fakes import ConstantRunner

NOW = Nanos(0)
RUNNER = ConstantRunner()


def count_calls(work: abc.Callable[[], object]) -> int:
    """Calls of Python and built-in functions during `work`."""
    num_calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    gc.disable()  # a collection in between calls whoever asked to be told of it
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return num_calls


def decoding_scheduler(scheduling: str, *, num_running: int, num_waiting: int, prompt: int = 4) -> Scheduler:
    """A scheduler that only decodes, with every row taken and far from the next block border.

    It is settled: the demand of each flow is what it was in the last step.
    """
    scheduler = make_scheduler(
        scheduling,
        max_num_seqs=num_running,
        max_num_batched_tokens=4096,
        block_size=1024,
        num_device_blocks=64,
    )
    for number in range(num_running):
        scheduler.add(make_request(tenant=f"t{number % 5}", prompt=prompt, max_output_tokens=400), NOW)
    while len(scheduler.lifecycle.running) < num_running:
        scheduler.commit(RUNNER.execute(scheduler.plan(NOW)), NOW)
    for number in range(num_waiting):
        scheduler.add(make_request(tenant=f"t{number % 50}", prompt=4, max_output_tokens=400), NOW)
    for _ in range(2):
        scheduler.commit(RUNNER.execute(scheduler.plan(NOW)), NOW)
    return scheduler


def calls_of_one_step(scheduler: Scheduler) -> int:
    def step() -> None:
        scheduler.commit(RUNNER.execute(scheduler.plan(NOW)), NOW)

    return count_calls(step)


@pytest.mark.parametrize("scheduling", ["fcfs", "vtc"])
def test_a_step_costs_the_same_however_many_requests_wait(scheduling: str):
    few, many = (decoding_scheduler(scheduling, num_running=8, num_waiting=number) for number in (50, 8_000))

    assert calls_of_one_step(many) == calls_of_one_step(few)


def test_a_step_of_fair_does_not_grow_with_the_number_waiting():
    # Which tenants are ranked anew differs from step to step, so that one alone says little.
    def calls(num_waiting: int) -> int:
        scheduler = decoding_scheduler("fair", num_running=8, num_waiting=num_waiting)
        return sum(calls_of_one_step(scheduler) for _ in range(40))

    costs = [calls(number) for number in (100, 500, 2_000, 8_000)]
    assert max(costs) <= 1.01 * min(costs)


def test_a_decode_costs_the_same_however_long_the_context_is():
    short, long = (decoding_scheduler("vtc", num_running=8, num_waiting=0, prompt=prompt) for prompt in (4, 500))

    assert calls_of_one_step(short) == calls_of_one_step(long)


def test_the_cost_of_a_step_is_linear_in_the_running_sequences():
    per_sequence = [
        calls_of_one_step(decoding_scheduler("vtc", num_running=number, num_waiting=0)) / number
        for number in (8, 32, 60)
    ]

    assert per_sequence[2] <= per_sequence[1] <= per_sequence[0] <= 45
    assert per_sequence[2] <= 27  # what each sequence adds, without what each step costs


@pytest.mark.parametrize("scheduling", ["fcfs", "vtc", "fair"])
def test_choosing_who_is_next_does_not_look_at_all_who_wait(scheduling: str):
    scheduler = decoding_scheduler(scheduling, num_running=2, num_waiting=2_000)
    policy = scheduler.lifecycle.policy

    assert count_calls(lambda: policy.select([])) < 60


def test_many_new_weights_look_at_each_flow_once():
    def calls(num_teams: int) -> int:
        scheduler = make_scheduler()
        for number in range(num_teams):
            scheduler.add(make_request(tenant=f"t{number}"), NOW)
        updates = [((f"org-t{number}",), 2.0, 1) for number in range(num_teams)]
        return count_calls(lambda: scheduler.update_nodes(updates, NOW))

    assert calls(800) <= 9 * calls(100)


def test_a_tenant_that_decodes_costs_fair_a_few_calls_a_step():
    def calls(num_tenants: int) -> int:
        scheduler = make_scheduler(
            "fair", max_num_seqs=128, max_num_batched_tokens=4096, block_size=1024, num_device_blocks=256
        )
        for number in range(num_tenants):
            scheduler.add(make_request(tenant=f"t{number}", prompt=4, max_output_tokens=400), NOW)
        while len(scheduler.lifecycle.running) < num_tenants:
            scheduler.commit(RUNNER.execute(scheduler.plan(NOW)), NOW)
        for _ in range(3):
            scheduler.commit(RUNNER.execute(scheduler.plan(NOW)), NOW)
        return calls_of_one_step(scheduler)

    assert calls(120) - calls(20) <= 100 * 24
