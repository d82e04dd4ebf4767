"""Under endless arrivals at half more than the engine can do, the oldest request of every tenant gets on."""

import random

import pytest

from engine.core.types import PriorityClass
from engine.plugins import SCHEDULING_GROUP, installed, load_scheduling_policy
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ConstantRunner

NUM_STEPS = 1_800
NUM_ROWS = 4
MEAN_OUTPUT = 12
CLASSES = {"a": PriorityClass("top", 0), "b": PriorityClass("middle", 2, 0.25), "c": PriorityClass("low", 4, 0.1)}

# Steps take a millisecond here, so what is promised after a time is promised within the run.
OPTIONS = {
    "fair": {"class_ageing_ms": "50"},
    "priority": {"ageing_ms": "50"},
    "mlfq": {"starvation_ms": "50"},
    "srpt": {"starvation_ms": "50"},
    "edf": {"slo_ms": "100", "best_effort_every": "3"},
}

# The part of the run of whose requests none may be left at its end. `fair` takes the oldest of a tenant once in four.
FIRST_PART = {"fair": 1 / 8}


def overload(name: str) -> tuple[Driver, dict[str, int]]:
    """A run with 1.5 times the work that fits; the step in which each request arrived."""
    policy = load_scheduling_policy(name, OPTIONS.get(name, {}))
    driver = Driver(
        make_scheduler(policy, "over_served", max_num_seqs=NUM_ROWS, num_device_blocks=40, num_host_blocks=40),
        ConstantRunner(),
    )
    rng = random.Random(5)
    arrived: dict[str, int] = {}
    for step in range(NUM_STEPS):
        while rng.random() < 1.5 * NUM_ROWS / MEAN_OUTPUT / (1 + 1.5 * NUM_ROWS / MEAN_OUTPUT):
            tenant = rng.choices("abc", (4, 4, 1))[0]
            is_long = rng.random() < 0.2
            request = make_request(
                f"g{len(arrived)}",
                tenant=tenant,
                prompt=40 if is_long else 4,
                max_output_tokens=40 if is_long else 5,
                priority_class=CLASSES[tenant],
                arrived_at=driver.now,
            )
            arrived[request.generation_id] = step
            driver.add(request)
        driver.step()
    return driver, arrived


@pytest.mark.parametrize("name", installed(SCHEDULING_GROUP))
def test_no_request_is_left_behind_for_good(name: str):
    driver, arrived = overload(name)

    unfinished = driver.scheduler.lifecycle.by_generation
    assert driver.scheduler.policy_fault is None
    assert len(unfinished) > len(arrived) / 10, "the run was no overload"
    first_steps = NUM_STEPS * FIRST_PART.get(name, 1 / 4)
    assert [generation_id for generation_id in unfinished if arrived[generation_id] < first_steps] == []
