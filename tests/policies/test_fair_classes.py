"""Classes under `fair` in a running scheduler: what a change of their settings changes, and when."""

from engine.core.policy import Concession
from engine.core.types import PriorityClass
from tests.builders import Driver, make_request, make_scheduler

HIGH, LOW = PriorityClass("high", 0), PriorityClass("low", 9)


def crowded() -> Driver:
    """One row: a request of the high class runs, three more and one of the low class wait."""
    driver = Driver(make_scheduler("fair", "over_served", max_num_seqs=1))
    names = ("running", "high1", "high2", "high3")
    driver.add(*(make_request(name, tenant="a", prompt=4, max_output_tokens=3, priority_class=HIGH) for name in names))
    driver.add(make_request("low", tenant="b", prompt=4, max_output_tokens=3, priority_class=LOW))
    driver.step()
    driver.step()
    return driver


def starts(driver: Driver) -> list[str]:
    driver.run()
    return [start.key.generation_id for plan in driver.plans for start in plan.started]


def test_a_lower_class_waits_until_the_higher_one_has_ended():
    assert starts(crowded())[-1] == "low"


def test_a_new_rank_governs_those_that_wait_from_the_next_plan_on():
    driver = crowded()
    driver.scheduler.update_classes([PriorityClass("low", -5)], 1, driver.now)

    assert starts(driver)[1] == "low"


def test_a_new_rank_governs_who_gives_way():
    driver = crowded()
    seqs = driver.scheduler.lifecycle.by_generation
    driver.scheduler.update_classes([PriorityClass("low", -5)], 1, driver.now)
    policy = driver.scheduler.lifecycle.policy

    assert policy.concessions([seqs["running"]], seqs["low"]) == {seqs["running"]: Concession.ANYTHING}
    assert not policy.concessions([seqs["low"]], seqs["running"])
