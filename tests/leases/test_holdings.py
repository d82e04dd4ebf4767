"""Live requests and budgets over several replicas, in virtual time: never more than the limit, nothing lost."""

import random

import pytest

from gateway.errors import StoreUnavailableError
from gateway.quota_terms import BudgetWindow, Calendar, Denied, Dimension, Limit, Mode, Reserved, ViolationKind
from tests.leases.centre import EXPIRY_NS, NS_PER_S
from tests.leases.replicas import NODE, World, world_of

WINDOW = BudgetWindow(Calendar.MONTH, 0, 10**18)


def slots(limit: int, **more) -> Limit:
    return Limit(NODE, Dimension.CONCURRENCY, limit, **more)


def budget(limit: int, **more) -> Limit:
    """In cost units; an input token is one."""
    return Limit(NODE, Dimension.BUDGET, limit, window=WINDOW, **more)


def is_admitted(world: World, replica, limit: Limit, amount: int = 1) -> bool:
    name = world.reserve(replica, (limit,), amount)
    world.run(NS_PER_S // 50)
    return isinstance(world.results[name], Reserved)


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("limit", [1, 5, 40])
def test_no_more_requests_run_at_a_time_than_may(limit: int, *, is_strict: bool) -> None:
    world, rng, most = world_of(3), random.Random(3), 0
    for _ in range(1500):
        if rng.random() < 0.6 or not world.reserved:
            world.reserve(rng.choice(world.replicas), (slots(limit, strict=is_strict),), 1)
        else:
            world.settle(rng.choice(sorted(world.reserved)), 1)
        world.run(rng.choice((0, NS_PER_S // 100)))
        most = max(most, len(world.reserved))

    assert most == limit


def test_a_slot_that_is_free_can_be_had_at_once_anywhere() -> None:
    world, limit = world_of(2), slots(1)
    first, second = world.replicas
    for _ in range(5):
        name = world.reserve(first, (limit,), 1)
        world.run(NS_PER_S // 50)
        world.settle(name, 1)
        world.run(NS_PER_S // 4)
        assert is_admitted(world, second, limit)
        assert not is_admitted(world, first, limit)
        world.settle(next(iter(world.reserved)), 1)
        world.run(NS_PER_S // 4)


def test_the_slots_of_a_crashed_replica_come_back() -> None:
    world, limit = world_of(2), slots(3)
    crashed, other = world.replicas
    assert [is_admitted(world, crashed, limit) for _ in range(3)] == [True] * 3
    world.crash(crashed)
    assert not is_admitted(world, other, limit)

    world.run(EXPIRY_NS)

    assert [is_admitted(world, other, limit) for _ in range(4)] == [True, True, True, False]


def test_without_the_store_a_replica_runs_its_share_of_requests() -> None:
    world, limit = world_of(2), slots(4)
    cut, other = world.replicas
    cut.is_cut = True
    world.run(3 * NS_PER_S)

    assert [is_admitted(world, cut, limit) for _ in range(3)] == [True, True, False]
    violations = list(world.results.values())[-1].violations
    assert [violation.kind for violation in violations] == [ViolationKind.CONCURRENCY]
    cut.is_cut = False
    world.run(2 * NS_PER_S)
    assert [is_admitted(world, other, limit) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_budget_is_spent_to_the_end_and_never_beyond(*, is_strict: bool) -> None:
    world, limit, rng, spent = world_of(3), budget(5000, strict=is_strict), random.Random(5), 0
    for _ in range(1000):
        name = world.reserve(rng.choice(world.replicas), (limit,), 50)
        world.run(NS_PER_S // 100)
        if rng.random() < 0.7:
            for name in list(world.reserved):
                used = rng.randrange(51)
                world.settle(name, used)
                spent += used
        assert spent + 50 * len(world.reserved) <= 5000
    for name in list(world.reserved):
        world.settle(name, 50)
        spent += 50
    world.run(3 * NS_PER_S)
    for amount in (50, 20, 10, 5, 2, 1, 1, 1):
        if is_admitted(world, world.replicas[0], limit, amount):
            spent += amount
            world.settle(next(iter(world.reserved)), amount)

    assert spent == 5000
    assert not is_admitted(world, world.replicas[1], limit)
    denied = list(world.results.values())[-1]
    assert isinstance(denied, Denied)
    assert denied.violations[0].kind is ViolationKind.BUDGET


def test_what_a_budget_lost_with_a_crash_is_what_the_replica_held() -> None:
    world, limit = world_of(2), budget(1000)
    crashed, other = world.replicas
    assert is_admitted(world, crashed, limit, 100)
    world.crash(crashed)
    world.run(EXPIRY_NS * 2)

    assert is_admitted(world, other, limit, 500)
    assert not is_admitted(world, other, limit, 401)


@pytest.mark.parametrize("was_taken", [False, True])
def test_what_is_settled_counts_once_when_an_answer_is_lost(*, was_taken: bool) -> None:
    world, limit = world_of(1), budget(100)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 60)
    world.run(NS_PER_S // 10)
    world.settle(name, 40)
    world.send(replica)
    if was_taken:
        world.take(replica)
    world.lose(replica)
    world.run(3 * NS_PER_S)

    assert not is_admitted(world, replica, limit, 61)
    assert is_admitted(world, replica, limit, 60)


def test_what_is_settled_counts_once_when_the_answer_to_the_question_is_lost_too() -> None:
    world, limit = world_of(1), budget(1000)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 40)
    world.run(NS_PER_S // 10)
    world.settle(name, 30)
    world.send(replica)
    world.lose(replica)
    for is_answered in (False, True):
        world.send(replica)
        world.take(replica)
        if is_answered:
            world.receive(replica)
        else:
            world.lose(replica)
    world.run(NS_PER_S)

    (row,) = world.centre.rows.values()
    assert row.settled == 30


def test_the_overdraft_of_a_budget_is_shared_and_counted_afterwards() -> None:
    world, limit = world_of(2), budget(1000, max_overdraft=100)
    cut, other = world.replicas
    cut.is_cut = True
    world.run(3 * NS_PER_S)

    assert is_admitted(world, cut, limit, 50)
    assert isinstance(world.results[world.reserve(cut, (limit,), 1)], StoreUnavailableError)
    cut.is_cut = False
    world.run(4 * NS_PER_S)
    assert not is_admitted(world, other, limit, 951)
    assert is_admitted(world, other, limit, 950)


def test_a_budget_that_was_seen_spent_is_not_overdrawn() -> None:
    world, limit = world_of(1), budget(1000, max_overdraft=100)
    (replica,) = world.replicas
    assert is_admitted(world, replica, limit, 990)
    world.run(NS_PER_S)
    replica.is_cut = True
    world.run(3 * NS_PER_S)

    denied = world.results[world.reserve(replica, (limit,), 11)]
    assert isinstance(denied, Denied)
    assert [violation.kind for violation in denied.violations] == [ViolationKind.BUDGET]
    assert is_admitted(world, replica, limit, 10)


def test_a_new_window_begins_with_the_whole_budget() -> None:
    world = world_of(1)
    (replica,) = world.replicas
    july = budget(100)
    august = Limit(NODE, Dimension.BUDGET, 100, window=BudgetWindow(Calendar.MONTH, 10**18, 2 * 10**18))
    assert is_admitted(world, replica, july, 100)

    assert is_admitted(world, replica, august, 100)
    assert not is_admitted(world, replica, july)


def test_a_shadow_of_slots_counts_what_runs_and_refuses_nobody() -> None:
    world, limit = world_of(1), slots(1, mode=Mode.SHADOW)
    (replica,) = world.replicas
    names = []
    for _ in range(2):
        names.append(world.reserve(replica, (limit,), 1))
        world.run(NS_PER_S // 5)
    world.settle(names[0], 1)
    world.run(NS_PER_S // 2)
    names.append(world.reserve(replica, (limit,), 1))
    world.run(NS_PER_S // 5)
    results = [world.results[name] for name in names]

    assert [len(result.shadow_violations) for result in results] == [0, 1, 0]
    world.settle(names[1], 1)
    world.settle(names[2], 1)
    world.run(NS_PER_S // 2)
    (row,) = world.centre.rows.values()
    assert not row.holders
