"""The end of a budget that several replicas spend from: little is refused while others keep some, and not for good."""

from datetime import UTC, datetime

import pytest

from gateway.leases.holdings import BUDGET_END, RETURN_NS
from gateway.quota_refusals import refusal
from gateway.quota_terms import Denied, Reserved
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import World, charge, world_of
from tests.leases.test_holdings import budget, is_admitted

NOW = datetime(2000, 1, 1, tzinfo=UTC)  # in the window


def refuse(world: World, replica, limit, amount: int):
    """What a caller is told that asks for too much."""
    name = world.reserve(replica, (limit,), amount)
    world.run(NS_PER_S // 50)
    denied = world.results[name]
    assert isinstance(denied, Denied)
    return refusal(denied, charge(amount), NOW)


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("pause_ns", [NS_PER_S // 20, NS_PER_S // 4, NS_PER_S])
def test_a_budget_serves_turn_by_turn_until_a_twentieth_is_left(num_replicas: int, pause_ns: int) -> None:
    world, limit, spent = world_of(num_replicas), budget(100), 0
    for number in range(12):
        replica = world.replicas[number % num_replicas]
        name = world.reserve(replica, (limit,), 15)
        world.run(pause_ns)
        if isinstance(world.results[name], Reserved):
            world.settle(name, 15)
            spent += 15

    assert spent == 90


def test_what_another_replica_keeps_is_asked_for_again_after_a_short_wait_and_had() -> None:
    world, limit = world_of(2), budget(1000)
    keeping, asking = world.replicas
    assert is_admitted(world, keeping, limit, 20)  # and up to 25 in store
    assert not is_admitted(world, asking, limit, 980)

    wait_s = refuse(world, asking, limit, 980).retry_after_s

    assert wait_s is not None
    assert wait_s <= RETURN_NS / NS_PER_S
    world.run(round(wait_s * NS_PER_S))
    assert is_admitted(world, asking, limit, 980)


def test_a_budget_that_is_spent_is_refused_for_good_after_one_wait() -> None:
    world, limit = world_of(2), budget(1000)
    first, second = world.replicas
    assert is_admitted(world, first, limit, 1000)
    waits_s = []
    for _ in range(8):
        waits_s.append(refuse(world, second, limit, 10).retry_after_s)
        world.run(RETURN_NS)

    assert waits_s == [RETURN_NS / NS_PER_S, *[None] * 7]
    assert refuse(world, second, limit, 1000 // BUDGET_END + 1).retry_after_s is None


@pytest.mark.parametrize(("num_replicas", "is_strict"), [(1, False), (2, True)])
def test_nothing_is_waited_for_where_nobody_keeps_anything(num_replicas: int, *, is_strict: bool) -> None:
    world, limit = world_of(num_replicas), budget(1000, strict=is_strict)
    assert is_admitted(world, world.replicas[0], limit, 1000)

    assert refuse(world, world.replicas[-1], limit, 10).retry_after_s is None
