"""One limit: what is admitted, what is refused and for how long, what settlement gives back."""

import pytest

from gateway.quota import QuotaBook
from gateway.quota_terms import (
    Charge,
    Denied,
    Dimension,
    Limit,
    Remaining,
    Reserved,
    Violation,
    ViolationKind,
    default_burst,
)

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS


def requests(limit: int, burst: int, period_ns: int = MINUTE_NS, node: str = "team") -> Limit:
    return Limit(node, Dimension.REQUESTS, limit, period_ns, burst)


def tokens(limit: int, burst: int, dimension: Dimension = Dimension.TOTAL_TOKENS) -> Limit:
    return Limit("team", dimension, limit, MINUTE_NS, burst)


def test_burst_is_admitted_at_once_and_the_next_waits_for_exactly_one_interval():
    book, limit = QuotaBook(), requests(60, burst=3)
    for n in range(3):
        assert isinstance(book.reserve(f"r{n}", [limit], Charge(), 0), Reserved)
    assert book.reserve("r3", [limit], Charge(), 0) == Denied((Violation(limit, ViolationKind.RATE, SECOND_NS),))
    assert isinstance(book.reserve("r3", [limit], Charge(), SECOND_NS - 1), Denied)
    assert isinstance(book.reserve("r3", [limit], Charge(), SECOND_NS), Reserved)


def test_limit_that_does_not_divide_its_period_still_admits_its_burst():
    book, limit = QuotaBook(), requests(7, burst=1)
    assert isinstance(book.reserve("a", [limit], Charge(), 0), Reserved)
    wait_ns = -(-MINUTE_NS // 7)
    assert book.reserve("b", [limit], Charge(), 0) == Denied((Violation(limit, ViolationKind.RATE, wait_ns),))
    assert isinstance(book.reserve("b", [limit], Charge(), wait_ns), Reserved)


def test_request_of_exactly_the_burst_is_admitted_and_one_token_more_never_is():
    book, limit = QuotaBook(), tokens(7_001, burst=997)
    too_large = book.reserve("a", [limit], Charge(1, 900, 98), 0)
    assert too_large == Denied((Violation(limit, ViolationKind.EXCEEDS_BURST, None),))
    assert isinstance(book.reserve("b", [limit], Charge(1, 900, 97), 0), Reserved)


def test_remaining_and_reset_tell_what_the_next_decision_will_be():
    book, limit = QuotaBook(), tokens(600, burst=100)
    assert book.remaining(limit, 0) == Remaining(100, 0)
    book.reserve("a", [limit], Charge(1, 30, 31), 0)
    assert book.remaining(limit, 0) == Remaining(39, 6_100_000_000)
    assert isinstance(book.reserve("b", [limit], Charge(1, 40, 0), 0), Denied)
    assert isinstance(book.reserve("b", [limit], Charge(1, 39, 0), 0), Reserved)
    assert book.remaining(limit, 100 * MINUTE_NS) == Remaining(100, 0)


@pytest.mark.parametrize(
    ("dimension", "used"),
    [
        (Dimension.REQUESTS, 2),
        (Dimension.INPUT_TOKENS, 30),
        (Dimension.OUTPUT_TOKENS, 5),
        (Dimension.TOTAL_TOKENS, 35),
        (Dimension.CONCURRENCY, 1),
    ],
)
def test_each_dimension_counts_its_own_part_of_a_charge(dimension: Dimension, used: int):
    book, limit = QuotaBook(), tokens(100, 100, dimension)
    charge = Charge(requests=2, input_tokens=30, output_tokens=5)
    book.reserve("a", [limit], charge, 0)
    assert book.remaining(limit, 0).amount == 100 - used
    assert limit.amount(charge) == used


def test_settlement_refunds_what_was_reserved_and_not_used():
    book, limit = QuotaBook(), tokens(600, burst=100)
    book.reserve("a", [limit], Charge(1, 20, 80), 0)
    assert book.settle("a", Charge(1, 20, 10), 0)
    assert book.remaining(limit, 0).amount == 70


def test_release_gives_everything_back():
    book, limit = QuotaBook(), tokens(601, burst=100)
    book.reserve("a", [limit], Charge(1, 20, 80), 5)
    assert book.release("a", 5)
    assert book.remaining(limit, 5) == Remaining(100, 0)
    assert book.num_reservations == 0


def test_second_settlement_and_unknown_reservations_change_nothing():
    book, limit = QuotaBook(), tokens(600, burst=100)
    slots = Limit("team", Dimension.CONCURRENCY, 1)
    book.reserve("a", [limit, slots], Charge(1, 20, 80), 0)
    book.settle("a", Charge(1, 20, 30), 0)
    book.reserve("b", [slots], Charge(), 0)
    assert not book.settle("a", Charge(1, 0, 0), 0)
    assert not book.release("a", 0)
    assert not book.release("never seen", 0)
    assert book.remaining(limit, 0).amount == 50
    assert book.remaining(slots, 0).amount == 0


def test_refund_into_a_full_bucket_mints_no_credit():
    book, limit = QuotaBook(), tokens(600, burst=100)
    book.reserve("a", [limit], Charge(1, 0, 100), 0)
    book.settle("a", Charge(1, 0, 0), 10 * MINUTE_NS)
    assert book.remaining(limit, 10 * MINUTE_NS).amount == 100
    assert isinstance(book.reserve("b", [limit], Charge(1, 0, 101), 10 * MINUTE_NS), Denied)


def test_use_beyond_the_reservation_is_owed_even_beyond_the_burst():
    book, limit = QuotaBook(), tokens(600, burst=100)
    book.reserve("a", [limit], Charge(1, 0, 60), 0)
    book.settle("a", Charge(1, 0, 260), 0)
    assert book.remaining(limit, 0) == Remaining(0, 26 * SECOND_NS)
    denied = book.reserve("b", [limit], Charge(1, 1, 0), 0)
    assert denied == Denied((Violation(limit, ViolationKind.RATE, 16_100_000_000),))


def test_use_beyond_the_reservation_is_owed_although_the_bucket_was_full_again():
    book, limit = QuotaBook(), tokens(600, burst=100)
    book.reserve("a", [limit], Charge(1, 0, 60), 0)
    book.settle("a", Charge(1, 0, 110), MINUTE_NS)
    assert book.remaining(limit, MINUTE_NS).amount == 50


def test_raised_limit_keeps_the_bucket_and_drains_it_faster():
    book = QuotaBook()
    book.reserve("a", [tokens(600, burst=100)], Charge(1, 0, 100), 0)
    assert book.remaining(tokens(1200, burst=200), 0) == Remaining(0, 10 * SECOND_NS)
    assert book.remaining(tokens(1200, burst=200), 5 * SECOND_NS) == Remaining(100, 5 * SECOND_NS)


def test_lowered_limit_does_not_forget_what_was_used():
    book = QuotaBook()
    book.reserve("a", [tokens(600, burst=100)], Charge(1, 0, 100), 0)
    assert book.remaining(tokens(60, burst=10), 0) == Remaining(0, 10 * SECOND_NS)


def test_reservation_under_an_older_limit_is_refunded_at_that_limit():
    book, old, new = QuotaBook(), tokens(600, burst=100), tokens(60, burst=100)
    book.reserve("a", [old], Charge(1, 0, 100), 0)
    book.reserve("b", [new], Charge(1, 0, 90), 0)
    book.release("a", 0)
    assert book.remaining(new, 0) == Remaining(10, 90 * SECOND_NS)


def test_limits_of_different_models_have_their_own_buckets():
    book = QuotaBook()
    small = Limit("team", Dimension.REQUESTS, 60, MINUTE_NS, 1, model="small")
    large = Limit("team", Dimension.REQUESTS, 60, MINUTE_NS, 1, model="large")
    assert isinstance(book.reserve("a", [small], Charge(), 0), Reserved)
    assert isinstance(book.reserve("b", [large], Charge(), 0), Reserved)
    assert isinstance(book.reserve("c", [small], Charge(), 0), Denied)


def test_buckets_that_are_full_again_are_forgotten():
    book = QuotaBook()
    for n in range(10_000):
        now_ns = n * SECOND_NS  # each bucket is full again after a second
        book.reserve(f"r{n}", [requests(60, burst=1, node=f"key {n}")], Charge(), now_ns)
        book.settle(f"r{n}", Charge(), now_ns)
        assert book.num_buckets <= 4
    assert book.num_reservations == 0


def test_settlement_of_exactly_what_was_reserved_revives_no_forgotten_bucket():
    book = QuotaBook()
    book.reserve("a", [requests(60, burst=1, node="key a")], Charge(), 0)
    book.reserve("b", [requests(60, burst=1, node="key b")], Charge(), MINUTE_NS)
    assert book.num_buckets == 1
    book.settle("a", Charge(), MINUTE_NS)
    assert book.num_buckets == 1


def test_busy_buckets_survive_the_sweep():
    book, limit = QuotaBook(), tokens(60, burst=100)
    book.reserve("busy", [limit], Charge(1, 0, 100), 0)
    for n in range(50):
        book.reserve(f"r{n}", [requests(60, burst=1, node=f"key {n}")], Charge(), 0)
    assert book.remaining(limit, 0).amount == 0
    assert book.num_buckets == 51


def test_live_id_cannot_be_reserved_twice():
    book, limit = QuotaBook(), requests(60, burst=3)
    book.reserve("a", [limit], Charge(), 0)
    with pytest.raises(ValueError, match="is live"):
        book.reserve("a", [limit], Charge(), 0)


def test_two_limits_on_one_bucket_are_refused():
    with pytest.raises(ValueError, match="share"):
        QuotaBook().reserve("a", [requests(60, burst=3), requests(30, burst=3)], Charge(), 0)


@pytest.mark.parametrize(("limit", "period_ns", "burst"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_limit_without_sense_is_refused(limit: int, period_ns: int, burst: int):
    with pytest.raises(ValueError, match="at least 1"):
        Limit("team", Dimension.REQUESTS, limit, period_ns, burst)


def test_limit_on_a_rate_needs_a_period_and_a_burst():
    with pytest.raises(ValueError, match="at least 1"):
        Limit("team", Dimension.REQUESTS, 60)
    with pytest.raises(ValueError, match="at least 1"):
        Limit("team", Dimension.CONCURRENCY, 0)


def test_negative_charge_is_refused():
    with pytest.raises(ValueError, match="negative"):
        Charge(1, -1, 0)


def test_default_burst_is_a_sixth_of_the_limit_and_at_least_one():
    assert [default_burst(limit) for limit in (1, 6, 60, 100_000)] == [1, 1, 10, 16_666]
