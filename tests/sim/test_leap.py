"""A leap changes no decision: every plan that is made is the one that single steps make, at the same time."""

import pytest

from engine.core.config import AdmissionReserve
from engine.sim.traffic.row import Arrival
from policies.fair import Fair
from policies.fcfs import Fcfs
from policies.vtc import Vtc
from tests.sim.simulations import Simulation, make_simulation, random_traffic, with_prefixes

POLICIES = {"fcfs": Fcfs, "vtc": Vtc, "fair": Fair}


def run(policy: str, seed: int, *, leaps: bool, rate: float = 6.0, **fields: object) -> Simulation:
    simulation = make_simulation(POLICIES[policy](), leaps=leaps, **fields)
    simulation.run(random_traffic(seed, rate=rate))
    return simulation


def check_equal(stepped: Simulation, leaping: Simulation) -> None:
    assert leaping.plans == {step: stepped.plans[step] for step in leaping.plans}
    assert leaping.samples.by_id == stepped.samples.by_id
    assert leaping.ended_at == stepped.ended_at
    assert leaping.scheduler.stats() == stepped.scheduler.stats()
    policies = [each.scheduler.lifecycle.policy.policy for each in (stepped, leaping)]
    assert policies[0].snapshot() == policies[1].snapshot()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("rate", [0.5, 6.0, 40.0])
@pytest.mark.parametrize("seed", range(3))
def test_decisions_are_the_same_with_and_without_leaps(policy: str, rate: float, seed: int):
    stepped, leaping = (run(policy, seed, leaps=leaps, rate=rate) for leaps in (False, True))

    check_equal(stepped, leaping)
    assert leaping.num_leaps > 0
    assert len(leaping.plans) < len(stepped.plans)


@pytest.mark.parametrize("num_device_blocks", [40, 400])
@pytest.mark.parametrize("policy", POLICIES)
def test_decisions_are_the_same_where_prompts_share_what_they_begin_with(policy: str, num_device_blocks: int):
    results = []
    for leaps in (False, True):
        fields = {"num_device_blocks": num_device_blocks, "num_host_blocks": 16, "enable_prefix_caching": True}
        simulation = make_simulation(POLICIES[policy](), leaps=leaps, **fields)
        simulation.run(with_prefixes(random_traffic(2, rate=12.0)))
        results.append(simulation)

    check_equal(*results)
    assert results[1].num_leaps > 0
    assert results[1].scheduler.stats().totals.num_found_tokens > 100


def test_counters_are_the_same_to_the_last_bit_with_weights_that_round():
    weights = {"o0/t0": 0.3, "o0/t1": 7.0, "o1/t2": 1 / 3, "o1": 1.1}

    stepped, leaping = (run("fair", 3, leaps=leaps, rate=2.0, weights=weights) for leaps in (False, True))

    check_equal(stepped, leaping)
    assert leaping.num_leaps > 5


@pytest.mark.parametrize("num_device_blocks", [40, 64, 400])
@pytest.mark.parametrize("reserve", AdmissionReserve)
def test_decisions_are_the_same_when_blocks_are_short(reserve: AdmissionReserve, num_device_blocks: int):
    fields = {"num_device_blocks": num_device_blocks, "admission_reserve": reserve, "num_host_blocks": 32}

    check_equal(*(run("fcfs", 5, leaps=leaps, rate=20.0, **fields) for leaps in (False, True)))


def test_decisions_are_the_same_when_all_rows_are_taken():
    fields = {"max_num_seqs": 3, "num_device_blocks": 400}

    stepped, leaping = (run("fcfs", 7, leaps=leaps, rate=20.0, **fields) for leaps in (False, True))

    check_equal(stepped, leaping)
    assert len(leaping.plans) < len(stepped.plans) / 2


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("max_num_seqs", [2, 3, 4])
@pytest.mark.parametrize("seed", range(3))
def test_decisions_are_the_same_when_rows_are_scarce_for_several_tenants(policy: str, max_num_seqs: int, seed: int):
    fields = {"max_num_seqs": max_num_seqs, "num_device_blocks": 400, "rate": 9.0, "weights": {"o0": 2.0}}

    check_equal(*(run(policy, seed, leaps=leaps, **fields) for leaps in (False, True)))


@pytest.mark.parametrize("seed", range(4))
def test_fair_leaps_beside_requests_that_wait_for_a_row(seed: int):
    """Two tenants that are never idle, long outputs: most steps are like the one before."""
    arrivals = [Arrival(0, f"o/t{index % 2}", 8 + index % 5, 60 + (index * 7 + seed) % 20) for index in range(24)]
    simulations = [
        make_simulation("fair", leaps=leaps, max_num_seqs=4, num_device_blocks=400) for leaps in (False, True)
    ]
    for simulation in simulations:
        simulation.run(arrivals)

    check_equal(*simulations)
    assert len(simulations[1].plans) < len(simulations[0].plans) / 2


def test_a_policy_that_cannot_tell_is_stepped():
    simulation = make_simulation("srpt", leaps=True)

    simulation.run(random_traffic(1))

    assert simulation.num_leaps == 0


class LeapsAstray(Fcfs):
    """Answers what it was not asked."""

    def __init__(self, answer: object) -> None:
        super().__init__()
        self.answer = answer

    def leap(self, services, times):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("answer", [10**9, -1, None, 1.5, True, RuntimeError("no idea")])
def test_a_policy_whose_leap_fails_is_replaced(answer: object):
    simulation = make_simulation(LeapsAstray(answer), leaps=True)

    simulation.run(random_traffic(1))

    assert simulation.scheduler.policy_fault is not None
    assert not simulation.scheduler.has_unfinished
