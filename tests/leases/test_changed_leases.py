"""Numbers that change while something runs under them: the shared row keeps the new ones, whoever ends when."""

from dataclasses import replace

from gateway.leases.claims import Claim
from gateway.quota_terms import Charge, Reserved
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import tokens, world_of


def test_a_request_that_outlives_its_limit_does_not_bring_the_old_numbers_back() -> None:
    world, old = world_of(2), tokens(100, 1000)
    here, there = world.replicas
    name = world.reserve(here, (old,), 500)
    world.run(20 * NS_PER_S)
    new = tokens(10, 1000)
    world.reserve(there, (new,), 1)
    here.book.adopt((new,))
    world.run(20 * NS_PER_S)
    world.settle(name, 100)
    world.run(NS_PER_S)
    (row,) = world.centre.rows.values()
    assert row.ticks_per_ns == 10


def test_what_is_live_is_not_forgotten_and_what_has_ended_is() -> None:
    world, limit = world_of(1), tokens(100, 1000)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 500)
    world.run(20 * NS_PER_S)
    assert replica.book.num_shares == 1
    world.settle(name, 500)
    world.run(20 * NS_PER_S)
    assert replica.book.num_shares == 0


def test_numbers_are_adopted_only_where_something_is_known_of_the_limit() -> None:
    world = world_of(1)
    world.replicas[0].book.adopt((tokens(100, 1000),))
    assert world.replicas[0].book.num_shares == 0


def test_an_extension_has_to_pass_the_limits_of_now() -> None:
    world, old, new = world_of(1), tokens(100, 1000), tokens(100, 10)
    (replica,) = world.replicas
    name = world.reserve(replica, (old,), 500)
    world.run(NS_PER_S)
    assert isinstance(world.results[name], Reserved)
    verdict = replica.book.extend(name, Charge(0, input_tokens=11), world.clock(replica), (new,))
    assert not isinstance(verdict, Claim | Reserved)
    assert verdict.violations[0].limit is new


def test_a_known_wait_is_the_same_under_numbers_that_have_just_changed() -> None:
    world, old = world_of(1), tokens(100, 1000)
    (replica,) = world.replicas
    world.reserve(replica, (old,), 1000)
    world.run(NS_PER_S // 20)
    reset_ns = replica.book.remaining(old, world.clock(replica)).reset_ns
    assert reset_ns > 9 * NS_PER_S
    assert abs(replica.book.remaining(tokens(1000, 1000), world.clock(replica)).reset_ns - reset_ns) < NS_PER_S // 100


def test_a_turn_that_is_answered_after_a_change_counts_as_much_time_as_it_was_asked_for() -> None:
    world, old = world_of(1), tokens(1000, 1000)
    (replica,) = world.replicas
    world.reserve(replica, (old,), 900)
    world.send(replica)
    world.take(replica)
    replica.book.adopt((replace(old, limit=10),))
    world.receive(replica)
    left = replica.book.remaining(replace(old, limit=10), world.clock(replica))
    assert left.reset_ns <= NS_PER_S
