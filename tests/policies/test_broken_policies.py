"""A policy that fails in the middle of a run: everybody is served all the same, and its name is told."""

import random

import pytest

from engine.core.policy import Terms
from engine.core.types import MAX_WEIGHT, MIN_WEIGHT, FinishReason, PathNode
from engine.plugins import PolicyError, load_scheduling_policy
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


class Upset(BaseException):
    """No Exception."""


class Rigged(frozenset):
    """A set that runs code of the policy."""

    def __contains__(self, flow):
        raise RuntimeError("my bug")

    __len__ = __contains__


def raise_error(_):
    raise RuntimeError("my bug")


class Promises(Fcfs):
    """Hands out the plan on terms of its own."""

    def __init__(self, **terms) -> None:
        super().__init__()
        self.terms = terms

    def begin(self, start):
        return Terms(**self.terms)


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


@pytest.mark.parametrize(
    "share",
    [raise_error, *(lambda _, part=part: part for part in (0.0, -1.0, float("nan"), float("inf"), None, "much"))],
    ids=["raises", "zero", "negative", "nan", "infinite", "none", "text"],
)
def test_a_share_that_is_none_is_never_used_and_names_its_policy(share):
    assert "Promises" in serve(Promises(share=share), LatestArrival()).scheduler.policy_fault


@pytest.mark.parametrize("terms", [{"lends": 1}, {"paces_prefill": None}, {"concedes_by_share": "no"}])
def test_terms_of_another_type_replace_the_policy(terms: dict[str, object]):
    assert "Promises" in serve(Promises(**terms), LatestArrival()).scheduler.policy_fault


def test_a_set_of_the_policys_own_runs_none_of_its_code():
    assert serve(Promises(yielding=Rigged()), LatestArrival()).scheduler.policy_fault is None


def test_a_policy_cannot_end_the_engine_with_an_exception_of_its_own_kind():
    class Ends(Fcfs):
        def charge(self, service):
            raise Upset

    assert "Upset" in serve(Ends(), LatestArrival()).scheduler.policy_fault


def test_an_interrupt_of_the_user_is_not_the_policys_fault():
    class Interrupted(Fcfs):
        def charge(self, service):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        serve(Interrupted(), LatestArrival())


@pytest.mark.parametrize("policy", ["fair", "vtc", "drr", "priority"])
@pytest.mark.parametrize("weights", [(MIN_WEIGHT, MAX_WEIGHT), (MIN_WEIGHT, MIN_WEIGHT), (MAX_WEIGHT, MAX_WEIGHT)])
def test_weights_at_the_ends_of_their_range_stop_nobody(policy: str, weights: tuple[float, float]):
    driver = Driver(make_scheduler(policy, "over_served", **LIMITS))
    requests = [make_request(tenant="ab"[index % 2], weight=weights[index % 2], prompt=9) for index in range(8)]
    driver.add(*requests)
    driver.run()

    assert driver.scheduler.policy_fault is None
    assert all(driver.finished(request.generation_id).reason is FinishReason.LENGTH for request in requests)


@pytest.mark.parametrize("weight", [0.0, -1.0, MIN_WEIGHT / 2, MAX_WEIGHT * 2, float("nan"), float("inf"), 1e-310])
def test_weights_out_of_their_range_are_refused(weight: float):
    driver = Driver(make_scheduler("fair", "over_served"))
    driver.add(make_request(tenant="a"))

    with pytest.raises(ValueError, match="weight of t"):
        PathNode("t", weight)
    with pytest.raises(ValueError, match="weight of org-a"):
        driver.scheduler.update_nodes([(("org-a",), 2.0, 1), (("org-a",), weight, 2)], driver.now)
    (tenant,) = driver.scheduler.stats().tenants
    assert [node.weight for node in tenant.path] == [1.0, 1.0]


@pytest.mark.parametrize("option", ["prefill_cost", "output_cost", "theta", "slack"])
def test_options_that_would_overflow_are_refused(option: str):
    with pytest.raises(PolicyError, match=option):
        load_scheduling_policy("fair", {option: "1e308"})
