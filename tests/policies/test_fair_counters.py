"""The counters of `fair`: carried over a restart and a change of policy, and forgotten in the end."""

import json

import pytest

from engine.core.policy import Demand
from engine.core.types import PriorityClass
from engine.plugins import load_scheduling_policy
from engine.sim.conformance.views import PlainFlow
from policies.fair import Fair
from policies.vtc import Vtc
from tests.builders import Driver, make_request, make_scheduler
from tests.policies.desk import Desk, siblings


def counters(driver: Driver) -> dict[str, float]:
    """Of each organization and team, by its path from the class on."""
    nodes = json.loads(driver.scheduler.lifecycle.policy.policy.snapshot())["nodes"]
    return {path: counter for path, counter, *_ in nodes}


class TestCounters:
    def charged(self, **options: object) -> tuple[Desk, list[PlainFlow]]:
        desk = Desk(**options)
        flows = siblings(desk, 1, 1)
        desk.serve(flows[0], 70)
        desk.serve(flows[1], 30)
        desk.begin()
        return desk, flows

    def test_a_restart_goes_on_where_it_was(self):
        desk, (a, b) = self.charged()
        other = Desk()
        other.policy.restore(desk.policy.snapshot())

        assert (other.lead(a), other.lead(b)) == (40, 0)
        assert other.policy.snapshot() == desk.policy.snapshot()

    def test_a_restart_before_anybody_comes_back_tells_the_same(self):
        desk, _ = self.charged()
        other = Desk()
        other.policy.restore(desk.policy.snapshot())

        assert other.policy.snapshot() == desk.policy.snapshot()

    def test_the_counters_of_vtc_are_understood(self):
        desk, (a, b) = self.charged()
        vtc = Vtc()
        vtc.restore(desk.policy.snapshot())
        other = Desk()
        other.policy.restore(vtc.snapshot())
        other.begin({a: Demand.BACKLOGGED, b: Demand.BACKLOGGED})

        assert other.lead(a) - other.lead(b) == 40

    @pytest.mark.parametrize(
        "snapshot",
        [
            b"",
            b"[]",
            b'{"policy": "fcfs"}',
            b'{"policy": "fair", "counters": {}}',
            b'{"policy": "fair", "counters": {}, "nodes": {"default": [1, 2]}}',
            b'{"policy": "fair", "counters": {}, "nodes": {"default": [1, 2, NaN]}}',
        ],
    )
    def test_what_is_no_snapshot_is_refused(self, snapshot: bytes):
        with pytest.raises(ValueError, match="fair"):
            Fair().restore(snapshot)

    @pytest.mark.parametrize("between", ["fcfs", "srpt"])
    def test_a_policy_in_between_that_does_not_count_loses_nothing(self, between: str):
        driver = Driver(make_scheduler("fair"))
        driver.add(
            make_request("a", tenant="a", prompt=60, max_output_tokens=40),
            make_request("b", tenant="b", prompt=30, max_output_tokens=40),
        )
        for _ in range(3):
            driver.step()
        before = counters(driver)
        assert before["default/org-a/a"] > before["default/org-b/b"] > 0
        driver.scheduler.set_scheduling_policy(load_scheduling_policy(between, {}), driver.now)
        for _ in range(5):
            driver.step()
        driver.scheduler.set_scheduling_policy(Fair(), driver.now)

        assert counters(driver) == before
        driver.run()
        assert driver.scheduler.policy_fault is None

    @pytest.mark.parametrize("mode", ["strict", "work_conserving"])
    def test_a_new_mode_may_be_set_while_everything_runs(self, mode: str):
        driver = Driver(make_scheduler("fair"))
        driver.add(make_request("g", prompt=4, max_output_tokens=9))
        driver.step()
        driver.scheduler.set_scheduling_policy(Fair(mode=mode), driver.now)
        driver.run()

        assert driver.scheduler.policy_fault is None

    @pytest.mark.parametrize("old", ["fcfs", "vtc", "fair"])
    def test_it_takes_over_and_is_charged_while_a_plan_is_open(self, old: str):
        driver = Driver(make_scheduler(old))
        driver.add(make_request("g", prompt=4, max_output_tokens=9))
        plan = driver.plan()
        if old == "fair":
            driver.scheduler.set_class("g", PriorityClass("other", 3), driver.now)
        else:
            driver.scheduler.set_scheduling_policy(Fair(), driver.now)
        driver.commit(plan)

        assert driver.scheduler.policy_fault is None

    def test_those_that_are_gone_are_forgotten(self):
        policy = Fair()
        driver = Driver(make_scheduler(policy, max_num_seqs=8, max_num_batched_tokens=64))
        for number in range(60):
            driver.add(*(make_request(tenant=f"{number}-{i}", prompt=2, max_output_tokens=2) for i in range(4)))
            driver.step()
            driver.step()
        driver.run()
        driver.add(make_request(tenant="last", prompt=2, max_output_tokens=2))
        driver.run()

        assert len(policy.snapshot()) < 2_000
