"""Tenants, nodes and flows: whose weight counts, what is told to a policy, and what is forgotten."""

import dataclasses

import pytest

from engine.core import flow as flow_module
from engine.core.policy import Demand, PlanStart, Terms
from engine.core.types import PathNode, PriorityClass, Request
from policies.fcfs import Fcfs
from tests.builders import Driver, make_request, make_scheduler


class Listening(Fcfs):
    """Order of arrival; keeps what it is told of demands: (tenant, demand) of each flow that changed, per plan."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[list[tuple[str, Demand]]] = []
        self.satisfied: list[list[tuple[str, Demand]]] = []

    def begin(self, start: PlanStart) -> Terms:
        self.changes.append([(flow.tenant_id, flow.demand) for flow in start.changed])
        self.satisfied.append([(flow.tenant_id, flow.demand) for flow in start.satisfied])
        return Terms()


def of_team(request: Request, organization: str, team: str) -> Request:
    return dataclasses.replace(request, path=(PathNode(organization, 1.0), PathNode(team, 1.0)))


class TestDemand:
    def driver(self, **fields: object) -> tuple[Driver, Listening]:
        policy = Listening()
        return Driver(make_scheduler(policy, **fields)), policy

    def test_who_got_all_that_it_could_use_is_satisfied(self):
        driver, policy = self.driver()
        driver.add(make_request(prompt=4, max_output_tokens=3))
        driver.step()
        driver.step()

        assert policy.changes == [[("org-a/a", Demand.SATISFIED)], []]
        assert policy.satisfied == [[("org-a/a", Demand.SATISFIED)]] * 2

    def test_who_waits_after_a_plan_is_backlogged(self):
        driver, policy = self.driver(max_num_seqs=1)
        driver.add(make_request(tenant="a", prompt=4, max_output_tokens=3), make_request(tenant="b", prompt=4))
        driver.step()
        driver.step()

        assert policy.changes[1] == [("org-b/b", Demand.BACKLOGGED)]
        assert policy.satisfied[1] == [("org-a/a", Demand.SATISFIED)]

    def test_tokens_left_over_are_a_backlog(self):
        driver, policy = self.driver(max_num_batched_tokens=8)
        driver.add(make_request(prompt=12))
        driver.step()
        driver.step()
        driver.step()

        assert policy.changes[1:] == [[("org-a/a", Demand.BACKLOGGED)], [("org-a/a", Demand.SATISFIED)]]

    def test_a_backlog_ends_with_the_next_plan_and_not_with_the_request(self):
        driver, policy = self.driver(max_num_seqs=1)
        driver.add(make_request(tenant="a", prompt=4, max_output_tokens=9), make_request("g", tenant="b", prompt=4))
        driver.step()
        driver.abort("g")
        driver.add(make_request(tenant="b", prompt=4))
        driver.step()

        assert policy.changes[1] == [("org-b/b", Demand.BACKLOGGED)]

    def test_who_is_held_wants_nothing(self):
        driver, policy = self.driver(max_num_seqs=1)
        driver.add(make_request(tenant="a", prompt=4, max_output_tokens=9), make_request("g", tenant="b", prompt=4))
        driver.step()
        driver.step()
        driver.scheduler.set_reader_blocked("g", blocked=True, now=driver.now)
        driver.step()

        assert policy.changes[2] == [("org-b/b", Demand.NONE)]

    def test_a_new_policy_is_told_of_those_that_want_something_only(self):
        driver, _ = self.driver()
        driver.add(make_request("g", tenant="a", prompt=4, max_output_tokens=9), make_request(tenant="b", prompt=4))
        driver.step()
        driver.step()
        driver.abort("g")
        driver.scheduler.set_scheduling_policy(policy := Listening(), driver.now)
        driver.step()

        assert policy.satisfied == [[("org-b/b", Demand.SATISFIED)]]


class TestUpdates:
    def driver(self, revision: int = 3) -> Driver:
        driver = Driver(make_scheduler(max_num_seqs=1))
        driver.add(
            *(make_request(name, prompt=4, weight=2.0, policy_revision=revision) for name in ("running", "queued"))
        )
        driver.step()
        return driver

    def weights(self, driver: Driver) -> set[tuple[float, ...]]:
        seqs = driver.scheduler.lifecycle.by_generation.values()
        return {tuple(node.weight for node in seq.flow.nodes) for seq in seqs}

    def test_a_weight_governs_queued_and_running_work(self):
        driver = self.driver()
        driver.scheduler.update_nodes([(("org-a",), 5.0, 4), (("org-a", "a"), 7.0, 4)], driver.now)

        assert self.weights(driver) == {(5.0, 7.0)}
        assert [node.weight for node in driver.scheduler.stats().tenants[0].path] == [5.0, 7.0]

    def test_an_older_revision_changes_nothing(self):
        driver = self.driver()
        driver.scheduler.update_nodes([(("org-a", "a"), 7.0, 2)], driver.now)
        driver.add(make_request(weight=9.0, policy_revision=1))

        assert self.weights(driver) == {(1.0, 2.0)}

    def test_a_weight_holds_in_each_class(self):
        driver = self.driver()
        driver.add(make_request(prompt=4, weight=2.0, policy_revision=3, priority_class=PriorityClass("batch", 9)))
        driver.scheduler.update_nodes([(("org-a", "a"), 7.0, 4)], driver.now)

        assert self.weights(driver) == {(1.0, 7.0)}

    def test_unknown_nodes_are_passed_over(self):
        driver = self.driver()
        driver.scheduler.update_nodes([(("org-z",), 7.0, 4)], driver.now)

        assert self.weights(driver) == {(1.0, 2.0)}

    @pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
    def test_a_weight_that_makes_no_sense_is_refused_with_all_others(self, weight: float):
        driver = self.driver()
        with pytest.raises(ValueError, match="org-a/a"):
            driver.scheduler.update_nodes([(("org-a",), 5.0, 4), (("org-a", "a"), weight, 4)], driver.now)

        assert self.weights(driver) == {(1.0, 2.0)}

    def test_settings_of_a_class_govern_queued_and_running_work(self):
        driver = self.driver()
        driver.scheduler.update_classes([PriorityClass("default", 7, 0.25), PriorityClass("unknown", 1)], 4, driver.now)
        driver.add(make_request("older", policy_revision=3))

        seqs = driver.scheduler.lifecycle.by_generation.values()
        assert {seq.priority_class for seq in seqs} == {PriorityClass("default", 7, 0.25)}
        assert driver.scheduler.lifecycle.flows.class_ranks() == {"default": 7}


def test_a_request_of_another_class_takes_its_blocks_and_its_row_along():
    driver = Driver(make_scheduler())
    driver.add(make_request("g", prompt=8))
    driver.step()
    driver.scheduler.set_class("g", PriorityClass("batch", 9), driver.now)

    counts = {f.priority_class.name: (f.num_device_blocks, f.num_rows) for f in driver.scheduler.lifecycle.flows.all()}
    assert counts == {"default": (0, 0), "batch": (2, 1)}
    driver.run()
    assert len(driver.output("g")) == 4


def test_a_tenant_that_is_forgotten_leaves_the_others_of_its_organization(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(flow_module, "MAX_IDLE_TENANTS", 0)
    driver = Driver(make_scheduler())
    driver.add(of_team(make_request("busy", granted_output_tokens=0, priority_class=PriorityClass("x")), "org", "one"))
    driver.add(of_team(make_request("brief", max_output_tokens=1, priority_class=PriorityClass("y")), "org", "two"))
    driver.run()

    assert [tenant.tenant_id for tenant in driver.scheduler.stats().tenants] == ["org/one"]
