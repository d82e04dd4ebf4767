"""Outages, crashes, lost answers and callers that go away, in virtual time: nothing is lost, nothing counts twice."""

import pytest

from gateway.errors import StoreUnavailableError
from gateway.leases.claims import Claim
from gateway.leases.terms import LEASE_NS
from gateway.quota_terms import Reserved
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import World, charge, flood, tokens, world_of


def test_strict_limits_are_refused_as_unavailable_at_once_while_the_store_is_away() -> None:
    world, limit = world_of(1), tokens(100, 200, strict=True, max_overdraft=1000)
    (replica,) = world.replicas
    replica.is_cut = True
    world.run(3 * NS_PER_S)

    name = world.reserve(replica, (limit,), 1)

    assert isinstance(world.results[name], StoreUnavailableError)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lease_is_spent_in_an_outage_and_then_the_emergency_share_up_to_its_end() -> None:
    world, limit = world_of(4), tokens(100, 400, max_overdraft=1000)
    flood(world, limit, amount=1, seconds=3)
    for replica in world.replicas[:2]:
        replica.is_cut = True
    began_ns, before = world.now_ns, world.num_admitted()
    cut = world.replicas[:2]
    admitted = 0
    for second in range(60):
        for _ in range(50):
            names = [world.reserve(replica, (limit,), 1) for replica in cut]
            world.run(NS_PER_S // 50)
            admitted += sum(isinstance(world.results.get(name), Reserved) for name in names)
        if second == 15:
            assert world.overshoot(limit) <= 100 * 2 + 2 * 25 * 16

    outage_s = (world.now_ns - began_ns) / NS_PER_S
    allowed = min(2 * 25 * outage_s, 1000 * 2 / 4)
    assert world.overshoot(limit) <= 200 + allowed
    assert world.num_admitted() > before + 400
    assert isinstance(list(world.results.values())[-1], StoreUnavailableError)
    for replica in cut:
        replica.is_cut = False
    world.run(2 * NS_PER_S)
    (row,) = world.centre.rows.values()
    charged = (row.tat - row.clock_ns * row.ticks_per_ns) / limit.period_ns
    assert charged <= limit.burst


def test_a_replica_born_in_an_outage_has_no_share() -> None:
    world, limit = World(), tokens(100, 200, max_overdraft=1000)
    replica = world.add_replica()
    replica.is_cut = True

    name = world.reserve(replica, (limit,), 1)
    world.run(3 * NS_PER_S)

    assert isinstance(world.results[name], StoreUnavailableError)


def test_tenants_that_fail_closed_are_served_for_five_seconds_without_the_store() -> None:
    world, limit = world_of(1), tokens(1000, 2000, max_overdraft=100_000, fails_closed=True)
    (replica,) = world.replicas
    world.reserve(replica, (limit,), 1)
    world.run(NS_PER_S // 10)
    replica.is_cut = True
    began_ns = world.now_ns
    last_ok_ns, first_refused_ns = 0, 0
    lenient = tokens(1000, 2000, max_overdraft=100_000, model="lenient")
    while world.now_ns < began_ns + 8 * NS_PER_S:
        name = world.reserve(replica, (limit, lenient), 1)
        world.run(NS_PER_S // 10)
        if isinstance(world.results.get(name), Reserved):
            last_ok_ns = world.now_ns
        elif isinstance(world.results.get(name), StoreUnavailableError) and not first_refused_ns:
            first_refused_ns = world.now_ns

    assert 4 * NS_PER_S < last_ok_ns - began_ns <= 5.2 * NS_PER_S
    assert first_refused_ns > last_ok_ns


def test_emergency_spending_is_charged_to_the_shared_bucket_afterwards() -> None:
    world, limit = world_of(1), tokens(10, 1000, max_overdraft=100_000)
    (replica,) = world.replicas
    world.reserve(replica, (limit,), 1000)
    world.run(NS_PER_S // 10)
    replica.is_cut = True
    world.run(14 * NS_PER_S)
    spent = world.reserve(replica, (limit,), 100)
    replica.is_cut = False
    world.run(NS_PER_S)

    names = [world.reserve(replica, (limit,), amount) for amount in (60, 40)]
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[spent], Reserved)
    assert replica.book.counters.overdrawn == 100
    assert [isinstance(world.results[name], Reserved) for name in names] == [False, True]  # 151 came back, 100 are gone


def test_a_crash_costs_what_the_replica_held_for_the_life_of_a_lease() -> None:
    world, limit = world_of(2), tokens(100, 1000)
    flood(world, limit, amount=5, seconds=2)
    world.crash(world.replicas[0])
    world.run(30 * NS_PER_S)

    name = world.reserve(world.replicas[0], (limit,), 1000)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)


def test_the_last_turn_gives_everything_back() -> None:
    world, limit = world_of(2), tokens(1, 1000)
    leaving, staying = world.replicas
    world.reserve(leaving, (limit,), 10)
    world.run(NS_PER_S // 10)
    assert world.centre.rows
    batch = leaving.book.plan(world.clock(leaving), is_last=True)
    assert batch is not None
    leaving.book.answer(world.centre.exchange(batch, world.now_ns + world.database_offset_ns), world.clock(leaving))
    world.replicas.remove(leaving)

    name = world.reserve(staying, (limit,), 990)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)
    assert len(world.centre.beats) == 1


def test_a_lease_is_not_spent_after_its_life() -> None:
    world, limit = world_of(1), tokens(1, 1000)
    (replica,) = world.replicas
    world.reserve(replica, (limit,), 10)
    world.run(NS_PER_S // 10)
    world.now_ns += LEASE_NS

    world.reserve(replica, (limit,), 1)

    assert len(world.waiting) == 1
    assert replica.book.counters.expired > 0


@pytest.mark.parametrize("was_taken", [False, True])
def test_refunds_count_once_when_an_answer_is_lost(*, was_taken: bool) -> None:
    world, limit = world_of(1), tokens(1, 100, strict=True)
    (replica,) = world.replicas
    name = world.reserve(replica, (limit,), 100)
    world.run(NS_PER_S // 10)
    world.settle(name, 20)
    world.send(replica)
    if was_taken:
        world.take(replica)
    world.lose(replica)
    world.run(NS_PER_S)

    names = [world.reserve(replica, (limit,), amount) for amount in (100, 78, 10)]
    world.run(NS_PER_S // 5)

    assert [isinstance(world.results[name], Reserved) for name in names] == [False, True, False]


def test_a_turn_that_is_taken_after_it_was_given_up_has_no_effect() -> None:
    world, limit = world_of(1), tokens(1, 100)
    (replica,) = world.replicas
    world.reserve(replica, (limit,), 30)
    world.send(replica)
    message = replica.message
    assert message is not None
    world.lose(replica)
    world.run(NS_PER_S)
    world.reserve(replica, (limit,), 50)
    world.run(NS_PER_S // 10)

    late = world.centre.exchange(message.batch, world.now_ns + world.database_offset_ns)

    assert not late.is_new
    name = world.reserve(replica, (limit,), 50)
    world.run(NS_PER_S // 10)
    assert isinstance(world.results[name], Reserved)


@pytest.mark.parametrize("stage", ["waiting", "sent", "taken", "decided"])
def test_a_claim_that_nobody_waits_for_any_more_gives_back_what_it_gets(stage: str) -> None:
    world, limit = world_of(1), tokens(1, 100)
    (replica,) = world.replicas
    claim = replica.book.reserve("r", (limit,), charge(100), world.clock(replica))
    assert isinstance(claim, Claim)
    world.waiting[id(claim)] = (claim, "r", 100)
    if stage != "waiting":
        world.send(replica)
    if stage in ("taken", "decided"):
        world.take(replica)
    if stage == "decided":
        world.receive(replica)
    replica.book.abandon(claim, world.clock(replica))
    world.reserved.pop("r", None)
    if stage in ("sent", "taken"):
        if stage == "sent":
            world.take(replica)
        world.receive(replica)
    world.run(NS_PER_S)

    name = world.reserve(replica, (limit,), 100)
    world.run(NS_PER_S // 10)

    assert isinstance(world.results[name], Reserved)
    assert replica.book.num_reservations == 1
