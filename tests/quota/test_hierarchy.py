"""Several limits at once: all or none over the path key → team → organization, and concurrency."""

from gateway.quota import QuotaBook
from gateway.quota_terms import Charge, Denied, Dimension, Limit, Remaining, Reserved, Violation, ViolationKind

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS

KEY = Limit("key", Dimension.REQUESTS, 60, MINUTE_NS, 1)
TEAM = Limit("team", Dimension.TOTAL_TOKENS, 600, MINUTE_NS, 100)
ORGANIZATION = Limit("organization", Dimension.TOTAL_TOKENS, 60, MINUTE_NS, 100)
PATH = (KEY, TEAM, ORGANIZATION)


def slots(node: str, limit: int) -> Limit:
    return Limit(node, Dimension.CONCURRENCY, limit)


def test_denial_by_one_node_charges_none_of_them():
    book = QuotaBook()
    book.reserve("a", PATH, Charge(1, 10, 80), 0)
    before = [book.remaining(limit, 2 * SECOND_NS) for limit in PATH]
    denied = book.reserve("b", PATH, Charge(1, 10, 80), 2 * SECOND_NS)
    assert denied == Denied(
        (
            Violation(TEAM, ViolationKind.RATE, 6 * SECOND_NS),
            Violation(ORGANIZATION, ViolationKind.RATE, 78 * SECOND_NS),
        )
    )
    assert [book.remaining(limit, 2 * SECOND_NS) for limit in PATH] == before


def test_every_violated_node_is_reported_and_the_longest_wait_suffices_for_all():
    book = QuotaBook()
    book.reserve("a", PATH, Charge(1, 10, 90), 0)
    denied = book.reserve("b", PATH, Charge(1, 10, 20), 0)
    assert isinstance(denied, Denied)
    assert [violation.limit for violation in denied.violations] == [KEY, TEAM, ORGANIZATION]
    assert [violation.retry_after_ns for violation in denied.violations] == [SECOND_NS, 3 * SECOND_NS, 30 * SECOND_NS]
    assert isinstance(book.reserve("b", PATH, Charge(1, 10, 20), 30 * SECOND_NS - 1), Denied)
    assert isinstance(book.reserve("b", PATH, Charge(1, 10, 20), 30 * SECOND_NS), Reserved)


def test_request_over_one_burst_is_not_retryable_whatever_else_is_violated():
    book = QuotaBook()
    book.reserve("a", PATH, Charge(1, 10, 0), 0)
    denied = book.reserve("b", PATH, Charge(1, 10, 91), 0)
    assert isinstance(denied, Denied)
    assert [violation.kind for violation in denied.violations] == [
        ViolationKind.RATE,
        ViolationKind.EXCEEDS_BURST,
        ViolationKind.EXCEEDS_BURST,
    ]


def test_live_requests_take_slots_on_every_node_and_give_them_back():
    book, path = QuotaBook(), (slots("team", 2), slots("organization", 3))
    assert isinstance(book.reserve("a", path, Charge(), 0), Reserved)
    assert isinstance(book.reserve("b", path, Charge(), 0), Reserved)
    denied = book.reserve("c", path, Charge(), 0)
    assert denied == Denied((Violation(path[0], ViolationKind.CONCURRENCY, None),))
    assert book.remaining(path[1], 0) == Remaining(1, 0)
    book.settle("a", Charge(), 0)
    assert isinstance(book.reserve("c", path, Charge(), 0), Reserved)


def test_full_slots_leave_the_buckets_alone():
    book, team_slots = QuotaBook(), slots("team", 1)
    book.reserve("a", [team_slots], Charge(), 0)
    denied = book.reserve("b", [TEAM, team_slots], Charge(1, 10, 10), 0)
    assert isinstance(denied, Denied)
    assert book.remaining(TEAM, 0).amount == 100


def test_wait_of_a_used_up_rate_is_told_although_slots_are_full_too():
    book, team_slots = QuotaBook(), slots("team", 1)
    book.reserve("a", [KEY, team_slots], Charge(), 0)
    denied = book.reserve("b", [KEY, team_slots], Charge(), 0)
    assert isinstance(denied, Denied)
    assert {(violation.kind, violation.retry_after_ns) for violation in denied.violations} == {
        (ViolationKind.RATE, SECOND_NS),
        (ViolationKind.CONCURRENCY, None),
    }


def test_lowered_slots_end_no_live_request_and_admit_none_until_enough_have_ended():
    book = QuotaBook()
    for request in "abc":
        book.reserve(request, [slots("team", 3)], Charge(), 0)
    lowered = slots("team", 1)
    assert book.remaining(lowered, 0).amount == 0
    book.settle("a", Charge(), 0)
    book.settle("b", Charge(), 0)
    assert isinstance(book.reserve("d", [lowered], Charge(), 0), Denied)
    book.settle("c", Charge(), 0)
    assert isinstance(book.reserve("d", [lowered], Charge(), 0), Reserved)


def test_tenant_without_limits_is_always_admitted():
    book = QuotaBook()
    assert isinstance(book.reserve("a", (), Charge(1, 10**9, 10**9), 0), Reserved)
    assert book.settle("a", Charge(), 0)
