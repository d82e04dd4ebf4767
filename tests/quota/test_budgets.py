"""Calendar windows in time zones, and what a budget does at their ends."""

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.quota import QuotaBook
from gateway.quota_budgets import window_at
from gateway.quota_terms import (
    BudgetWindow,
    Calendar,
    Charge,
    CostWeights,
    Denied,
    Dimension,
    Limit,
    Remaining,
    Reserved,
    Violation,
    ViolationKind,
)

NS_PER_S = 1_000_000_000
MONDAY, TUESDAY, WEDNESDAY = (BudgetWindow(Calendar.DAY, start, start + 100) for start in (0, 100, 200))


def unix_ns(text: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * NS_PER_S


def budget(window: BudgetWindow, amount: int = 100, model: str = "") -> Limit:
    return Limit("team", Dimension.BUDGET, amount, model=model, window=window, weights=CostWeights(1, 0, 2))


@pytest.mark.parametrize(
    ("calendar", "zone", "moment", "start", "end"),
    [
        (Calendar.DAY, "UTC", "2026-11-30T12:00", "2026-11-30", "2026-12-01"),
        (Calendar.WEEK, "UTC", "2026-11-29T23:59", "2026-11-23", "2026-11-30"),
        (Calendar.WEEK, "UTC", "2026-11-30T00:00", "2026-11-30", "2026-12-07"),
        (Calendar.MONTH, "UTC", "2026-12-31T23:59", "2026-12-01", "2027-01-01"),
        (Calendar.MONTH, "UTC", "2028-02-29T10:00", "2028-02-01", "2028-03-01"),
        (Calendar.DAY, "Asia/Kolkata", "2026-11-30T00:10", "2026-11-30", "2026-12-01"),
        # The day on which the clocks go forward has 23 hours, the one on which they go back 25.
        (Calendar.DAY, "Europe/Berlin", "2026-03-29T12:00", "2026-03-29", "2026-03-30"),
        (Calendar.DAY, "Europe/Berlin", "2026-10-25T02:30", "2026-10-25", "2026-10-26"),
    ],
)
def test_a_window_begins_and_ends_at_midnight_of_its_time_zone(calendar, zone, moment, start, end):
    expected = BudgetWindow(calendar, unix_ns(start, zone), unix_ns(end, zone))

    assert window_at(calendar, zone, unix_ns(moment, zone)) == expected


def test_a_day_without_midnight_begins_when_the_clocks_have_moved():
    # In Beirut the clocks of 2026-03-29 go from 00:00 to 01:00.
    window = window_at(Calendar.DAY, "Asia/Beirut", unix_ns("2026-03-29T12:00", "Asia/Beirut"))

    assert (window.end_ns - window.start_ns) // NS_PER_S == 23 * 3600


def test_an_unknown_time_zone_has_no_windows():
    with pytest.raises(ZoneInfoNotFoundError):
        window_at(Calendar.DAY, "Moon/Base", 0)


@given(
    calendar=st.sampled_from(list(Calendar)),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Sao_Paulo", "Asia/Kolkata", "Pacific/Apia"]),
    moment_s=st.integers(0, 4_000_000_000),
)
def test_windows_follow_each_other_without_a_gap(calendar, zone, moment_s):
    window = window_at(calendar, zone, moment_s * NS_PER_S)

    assert window.start_ns <= moment_s * NS_PER_S < window.end_ns
    assert window_at(calendar, zone, window.end_ns).start_ns == window.end_ns
    assert window_at(calendar, zone, window.start_ns) == window
    assert window_at(calendar, zone, window.end_ns - 1) == window


def test_a_budget_counts_cost_units_to_the_last_one():
    book = QuotaBook()
    assert isinstance(book.reserve("a", [budget(MONDAY)], Charge(1, 20, 40), 0), Reserved)
    denied = book.reserve("b", [budget(MONDAY)], Charge(1, 1, 0), 0)
    assert denied == Denied((Violation(budget(MONDAY), ViolationKind.BUDGET, None),))
    book.settle("a", Charge(1, 20, 30, cached_input_tokens=15), 0)
    assert book.remaining(budget(MONDAY), 0) == Remaining(35, 0)


def test_a_request_that_is_larger_than_the_budget_never_fits():
    book = QuotaBook()
    denied = book.reserve("a", [budget(MONDAY)], Charge(1, 1, 50), 0)
    assert denied == Denied((Violation(budget(MONDAY), ViolationKind.EXCEEDS_BURST, None),))


def test_the_next_window_begins_with_the_whole_budget():
    book = QuotaBook()
    book.reserve("a", [budget(MONDAY)], Charge(1, 0, 50), 0)
    assert isinstance(book.reserve("b", [budget(MONDAY)], Charge(1, 0, 1), 0), Denied)
    assert isinstance(book.reserve("b", [budget(TUESDAY)], Charge(1, 0, 50), 0), Reserved)


def test_a_request_is_charged_to_the_window_that_it_was_reserved_in():
    book = QuotaBook()
    book.reserve("late", [budget(MONDAY)], Charge(1, 0, 50), 0)
    book.reserve("b", [budget(TUESDAY)], Charge(1, 0, 10), 0)
    book.settle("late", Charge(1, 0, 5), 0)
    assert book.remaining(budget(TUESDAY), 0).amount == 80
    assert book.remaining(budget(MONDAY), 0).amount == 90


def test_what_is_left_of_a_window_that_is_long_over_cannot_be_used():
    book = QuotaBook()
    book.reserve("old", [budget(MONDAY)], Charge(1, 0, 1), 0)
    for name, window in (("b", TUESDAY), ("c", WEDNESDAY)):
        book.reserve(name, [budget(window)], Charge(1, 0, 10), 0)
    assert isinstance(book.extend("old", Charge(0, 0, 1), 0), Denied)
    book.settle("old", Charge(1, 0, 0), 0)
    assert book.remaining(budget(WEDNESDAY), 0).amount == 80


def test_a_changed_time_zone_opens_no_second_budget():
    book = QuotaBook()
    book.reserve("a", [budget(MONDAY)], Charge(1, 0, 40), 0)
    moved = budget(BudgetWindow(Calendar.DAY, -30, 70))
    assert book.remaining(moved, 0).amount == 20


def test_a_raised_budget_keeps_what_was_spent():
    book = QuotaBook()
    book.reserve("a", [budget(MONDAY)], Charge(1, 0, 50), 0)
    assert book.remaining(budget(MONDAY, 160), 0).amount == 60


def test_the_month_and_the_day_are_two_budgets():
    book = QuotaBook()
    month = budget(BudgetWindow(Calendar.MONTH, 0, 3000), 150)
    book.reserve("a", [budget(MONDAY), month], Charge(1, 0, 50), 0)
    assert isinstance(book.reserve("b", [budget(TUESDAY), month], Charge(1, 0, 30), 0), Denied)
    assert isinstance(book.reserve("b", [budget(TUESDAY), month], Charge(1, 0, 25), 0), Reserved)


def test_a_budget_without_a_window_is_refused():
    with pytest.raises(ValueError, match="calendar window"):
        Limit("team", Dimension.BUDGET, 5)
    with pytest.raises(ValueError, match="calendar window"):
        Limit("team", Dimension.REQUESTS, 5, 1, 1, window=MONDAY)


def test_cached_input_cannot_cost_more_than_other_input():
    with pytest.raises(ValueError, match="cached"):
        CostWeights(1, 2, 3)
    with pytest.raises(ValueError, match="negative"):
        CostWeights(1, 1, -1)
    with pytest.raises(ValueError, match="cached"):
        Charge(1, 3, 0, cached_input_tokens=4)
