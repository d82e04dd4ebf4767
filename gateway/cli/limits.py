"""Limits as people write them: `requests=60/1m`, `total_tokens=100000/1m:burst=20000:model=NAME`, `concurrency=4`.

Budgets, in cost units per calendar window: `month=1000000`, `day=50000:model=NAME`.
"""

import re
from datetime import timedelta

from evenflow.admin.v1.admin_pb2 import BudgetWindow, QuotaBudget, QuotaDimension, QuotaLimit
from gateway.cli.errors import UsageError

MAX_AMOUNT = 2**63 - 1
LIMIT = re.compile(r"(?P<dimension>[a-z_]+)=(?P<limit>\d+)(?:/(?P<period>\w+))?(?P<options>(?::[a-z]+=[^:]+)*)")
BUDGET = re.compile(r"(?P<window>[a-z]+)=(?P<limit>\d+)(?::model=(?P<model>[^:]+))?")
DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
MAX_DURATION = timedelta(days=1_000_000)
UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
PREFIX = "QUOTA_DIMENSION_"
DIMENSIONS = {name.removeprefix(PREFIX).lower(): value for name, value in QuotaDimension.items() if value}
WINDOW_PREFIX = "BUDGET_WINDOW_"
WINDOWS = {name.removeprefix(WINDOW_PREFIX).lower(): value for name, value in BudgetWindow.items() if value}
EXAMPLE = "write requests=60/1m, total_tokens=100000/1m:burst=20000 or concurrency=4"


def parse_duration(text: str) -> timedelta:
    """`90d`, `1m`, `250ms`, up to MAX_DURATION. Raises UsageError."""
    if match := DURATION.fullmatch(text):
        length = _product(match[1], UNITS[match[2]])
        if length is None:
            raise UsageError(f"{text!r} is too long a time: at most {MAX_DURATION.days}d")
        return length
    raise UsageError(f"{text!r} is no length of time: write a number and ms, s, m, h or d, such as 90d")


def _product(digits: str, unit: timedelta) -> timedelta | None:
    """None where it is longer than any that is meant; so many digits need not be read."""
    return None if len(digits) > 18 or (amount := int(digits)) > MAX_DURATION // unit else amount * unit


def parse_limit(text: str) -> QuotaLimit:
    """The limit that `text` describes; what it leaves open is the server's default. Raises UsageError."""
    match = LIMIT.fullmatch(text)
    if match is None:
        raise UsageError(f"{text!r} is no limit", EXAMPLE)
    if match["dimension"] not in DIMENSIONS:
        raise UsageError(f"there is no limit on {match['dimension']!r}: there are {', '.join(DIMENSIONS)}")
    limit = QuotaLimit(dimension=DIMENSIONS[match["dimension"]], limit=_amount(match["limit"]))
    if match["period"] is not None:
        limit.period.FromTimedelta(parse_duration(match["period"]))
    for option in match["options"].split(":")[1:]:
        name, _, value = option.partition("=")
        if name == "model":
            limit.model = value
        elif name == "burst" and value.isdigit():
            limit.burst = _amount(value)
        else:
            raise UsageError(f"{option!r} in {text!r} is neither burst=NUMBER nor model=NAME")
    return limit


def parse_budget(text: str) -> QuotaBudget:
    """The budget that `text` describes. Raises UsageError."""
    match = BUDGET.fullmatch(text)
    if match is None or match["window"] not in WINDOWS:
        raise UsageError(f"{text!r} is no budget", "write month=1000000, week=…, day=… or month=1000000:model=NAME")
    return QuotaBudget(window=WINDOWS[match["window"]], limit=_amount(match["limit"]), model=match["model"] or "")


def budget_text(budget: QuotaBudget) -> str:
    """The form that `parse_budget` reads."""
    text = f"{BudgetWindow.Name(budget.window).removeprefix(WINDOW_PREFIX).lower()}={budget.limit}"
    return text + (f":model={budget.model}" if budget.model else "")


def _amount(digits: str) -> int:
    if len(digits) > len(str(MAX_AMOUNT)) or int(digits) > MAX_AMOUNT:
        raise UsageError(f"{digits} is too large: a limit is at most {MAX_AMOUNT}")
    return int(digits)


def limit_text(limit: QuotaLimit) -> str:
    """The form that `parse_limit` reads."""
    text = f"{QuotaDimension.Name(limit.dimension).removeprefix(PREFIX).lower()}={limit.limit}"
    if limit.HasField("period"):
        text += f"/{duration_text(limit.period.ToTimedelta())}"
    if limit.burst:
        text += f":burst={limit.burst}"
    return text + (f":model={limit.model}" if limit.model else "")


def duration_text(length: timedelta) -> str:
    """`length` in the largest unit that leaves no fraction."""
    for unit in reversed(UNITS):
        if length and not length % UNITS[unit]:
            return f"{length // UNITS[unit]}{unit}"
    return f"{length // UNITS['ms']}ms"


def merge_limits(current: list[QuotaLimit], changed: list[QuotaLimit]) -> list[QuotaLimit]:
    """`current`, in which each of `changed` replaces the limit of its dimension and model, or is added."""
    merged = {(limit.dimension, limit.model): limit for limit in current}
    merged.update({(limit.dimension, limit.model): limit for limit in changed})
    return list(merged.values())
