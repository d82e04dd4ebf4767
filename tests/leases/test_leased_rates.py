"""Several replicas under one rate, in virtual time: the promises of one bucket, kept together."""

import pytest

from gateway.leases.terms import LEASE_NS
from gateway.quota_terms import Charge, Denied, Mode, ReservationEndedError, Reserved, ViolationKind
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import flood, tokens, world_of


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("num_replicas", [1, 4])
def test_in_the_long_run_exactly_the_rate_is_admitted(num_replicas: int, is_strict: bool) -> None:
    world, limit = world_of(num_replicas), tokens(100, 200, strict=is_strict)

    flood(world, limit, amount=10, seconds=120)

    assert world.num_admitted() == pytest.approx(200 + 120 * 100, abs=10 * num_replicas + 40)
    assert world.overshoot(limit) <= (0 if is_strict else 100 * LEASE_NS / NS_PER_S)


def test_what_requests_do_not_use_is_admitted_again() -> None:
    world, limit = world_of(2), tokens(100, 200)

    flood(world, limit, amount=50, seconds=120, used=5)

    net = sum(amount for _, amount in world.charges)
    assert net == pytest.approx(200 + 120 * 100, rel=0.01)


def test_what_is_left_while_requests_are_few_is_asked_for_rarely() -> None:
    world, limit = world_of(1), tokens(10_000, 100_000)
    before = world.num_turns

    flood(world, limit, amount=10, seconds=20)

    turns = world.num_turns - before
    assert all(isinstance(result, Reserved) for result in world.results.values())
    assert len(world.results) == 1000
    assert turns <= 20 * 5 + 10


def test_a_denied_client_that_waits_as_told_is_admitted() -> None:
    world, limit = world_of(2), tokens(100, 200)
    first, second = world.replicas
    world.reserve(first, (limit,), 200)
    world.run(NS_PER_S // 10)

    name = world.reserve(second, (limit,), 50)
    world.run(NS_PER_S // 10)
    denied = world.results[name]

    assert isinstance(denied, Denied)
    (violation,) = denied.violations
    assert violation.kind is ViolationKind.RATE
    assert violation.retry_after_ns is not None
    world.run(violation.retry_after_ns)
    name = world.reserve(second, (limit,), 50)
    world.run(NS_PER_S // 10)
    assert isinstance(world.results[name], Reserved)


def test_a_denial_names_every_limit_that_refuses_and_charges_none() -> None:
    world = world_of(1)
    (replica,) = world.replicas
    key, team, organization = tokens(1, 10), tokens(1, 20, model="team"), tokens(1, 100, model="organization")
    world.reserve(replica, (key, team), 8)
    world.run(NS_PER_S // 10)
    world.reserve(replica, (team,), 10)
    world.run(NS_PER_S // 10)

    name = world.reserve(replica, (key, team, organization), 9)
    world.run(NS_PER_S // 10)

    denied = world.results[name]
    assert isinstance(denied, Denied)
    assert [violation.limit for violation in denied.violations] == [key, team]
    name = world.reserve(replica, (organization,), 100)
    world.run(NS_PER_S // 10)
    assert isinstance(world.results[name], Reserved)


@pytest.mark.parametrize("is_strict", [False, True])
def test_what_is_larger_than_the_burst_is_refused_for_ever_and_without_a_turn(*, is_strict: bool) -> None:
    world, limit = world_of(1), tokens(100, 200, strict=is_strict)

    denied = world.results[world.reserve(world.replicas[0], (limit,), 201)]

    assert isinstance(denied, Denied)
    assert [violation.kind for violation in denied.violations] == [ViolationKind.EXCEEDS_BURST]


def test_strict_limits_hold_nothing_in_store() -> None:
    world, limit = world_of(2), tokens(100, 200, strict=True)
    world.reserve(world.replicas[0], (limit,), 10)
    world.run(NS_PER_S)

    name = world.reserve(world.replicas[1], (limit,), 200)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)
    (row,) = world.centre.rows.values()
    assert not row.holders


def test_what_a_request_used_beyond_its_reservation_is_charged() -> None:
    world, limit = world_of(1), tokens(1, 1000, strict=True)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 10)
    world.run(NS_PER_S // 10)
    world.settle(name, 50)
    world.run(NS_PER_S // 2)

    names = [world.reserve(replica, (limit,), amount) for amount in (952, 950)]
    world.run(NS_PER_S // 10)

    assert [isinstance(world.results[name], Reserved) for name in names] == [False, True]


def test_a_changed_limit_converts_what_is_held_and_owed() -> None:
    world, old, new = world_of(1), tokens(10, 1000), tokens(100, 1000)
    (replica,) = world.replicas
    name = world.reserve(replica, (old,), 500)
    world.run(NS_PER_S // 10)
    world.reserve(replica, (new,), 1)
    world.settle(name, 0)
    world.run(NS_PER_S)
    world.run(60 * NS_PER_S)

    name = world.reserve(replica, (new,), 1000)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)


def test_an_extension_is_charged_like_a_reservation_and_settled_with_it() -> None:
    world, limit = world_of(1), tokens(1, 100)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 40)
    world.run(NS_PER_S // 10)

    extended = world.extend(name, 50)
    world.run(NS_PER_S // 10)
    refused = world.extend(name, 20)
    world.run(NS_PER_S // 5)

    assert world.results[extended] == Reserved(name, Charge(1, input_tokens=90))
    assert isinstance(world.results[refused], Denied)
    world.settle(name, 10)
    world.run(NS_PER_S // 2)
    name = world.reserve(replica, (limit,), 90)
    world.run(NS_PER_S // 10)
    assert isinstance(world.results[name], Reserved)


def test_an_extension_of_what_ended_meanwhile_gives_back_what_it_gets() -> None:
    world, limit = world_of(1), tokens(1, 100)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 10)
    world.run(NS_PER_S // 10)
    extended = world.extend(name, 80)
    world.settle(name, 0)
    world.run(NS_PER_S)

    assert isinstance(world.results[extended], ReservationEndedError)
    name = world.reserve(replica, (limit,), 100)
    world.run(NS_PER_S // 10)
    assert isinstance(world.results[name], Reserved)


def test_a_shadow_refuses_nobody_and_is_told() -> None:
    world = world_of(1)
    (replica,) = world.replicas
    binding, shadow = tokens(1, 1000), tokens(1, 100, model="m", mode=Mode.SHADOW)
    names = []
    for _ in range(3):
        names.append(world.reserve(replica, (binding, shadow), 60))
        world.run(NS_PER_S // 5)
    results = [world.results[name] for name in names]

    assert all(isinstance(result, Reserved) for result in results)
    assert [len(result.shadow_violations) for result in results] == [0, 1, 1]
    replica.is_cut = True
    world.run(3 * NS_PER_S)
    emergency = tokens(1, 1000, max_overdraft=10_000)
    world.now_ns += 100 * NS_PER_S
    name = world.reserve(replica, (emergency, shadow), 10)
    assert isinstance(world.results[name], Reserved)


def test_what_a_refused_request_held_of_other_limits_is_free_again() -> None:
    world, key, team = world_of(1), tokens(1, 1000), tokens(1, 50, model="team")
    (replica,) = world.replicas
    world.reserve(replica, (key, team), 50)
    world.run(NS_PER_S // 4)

    refused = []
    for _ in range(30):
        refused.append(world.reserve(replica, (key, team), 20))
        world.run(NS_PER_S // 4)
    name = world.reserve(replica, (key,), 940)
    world.run(NS_PER_S // 10)

    assert all(isinstance(world.results[name], Denied) for name in refused)
    assert isinstance(world.results[name], Reserved)
