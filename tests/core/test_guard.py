"""A policy that fails is replaced by the order of arrival: the engine goes on and says whose fault it was."""

import re
from collections import abc

import pytest

from engine.core.arrival_order import ArrivalOrder
from engine.core.errors import PolicyTakeoverError
from engine.core.policy import PlanStart, SequenceView, Service, Standing, Terms
from engine.core.types import Nanos
from engine.plugins import load_scheduling_policy
from policies.fcfs import Fcfs
from tests.builders import Driver, make_request, make_scheduler
from tests.fakes import expected_output


class Broken(Fcfs):
    """Raises in one of its methods from a given call on."""

    def __init__(self, method: str, num_calls: int) -> None:
        super().__init__()
        self._num_left = num_calls
        works = getattr(self, method)

        def fail(*arguments: object) -> object:
            self._num_left -= 1
            if self._num_left < 0:
                raise RuntimeError("lost my mind")
            return works(*arguments)

        setattr(self, method, fail)


class Foreign(Fcfs):
    """Selects a sequence of another engine."""

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        stranger = make_scheduler()
        stranger.add(make_request("stranger"), Nanos(0))
        return stranger.lifecycle.by_generation["stranger"]


class Repeating(Fcfs):
    """Selects what it was told has left, too."""

    def on_leave(self, seq, reason, now) -> None:
        """It does not listen."""


class Insistent(Fcfs):
    """Selects the head again that it was told finds no room."""

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return super().select([])


class Idle(Fcfs):
    """Never selects anyone."""

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return None


def crowd() -> list:
    return [make_request(f"g{i}", tenant="ab"[i % 2], prompt=5 + 3 * i, max_output_tokens=9) for i in range(5)]


def run_crowded(scheduling, preemption="latest_arrival") -> Driver:
    driver = Driver(
        make_scheduler(
            scheduling, preemption, num_device_blocks=8, growth_reserve_tokens=0, max_num_seqs=3, num_host_blocks=4
        )
    )
    requests = crowd()
    driver.add(*requests)
    driver.run()
    for request in requests:
        assert driver.output(request.generation_id) == expected_output(request)
    return driver


@pytest.mark.parametrize("num_calls", [0, 1, 4])
@pytest.mark.parametrize("method", ["on_arrive", "on_leave", "begin", "select", "key", "concede", "charge"])
def test_a_policy_may_raise_anywhere(method: str, num_calls: int):
    driver = run_crowded(Broken(method, num_calls))

    assert driver.scheduler.policy_fault == f"policy {__name__}.Broken: RuntimeError: lost my mind" or (
        driver.scheduler.policy_fault is None and num_calls
    )


def test_a_policy_may_raise_when_it_is_asked_for_statistics():
    driver = Driver(make_scheduler(Broken("standing", 0)))
    driver.add(make_request("g"))

    assert driver.scheduler.stats().tenants[0].standing == ()
    assert "lost my mind" in driver.scheduler.policy_fault
    driver.run()
    assert len(driver.output("g")) == 4


@pytest.mark.parametrize(
    ("policy", "fault"),
    [(Foreign, "stranger"), (Repeating, "not to be had"), (Insistent, "not to be had"), (Idle, "chose nobody")],
)
def test_a_policy_that_selects_whom_it_may_not_is_replaced(policy: type[Fcfs], fault: str):
    driver = run_crowded(policy())

    assert driver.scheduler.policy_fault.startswith(f"policy {__name__}.{policy.__name__}: ValueError: ")
    assert fault in driver.scheduler.policy_fault
    assert driver.scheduler.stats().policy_fault == driver.scheduler.policy_fault


@pytest.mark.parametrize("bound", [float("nan"), "much", None, RuntimeError("unknown")])
def test_a_policy_whose_bound_is_none_is_replaced(bound: object):
    class Promising(Fcfs):
        def gap_bound(self) -> float:
            if isinstance(bound, Exception):
                raise bound
            return bound

    driver = Driver(make_scheduler(Promising()))
    driver.add(make_request())

    assert driver.scheduler.stats().gap_bound is None
    assert driver.scheduler.policy_fault is not None
    driver.run()


def test_those_that_wait_are_served_in_order_of_arrival_afterwards():
    driver = Driver(make_scheduler(Broken("select", 0), max_num_seqs=1))
    driver.add(*(make_request(name, prompt=4, max_output_tokens=1) for name in "cab"))
    driver.run()

    assert [start.key.generation_id for plan in driver.plans for start in plan.started] == ["c", "a", "b"]


def test_a_new_policy_ends_the_fault():
    driver = Driver(make_scheduler(Broken("select", 0)))
    driver.add(make_request("g"))
    driver.step()
    assert driver.scheduler.policy_fault is not None

    driver.scheduler.set_scheduling_policy(Fcfs(), driver.now)
    driver.run()

    assert driver.scheduler.policy_fault is None
    assert len(driver.output("g")) == 4


def test_a_policy_that_cannot_tell_its_counters_can_be_replaced():
    driver = Driver(make_scheduler(Broken("snapshot", 0)))
    driver.add(make_request("g"))
    driver.scheduler.set_scheduling_policy(Fcfs(), driver.now)
    driver.run()

    assert len(driver.output("g")) == 4


class NoTerms(Fcfs):
    def begin(self, start: PlanStart) -> Terms:
        return None  # type: ignore[return-value] # that is the point


class NoSequence(Fcfs):
    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return "g0"  # type: ignore[return-value] # that is the point


class NoRank(Fcfs):
    def on_arrive(self, seq, now) -> None:
        self._waiting.put(seq, (seq.arrival_index,))

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return None if seq.arrival_index % 2 else (1.0,)  # type: ignore[return-value] # that is the point


@pytest.mark.parametrize("policy", [NoTerms, NoSequence, NoRank])
def test_a_policy_that_answers_with_something_else_is_replaced(policy: type[Fcfs]):
    driver = run_crowded(policy())

    assert driver.scheduler.policy_fault.startswith(f"policy {__name__}.{policy.__name__}: ")


class Order:
    """A preemption policy that answers by a function of the offered sequences."""

    def __init__(self, order: abc.Callable[[list[SequenceView]], abc.Iterator[SequenceView]]) -> None:
        self._order = order

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        return self._order(list(resident))


def stranger() -> SequenceView:
    scheduler = make_scheduler()
    scheduler.add(make_request("stranger"), Nanos(0))
    return scheduler.lifecycle.by_generation["stranger"]


def raising(resident: list[SequenceView]) -> abc.Iterator[SequenceView]:
    raise RuntimeError("lost my mind")


def raising_late(resident: list[SequenceView]) -> abc.Iterator[SequenceView]:
    yield from ()
    raise RuntimeError("lost my mind")


@pytest.mark.parametrize(
    ("order", "fault"),
    [
        (raising, "RuntimeError: lost my mind"),
        (raising_late, "RuntimeError: lost my mind"),
        (lambda resident: iter([stranger()]), "ValueError: victims chose .*stranger"),
        (lambda resident: iter(None), "TypeError"),
        (lambda resident: iter(["g0"]), "AttributeError"),
    ],
)
def test_a_preemption_policy_that_fails_is_replaced(order, fault: str):
    driver = run_crowded("fcfs", Order(order))

    assert driver.scheduler.policy_fault.startswith(f"policy {__name__}.Order: ")
    assert re.search(fault, driver.scheduler.policy_fault)


@pytest.mark.parametrize(
    "order", [lambda resident: iter(()), lambda resident: iter(resident * 3), lambda resident: iter(resident)]
)
def test_too_many_victims_or_none_for_ever_stop_nobody(order):
    run_crowded("fair", Order(order))


def test_what_is_charged_reaches_the_policy_once_per_flow_and_step():
    charged: list[Service] = []
    policy = Fcfs()
    policy.charge = charged.append
    driver = Driver(make_scheduler(policy))
    driver.add(make_request(prompt=4, max_output_tokens=2), make_request(prompt=6, max_output_tokens=1))
    driver.run()

    assert [(service.num_prefill_tokens, service.num_output_tokens) for service in charged] == [(10, 2), (0, 1)]


class Unable(ArrivalOrder):
    """Cannot take over what waits."""

    def on_arrive(self, seq, now):
        raise RuntimeError("not for me")


class Speechless(ArrivalOrder):
    """Tells counters that are none."""

    def snapshot(self):
        return None


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit(), RuntimeError("lost my mind")])
def test_a_policy_that_wants_to_end_the_process_is_replaced(error):
    class Ends(ArrivalOrder):
        def charge(self, service):
            raise error

    driver = Driver(make_scheduler(Ends()))
    driver.add(make_request("g"))
    driver.run()

    assert type(error).__name__ in driver.scheduler.policy_fault
    assert len(driver.output("g")) == 4


def test_a_policy_that_cannot_take_over_leaves_the_old_one_in_force():
    driver = Driver(make_scheduler(max_num_seqs=1))
    driver.add(make_request("first"), make_request("second"))
    driver.step()

    with pytest.raises(PolicyTakeoverError, match="Unable: RuntimeError: not for me"):
        driver.scheduler.set_scheduling_policy(Unable(), driver.now)

    driver.run()
    assert driver.scheduler.policy_fault is None
    assert len(driver.output("second")) == 4


def test_counters_that_are_none_do_not_stop_the_next_policy():
    driver = Driver(make_scheduler(Speechless()))
    driver.scheduler.set_scheduling_policy(load_scheduling_policy("fair", {}), driver.now)
    driver.add(make_request("g"))
    driver.run()

    assert driver.scheduler.policy_fault is None


def test_a_key_that_reads_as_no_number_has_no_order():
    class Nan(ArrivalOrder):
        def key(self, seq):
            return ("nan",)

    driver = Driver(make_scheduler(Nan()))
    driver.add(make_request("g"))
    driver.run()

    assert "no order among" in driver.scheduler.policy_fault


def test_what_a_policy_does_to_the_list_it_is_handed_changes_nothing():
    class Clears(ArrivalOrder):
        def select(self, passed):
            passed.clear()
            return super().select(passed)

    driver = Driver(make_scheduler(Clears()))
    driver.add(make_request("g"))
    driver.run()

    assert len(driver.output("g")) == 4


def test_terms_with_a_field_of_another_type_are_refused():
    class Wrong(ArrivalOrder):
        def begin(self, start):
            return Terms(yielding=None)

    driver = Driver(make_scheduler(Wrong()))
    driver.add(make_request("g"))
    driver.run()

    assert "field of another type" in driver.scheduler.policy_fault
