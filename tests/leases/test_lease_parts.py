"""What the parts of a replica's quota say on their own: reports, asks, what is due and what is urgent."""

from gateway.leases.claims import Claim, Outage, Part, Request
from gateway.leases.decisions import decide_alone
from gateway.leases.holdings import Holding
from gateway.leases.rates import RateLease
from gateway.leases.shares import Shares
from gateway.leases.terms import LEASE_NS, LeaseCounters, Outbox
from gateway.quota_terms import Limit, Mode
from gateway.store.quota_buckets import Grant
from tests.leases.centre import NS_PER_S
from tests.leases.replicas import charge, tokens, world_of
from tests.leases.test_holdings import budget, slots


def lease_of(limit: Limit, held: int) -> RateLease:
    """A lease that has just been granted so much."""
    lease = RateLease(limit.row_key, limit, LeaseCounters())
    lease.ask(0, is_claimed=False, is_last=False)
    lease.receive(Grant(held, 0, 0), 0, 1, 0)
    return lease


def request_of(*limits: Limit, amount: int) -> tuple[Request, Shares]:
    shares = Shares()
    parts = tuple(Part(shares.adopted(limit), limit, amount) for limit in limits)
    return Request("r", limits, charge(amount), parts), shares


def test_what_is_owed_counts_in_what_is_left_whether_or_not_it_is_on_its_way() -> None:
    world, limit = world_of(1), tokens(1, 1000)
    (replica,) = world.replicas
    names = [world.reserve(replica, (limit,), 10) for _ in range(2)]
    world.run(NS_PER_S)
    world.settle(names[0], 110)
    world.send(replica)
    world.settle(names[1], 60)

    left = replica.book.remaining(limit, world.clock(replica))

    assert left.amount <= 1000 - 20 - 100 - 50 + 2
    assert left.reset_ns >= (20 + 100 + 50 - 2) * NS_PER_S


def test_a_debt_that_was_told_in_vain_is_as_old_as_its_first_part() -> None:
    told, untold = Outbox(), Outbox()
    told.waiting.debt, told.waiting.debt_since_ns = 5, 10
    untold.waiting.refund = 1
    for outbox in (told, untold):
        outbox.send()
        outbox.waiting.debt, outbox.waiting.debt_since_ns = 3, 20
        outbox.restore()

    assert (told.waiting.debt, told.waiting.debt_since_ns) == (8, 10)
    assert (untold.waiting.debt, untold.waiting.debt_since_ns) == (3, 20)


def test_a_turn_tells_of_what_is_set_aside_for_a_claim_as_held() -> None:
    lease = lease_of(tokens(100, 1000), 10)
    lease.hold(4, 1)

    ask = lease.ask(1, is_claimed=False, is_last=False)

    assert ask.kept == lease.available(1) + 4


def test_what_a_changed_limit_sends_back_is_counted_as_returned() -> None:
    counters, limit = LeaseCounters(), tokens(100, 1000)
    lease = RateLease(limit.row_key, limit, counters)
    lease.ask(0, is_claimed=False, is_last=False)
    lease.receive(Grant(10, 0, 0), 0, 1, 0)

    lease.adopt(tokens(50, 1000))

    assert (counters.returned, lease.outbox.waiting.returned) == (10, 5)


def test_what_was_returned_counts_only_while_the_store_counts_it_as_held() -> None:
    early, late, lost = (lease_of(tokens(100, 1000), 10) for _ in range(3))
    for lease in (early, late):
        lease.adopt(tokens(50, 1000))

    asks = [
        early.ask(LEASE_NS - 1, is_claimed=False, is_last=False),
        late.ask(LEASE_NS, is_claimed=False, is_last=False),
        lost.ask(LEASE_NS // 2, is_claimed=False, is_last=True),
    ]
    lost.outbox.restore()

    assert [ask.refund for ask in asks] == [5, 0, 10]
    assert not lost.outbox


def test_slots_that_nobody_wants_are_due_for_no_turn() -> None:
    assert not Holding(slots(12).row_key, slots(12)).is_due(0)


def test_a_small_claim_on_a_budget_is_no_reason_to_store_up_much_of_it() -> None:
    limit = budget(100_000)
    holding = Holding(limit.row_key, limit)
    holding.note_claim(1, 10 * NS_PER_S)

    assert holding.ask(10 * NS_PER_S, is_claimed=True, is_last=False).want <= 10


def test_without_the_store_shadows_that_need_it_are_left_out_and_the_binding_limits_are_not() -> None:
    binding = tokens(100, 1000, max_overdraft=10_000)
    shadow = tokens(5, 100, model="shadow", mode=Mode.SHADOW)
    request, _ = request_of(binding, shadow, amount=1)

    granted = decide_alone(request, Outage(0, 1), 5 * NS_PER_S)

    assert granted.charged == (binding,)


def test_a_claim_on_a_slot_waits_for_nobody_whatever_else_it_is_on() -> None:
    request, _ = request_of(tokens(100, 1000), slots(4), amount=1)

    assert Claim(request, (), request.parts, ()).is_urgent
    assert not Claim(request, (), request.parts[:1], ()).is_urgent


def test_the_next_turn_is_made_for_whoever_waits_shortest() -> None:
    world, limits = world_of(1), [tokens(100, 1000, model=name) for name in "ab"]
    (replica,) = world.replicas
    world.reserve(replica, (limits[0],), 1000)
    world.run(NS_PER_S // 500 * 3)
    asked_ns = replica.book.next_turn_ns(world.clock(replica))
    world.run(NS_PER_S // 10)
    world.reserve(replica, (limits[0],), 5)
    world.run(NS_PER_S // 500)
    now_ns = world.clock(replica)

    world.reserve(replica, (limits[0],), 6)
    later_ns = replica.book.next_turn_ns(now_ns)
    world.reserve(replica, (limits[1],), 1)

    assert asked_ns is None
    assert replica.book.next_turn_ns(now_ns) == min(now_ns, later_ns if later_ns is not None else now_ns)


def test_what_is_more_than_twice_as_much_as_is_worth_keeping_goes_back() -> None:
    enough, too_much = lease_of(tokens(100, 1000), 7), lease_of(tokens(100, 1000), 9)
    for lease in (enough, too_much):
        lease.take(1, 1)  # one in the last second: three are worth keeping

    assert not enough.is_due(1)
    assert too_much.is_due(1)
