"""One tenant floods, another sends a short request now and then."""

import pytest

from engine.core.events import Finished
from tests.builders import STEP_NS, Driver, make_request, make_scheduler
from tests.fakes import ConstantRunner

NUM_HEAVY = 40
NUM_LIGHT = 5


def first_token_steps(scheduling: str) -> tuple[list[int], int]:
    """Steps that each light request waited for its first token, and the step in which the last heavy one ended."""
    limits = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_device_blocks": 200}
    driver = Driver(make_scheduler(scheduling, **limits), ConstantRunner())
    driver.add(*(make_request(tenant="heavy", prompt=32, max_output_tokens=32) for _ in range(NUM_HEAVY)))
    light = []
    for _ in range(NUM_LIGHT):
        for _ in range(12):
            driver.step()
        light.append(make_request(tenant="light", prompt=8, max_output_tokens=4, arrived_at=driver.now))
        driver.add(light[-1])
    driver.run()

    timings = [driver.finished(request.generation_id).timings for request in light]
    heavy_ends = [
        e
        for e in driver.events
        if isinstance(e, Finished) and e.key.generation_id not in {r.generation_id for r in light}
    ]
    assert len(heavy_ends) == NUM_HEAVY
    return [(timing.queue_ns + timing.prefill_ns) // STEP_NS for timing in timings], len(driver.plans)


@pytest.mark.parametrize("scheduling", ["fair", "vtc"])
def test_light_tenant_is_served_while_heavy_tenant_floods(scheduling: str):
    waits, num_steps = first_token_steps(scheduling)

    # It never waits longer than until the next of eight running requests of 32 tokens ends.
    assert max(waits) <= 32
    assert max(waits) < num_steps / 4


@pytest.mark.parametrize("scheduling", ["fair", "vtc"])
def test_first_come_first_served_starves_the_light_tenant(scheduling: str):
    isolated, _ = first_token_steps(scheduling)
    fcfs, num_steps = first_token_steps("fcfs")

    assert fcfs[0] > num_steps / 2
    assert sum(fcfs) > 5 * sum(isolated)


@pytest.mark.parametrize("scheduling", ["fair", "vtc"])
def test_the_order_costs_no_steps(scheduling: str):
    _, num_steps = first_token_steps(scheduling)
    _, num_fcfs_steps = first_token_steps("fcfs")

    assert num_steps <= 1.1 * num_fcfs_steps
