"""Scales of charts: round steps for values and for times, and how figures read.

Times are Unix seconds and are shown in UTC, whose days and hours are the same for everybody who looks at one incident.
Pure.
"""

import math
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime

MAX_TIME_TICKS = 5  # so many hours and minutes fit side by side on a telephone
NUM_VALUE_STEPS = 4
MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30),
    *(minutes * MINUTE_S for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * HOUR_S for hours in (1, 2, 3, 6, 12)),
    *(days * DAY_S for days in (1, 2, 7, 14, 28, 91, 364)),
)
PREFIXES = ("", "k", "M", "G", "T", "P")


@dataclass(frozen=True, slots=True)
class Unit:
    """What values are of: its name beside a title, how one reads on an axis, and how in a table, with nothing lost."""

    name: str
    short: abc.Callable[[float], str]
    exact: abc.Callable[[float], str]


def amount_text(value: float) -> str:
    """`0.25`, `12`, `3.4k`, `1.2M`: three digits."""
    size, prefix = abs(value), 0
    while round(size, 2 if size < 10 else 1 if size < 100 else 0) >= 1000 and prefix < len(PREFIXES) - 1:
        size, prefix = size / 1000, prefix + 1
    sign = "-" if value < 0 else ""
    digits = 2 if size < 10 else 1 if size < 100 else 0
    return f"{sign}{_trimmed(size, digits)}{PREFIXES[prefix]}"


def exact_amount(value: float) -> str:
    """`1,234,567` or, of what is no whole number, four digits behind the point at most."""
    return f"{int(value):,}" if value == int(value) else _trimmed(value, 4)


def seconds_text(value: float) -> str:
    """`0`, `250 ms`, `1.5 s`, `12 min`, `3 h`."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.9995:
        return f"{_trimmed(value * 1000, 1 if size < 0.01 else 0)} ms"
    if size < 2 * MINUTE_S:
        return f"{_trimmed(value, 2 if size < 10 else 1)} s"
    return f"{_trimmed(value / MINUTE_S, 1)} min" if size < 2 * HOUR_S else f"{_trimmed(value / HOUR_S, 1)} h"


def share_text(value: float) -> str:
    """A part of one: `12.5 %`."""
    return f"{_trimmed(value * 100, 1)} %"


def amounts_of(name: str) -> Unit:
    """Of things that are counted: tokens, requests, tokens per second."""
    return Unit(name, amount_text, exact_amount)


SECONDS = Unit("", seconds_text, seconds_text)
SHARES = Unit("", share_text, share_text)


def value_ticks(lowest: float, highest: float, *, are_whole: bool) -> tuple[float, ...]:
    """Round values from below `lowest` to above `highest`, evenly spaced; always two at least, 0 among them.

    Whole values get no ticks between whole numbers.
    """
    low, high = min(0.0, lowest), max(0.0, highest)
    step = _round_step((high - low) / NUM_VALUE_STEPS) if high > low else 1.0
    if are_whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(index * step for index in range(first, max(last, first + 1) + 1))


def time_ticks(first_s: float, last_s: float) -> tuple[float, ...]:
    """Round moments within [first_s, last_s]."""
    span_s = last_s - first_s
    step_s = next((step for step in TIME_STEPS_S if span_s / step <= MAX_TIME_TICKS), TIME_STEPS_S[-1])
    return tuple(index * step_s for index in range(math.ceil(first_s / step_s), math.floor(last_s / step_s) + 1))


def time_text(moment_s: float, span_s: float) -> str:
    """How a moment reads beside others of the same span: the day, the minute or the second."""
    moment = datetime.fromtimestamp(moment_s, UTC)
    if span_s > MAX_TIME_TICKS * DAY_S / 2 or (moment_s % DAY_S == 0 and span_s > HOUR_S):
        return f"{moment.day} {moment:%b}"
    return f"{moment:%H:%M:%S}" if span_s <= MAX_TIME_TICKS * 30 else f"{moment:%H:%M}"


def moment_text(moment_s: float) -> str:
    """`2026-11-30 12:05:07`, in UTC."""
    return f"{datetime.fromtimestamp(moment_s, UTC):%Y-%m-%d %H:%M:%S}"


def _round_step(rough: float) -> float:
    """The next of 1, 2, 5, 10 times a power of ten from `rough` > 0 up."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))


def _trimmed(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
