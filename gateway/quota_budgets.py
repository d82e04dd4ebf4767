"""Budgets: cost units per calendar day, week or month of a time zone, and when those begin and end.

A request is charged to the window that it was reserved in, also if it ends in the next one.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from gateway.quota_terms import BucketKey, BudgetWindow, Calendar, Limit, Remaining, Violation, ViolationKind

NS_PER_S = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


MAX_WINDOWS = 2
"""Windows that are kept of a budget: the newest, and the one before it, which requests that began in it still use."""


@dataclass(slots=True)
class _Spending:
    """What a window has been charged. Written by Budgets only."""

    window: BudgetWindow
    amount: int


class Budgets:
    """The spending of one process. As many entries as there are budgets, so nothing is forgotten."""

    def __init__(self) -> None:
        self._spending: dict[BucketKey, list[_Spending]] = {}

    def find_violation(self, limit: Limit, amount: int) -> Violation | None:
        """Whether `amount` is more than what is left of the window; one that is larger than all of it never fits."""
        if amount > limit.limit:
            return Violation(limit, ViolationKind.EXCEEDS_BURST, None)
        is_spent = self._is_long_over(limit) or self._spent(limit) + amount > limit.limit
        return Violation(limit, ViolationKind.BUDGET, None) if is_spent else None

    def add(self, limit: Limit, amount: int) -> None:
        """`amount` is charged, or with a minus given back, whatever the limit says.

        Of no consequence for a window that is long over.
        """
        assert limit.window is not None, "a budget has a window"
        windows = self._spending.setdefault(limit.key, [])
        for spending in windows:
            if spending.window == limit.window:
                spending.amount += amount
                return
        windows.append(_Spending(limit.window, amount))
        windows.sort(key=lambda spending: spending.window.start_ns)
        del windows[:-MAX_WINDOWS]

    def remaining(self, limit: Limit) -> Remaining:
        """What is left of the window."""
        return Remaining(max(0, limit.limit - self._spent(limit)), 0)

    def _is_long_over(self, limit: Limit) -> bool:
        """Whether the state of the limit's window is gone already."""
        assert limit.window is not None, "a budget has a window"
        windows = self._spending.get(limit.key, [])
        return len(windows) == MAX_WINDOWS and limit.window.end_ns <= windows[0].window.start_ns

    def _spent(self, limit: Limit) -> int:
        """In windows that have a moment in common with the limit's: one that was moved with its time zone counts."""
        assert limit.window is not None, "a budget has a window"
        window = limit.window
        return sum(
            spending.amount
            for spending in self._spending.get(limit.key, ())
            if spending.window.start_ns < window.end_ns and window.start_ns < spending.window.end_ns
        )


def window_at(calendar: Calendar, time_zone: str, unix_ns: int) -> BudgetWindow:
    """The window of `time_zone` that holds the moment. Raises ZoneInfoNotFoundError for an unknown zone."""
    found = _window(calendar, time_zone, unix_ns // (NS_PER_S * 60))
    assert found.start_ns <= unix_ns < found.end_ns, "the minute lies in the window"
    return found


@lru_cache(maxsize=1024)
def _window(calendar: Calendar, time_zone: str, unix_minute: int) -> BudgetWindow:
    """Zones change at whole minutes."""
    zone = ZoneInfo(time_zone)
    day = datetime.fromtimestamp(unix_minute * 60, zone).date()
    match calendar:
        case Calendar.DAY:
            first, after = day, day + timedelta(days=1)
        case Calendar.WEEK:
            first = day - timedelta(days=day.weekday())
            after = first + timedelta(days=7)
        case Calendar.MONTH:
            first = day.replace(day=1)
            after = (first + timedelta(days=31)).replace(day=1)
    return BudgetWindow(calendar, _midnight(first.toordinal(), zone), _midnight(after.toordinal(), zone))


def _midnight(ordinal: int, zone: tzinfo) -> int:
    """The first moment of a day, in Unix nanoseconds; where the clocks skip midnight, the moment that they skip to."""
    local = datetime.fromordinal(ordinal).replace(tzinfo=zone)
    return (local.astimezone(UTC) - EPOCH) // timedelta(microseconds=1) * 1000
