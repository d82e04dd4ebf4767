"""What a replica may spend alone: L/R from the moment that the store was missed, and its part of the overdraft."""

import pytest

from gateway.errors import StoreUnavailableError
from gateway.leases.emergency import Emergency
from gateway.quota_terms import Denied, Limit, Reserved
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import World, tokens


def spend(emergency: Emergency, limit: Limit, amount: int, at_s: float, num_replicas: int = 4) -> int | None:
    """How long the share lets `amount` wait at `at_s` seconds after the store was missed; None if it gives it."""
    began_ns, now_ns = 7 * NS_PER_S, round((7 + at_s) * NS_PER_S)
    violation = emergency.find_violation(limit, amount, began_ns, num_replicas, now_ns)
    if violation is None:
        emergency.take(limit, amount, num_replicas, now_ns)
        return None
    assert violation.limit is limit
    return violation.retry_after_ns


def test_it_begins_empty_and_refills_with_a_share_of_the_rate() -> None:
    emergency, limit = Emergency(), tokens(100, 1000, max_overdraft=10_000)

    assert spend(emergency, limit, 25, at_s=0) == NS_PER_S
    assert spend(emergency, limit, 25, at_s=1) is None
    assert spend(emergency, limit, 1, at_s=1) == NS_PER_S // 25
    assert spend(emergency, limit, 50, at_s=3) is None


def test_it_ends_with_its_part_of_the_overdraft() -> None:
    emergency, limit = Emergency(), tokens(100, 1000, max_overdraft=200)

    assert spend(emergency, limit, 30, at_s=10) is None
    assert spend(emergency, limit, 20, at_s=10) is None
    with pytest.raises(StoreUnavailableError):
        spend(emergency, limit, 1, at_s=10)


def test_the_next_outage_begins_anew() -> None:
    emergency, limit = Emergency(), tokens(100, 1000, max_overdraft=200)
    assert spend(emergency, limit, 50, at_s=10) is None
    emergency.end()

    assert spend(emergency, limit, 50, at_s=1) == NS_PER_S
    assert spend(emergency, limit, 50, at_s=2) is None


def test_after_an_outage_for_everybody_service_goes_on_at_the_rate() -> None:
    """All of it was spent under the rate, so nobody has to wait for it to be worked off."""
    world, limit = World(), tokens(100, 500, max_overdraft=100_000)
    for _ in range(4):
        world.add_replica()
    world.run(3 * NS_PER_S)
    flood(world, limit, seconds=10)
    for replica in world.replicas:
        replica.is_cut = True
    flood(world, limit, seconds=60)
    for replica in world.replicas:
        replica.is_cut = False
    flood(world, limit, seconds=5)
    before = world.num_admitted()
    flood(world, limit, seconds=20)

    assert world.num_admitted() - before == pytest.approx(2000, abs=100)
    assert world.overshoot(limit) <= 200 + 500  # what was left at the beginning, charged when all came back


def flood(world: World, limit: Limit, seconds: int) -> None:
    """Every replica asks for 10 tokens each 100 ms: four times the rate."""
    for _ in range(seconds * 10):
        for replica in world.replicas:
            world.reserve(replica, (limit,), 10)
        world.run(NS_PER_S // 10)


def test_what_is_not_spent_in_time_is_lost_and_refills() -> None:
    world, limit = World(), tokens(1, 1000)
    replica = world.add_replica()
    world.run(NS_PER_S)
    world.reserve(replica, (limit,), 10)
    world.run(NS_PER_S // 10)
    world.now_ns += 3 * NS_PER_S  # the process stood still
    world.run(NS_PER_S)

    name = world.reserve(replica, (limit,), 990)
    world.run(NS_PER_S // 10)
    refused = world.results[name]
    assert isinstance(refused, Denied)
    lost = replica.book.counters.expired
    assert 0 < lost <= 30  # what ten tokens in a moment made worth keeping
    world.run(lost * NS_PER_S)
    name = world.reserve(replica, (limit,), 990)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)
