"""Lengths of time: as people write them (`250ms`, `90s`, `1m`, `12h`, `90d`), and which differences matter to them."""

import re
from datetime import timedelta

DURATION = re.compile(r"(\d+)(ms|s|m|h|d)", re.ASCII)
MAX_DURATION = timedelta(days=1_000_000)
MAX_DIGITS = 18  # so many more need not be read
UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
SMALLEST_CHANGE = 0.05  # of a wait that is worth a word
SMALLEST_CHANGE_S = 0.01


def parse_duration(text: str) -> timedelta:
    """The length that `text` says, up to MAX_DURATION. Raises ValueError, whose text is for whoever wrote it."""
    match = DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no length of time: write a number and ms, s, m, h or d, such as 90d")
    digits, unit = match[1], UNITS[match[2]]
    if len(digits) > MAX_DIGITS or (amount := int(digits)) > MAX_DURATION // unit:
        raise ValueError(f"{text!r} is too long a time: at most {MAX_DURATION.days}d")
    return amount * unit


def duration_text(length: timedelta) -> str:
    """`length` in the largest unit that leaves no fraction."""
    for unit in reversed(UNITS):
        if length and not length % UNITS[unit]:
            return f"{length // UNITS[unit]}{unit}"
    return f"{length // UNITS['ms']}ms"


def differ_notably(before_s: float, after_s: float) -> bool:
    """Whether two waits differ by enough to be worth a word."""
    return abs(after_s - before_s) > max(SMALLEST_CHANGE_S, SMALLEST_CHANGE * before_s)
