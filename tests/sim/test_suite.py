"""The suite's scenarios: what C is, how traffic is made from it, and that promises are told apart."""

import pytest

from engine.sim.capacity import capacity
from engine.sim.metrics import RecorderOptions
from engine.sim.scenarios import SCENARIOS
from engine.sim.scenarios_at_scale import SCENARIOS as AT_SCALE
from engine.sim.suite import FCFS, Bench, Check, Options, isolation_line
from engine.sim.traffic.reshape import Load, load_of
from engine.sim.work import work_of


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(Options(scale=0.1))


def test_capacity_is_the_work_of_sixteen_at_a_time(bench: Bench):
    # A step of 16 decodes is 62 ms; each of them computes 1/64 of a request, whose prompt adds 0.6 ms a token.
    request_s = 128 * 0.0006 + 64 * 0.062 / 16 + 64 * 0.0001
    assert bench.work_per_s == pytest.approx(256 / request_s, rel=0.05)


def test_capacity_of_a_pool_that_holds_one_request(bench: Bench):
    setup = bench.setup(FCFS, {"num_device_blocks": 12, "max_model_len": 192})

    assert 0 < capacity(setup, 128, 64) < bench.work_per_s / 2


def test_traffic_asks_for_its_part_of_the_capacity(bench: Bench):
    load = load_of(bench.poisson("a", 0.5, 128, 64, seconds=400))

    assert load.work_per_s == pytest.approx(0.5 * bench.work_per_s, rel=0.1)


def test_a_promise_is_a_bound_from_above_or_from_below():
    assert Check("a wait", 1.0, 1.0).passed
    assert not Check("a wait", 1.1, 1.0).passed
    assert Check("a rate", 1.1, 1.0, is_upper=False).passed
    assert not Check("a wait", float("nan"), 1.0).passed


def test_nobody_is_isolated_better_than_the_running_step_allows():
    assert isolation_line(1.0, 0.1) == 1.5
    assert isolation_line(0.1, 0.1) == pytest.approx(0.3)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *AT_SCALE[:2], AT_SCALE[-1]], ids=lambda scenario: scenario.name)
def test_each_scenario_runs_and_no_policy_fails_in_it(scenario, bench: Bench):
    for policy in bench.options.policies:
        verdict = scenario.verdict(bench, policy)

        assert verdict.checks
        assert not verdict.policy_faults


def test_fcfs_misses_a_line_that_asks_for_more_than_fcfs(bench: Bench):
    [tenants] = [scenario for scenario in AT_SCALE if scenario.name == "S10"]

    [check] = tenants.verdict(bench, FCFS).checks

    assert (check.value, check.line, check.passed) == (1.0, 0.5, False)


def test_work_is_the_same_in_loads_rates_and_recorders(bench: Bench):
    assert Load(1, 2.0, 3, 5).work_per_s == work_of(3, 5) / 2
    assert RecorderOptions().work_of(3, 5) == work_of(3, 5)
    assert bench.rate(0.5, 3, 5) == 0.5 * bench.work_per_s / work_of(3, 5)


def test_a_flood_is_told_from_isolation(bench: Bench):
    [flood] = [scenario for scenario in SCENARIOS if scenario.name == "S1"]
    fair, fcfs = (flood.verdict(bench, policy).checks[0].value for policy in bench.options.policies)

    assert fair < 0.5 * fcfs
