"""A policy that takes over a running engine, from every other one."""

import json
from dataclasses import replace
from functools import partial

import pytest

from engine.plugins import SCHEDULING_GROUP, installed, load_preemption_policy, load_scheduling_policy
from engine.sim.conformance.traffic import SETTINGS, Run, check_requests
from policies.drr import DEFAULT_QUANTUM
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import ConstantRunner

NAMES = installed(SCHEDULING_GROUP)


@pytest.mark.parametrize("setting", SETTINGS[:3], ids=lambda setting: setting.name)
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_when_the_policy_changes_while_requests_run(name: str, setting):
    others = [other for other in NAMES if other != name]
    pairs = [partial(pair, each) for other in others for each in (other, name)]
    run = Run(replace(setting, num_requests=60), partial(pair, name), switches=pairs * 15)

    run.play()

    assert len(run.switches) <= 14 * len(pairs), "each of them has taken over"
    check_requests(run)


def pair(name: str):
    return load_scheduling_policy(name, {}), load_preemption_policy("over_served", {})


@pytest.mark.parametrize("new", ["vtc", "drr"])
@pytest.mark.parametrize("old", ["vtc", "drr"])
def test_counters_are_carried_over(old: str, new: str):
    driver = Driver(make_scheduler(old, max_num_seqs=2, num_device_blocks=256), ConstantRunner())
    driver.add(*(make_request(tenant="a", prompt=40, max_output_tokens=40) for _ in range(8)))
    for _ in range(60):
        driver.step()
    driver.add(*(make_request(tenant="b", prompt=4, max_output_tokens=4) for _ in range(8)))
    driver.step()
    before = counters(driver)

    driver.scheduler.set_scheduling_policy(load_scheduling_policy(new, {}), driver.now)

    after = counters(driver)
    gaps = [{"org-a/a": 0.0, **state}["org-a/a"] - {"org-b/b": 0.0, **state}["org-b/b"] for state in (before, after)]
    unspent = DEFAULT_QUANTUM if new == "drr" else 0.0  # of a round's quantum, which is not carried over
    assert abs(gaps[0] - gaps[1]) <= unspent


def counters(driver: Driver) -> dict[str, float]:
    return json.loads(driver.scheduler.lifecycle.policy.policy.snapshot())["counters"]
