"""A scheduler that tells of first tokens only: the simulator hears all that it measures, and nothing else changes."""

import pytest

from tests.sim.simulations import make_simulation, random_traffic

SMALL = {"num_device_blocks": 40, "num_host_blocks": 32, "max_num_seqs": 4}


@pytest.mark.parametrize("policy", ["fair", "srpt", "fcfs"])
@pytest.mark.parametrize("seed", range(3))
def test_measurements_and_decisions_are_the_same(policy: str, seed: int):
    told, quiet = (make_simulation(policy, "over_served", **SMALL) for _ in range(2))
    quiet.scheduler.tell_first_tokens_only()
    for simulation in (told, quiet):
        simulation.run(random_traffic(seed, rate=20.0))

    assert told.scheduler.stats().num_preemptions > 0
    assert quiet.plans == told.plans
    assert quiet.samples.by_id == told.samples.by_id
