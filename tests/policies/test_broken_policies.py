"""A policy that fails in the middle of a run: everybody is served all the same, and its name is told."""

import random

import pytest

from engine.core.types import FinishReason
from policies.fcfs import Fcfs
from policies.latest_arrival import LatestArrival
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import expected_output
from tests.policies.views import make_view

METHODS = ("on_arrive", "on_leave", "begin", "select", "key", "charge")
LIMITS = {"num_device_blocks": 16, "growth_reserve_tokens": 0, "num_host_blocks": 8}


class FailsAfterAWhile(Fcfs):
    """Raises in one method from the tenth call of it on."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.num_calls = 0
        working = getattr(self, method)

        def failing(*arguments: object) -> object:
            self.num_calls += 1
            if self.num_calls >= 10:
                raise RuntimeError(f"{method} is out of order")
            return working(*arguments)

        setattr(self, method, failing)


class NamesAStranger(Fcfs):
    def select(self, passed):
        return make_view(999)


class NamesWhoRuns(Fcfs):
    def __init__(self):
        super().__init__()
        self.last = None

    def select(self, passed):
        self.last = super().select(passed) or self.last
        return self.last


class SelectsNobody(Fcfs):
    def select(self, passed):
        return None


class HasNoOrder(Fcfs):
    def key(self, seq):
        return (float("nan"),)


class NamesStrangers(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        yield make_view(999)


class NamesEverybodyTwice(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        yield from (*resident, *resident)


class Raises(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        raise RuntimeError("no idea")


class NamesNobody(LatestArrival):
    def victims(self, resident, claimant, standing, now):
        return iter(())


def serve(scheduling, preemption) -> Driver:
    """A run in a pool that is too small; AssertionError unless everybody is given the undisturbed output."""
    driver = Driver(make_scheduler(scheduling, preemption, **LIMITS))
    rng = random.Random(2)
    requests = [
        make_request(f"g{index}", tenant="abc"[index % 3], prompt=rng.randint(1, 24), max_output_tokens=24)
        for index in range(16)
    ]
    for request in requests:
        driver.add(request)
        driver.step()
    driver.run()
    for request in requests:
        assert driver.finished(request.generation_id).reason is FinishReason.LENGTH
        assert driver.output(request.generation_id) == expected_output(request)
    return driver


@pytest.mark.parametrize("method", METHODS)
def test_a_scheduling_policy_that_raises_is_replaced_and_named(method: str):
    driver = serve(FailsAfterAWhile(method), LatestArrival())

    fault = driver.scheduler.policy_fault
    assert f"FailsAfterAWhile: RuntimeError: {method} is out of order" in fault
    assert driver.scheduler.stats().policy_fault == fault


@pytest.mark.parametrize("policy", [NamesAStranger, NamesWhoRuns])
def test_a_scheduling_policy_that_names_what_does_not_wait_is_replaced_and_named(policy):
    assert policy.__name__ in serve(policy(), LatestArrival()).scheduler.policy_fault


@pytest.mark.parametrize("policy", [NamesStrangers, NamesEverybodyTwice, Raises])
def test_a_preemption_policy_that_fails_is_replaced_and_named(policy):
    assert policy.__name__ in serve(Fcfs(), policy()).scheduler.policy_fault


def test_a_preemption_policy_that_names_nobody_for_ever_stops_nobody():
    assert serve(Fcfs(), NamesNobody()).scheduler.policy_fault is None


def test_keys_without_an_order_stop_nobody():
    serve(HasNoOrder(), LatestArrival())


def test_a_scheduling_policy_that_selects_nobody_for_ever_is_replaced_and_named():
    assert "SelectsNobody" in serve(SelectsNobody(), LatestArrival()).scheduler.policy_fault
