"""Limits as people write them: `requests=60/1m`, `total_tokens=100000/1m:burst=20000:model=NAME`, `concurrency=4`.

Budgets, in cost units per calendar window: `month=1000000`, `day=50000:model=NAME`.
"""

import re
from datetime import timedelta

from evenflow.admin.v1.admin_pb2 import BudgetWindow, QuotaBudget, QuotaDimension, QuotaLimit
from gateway import durations
from gateway.cli.errors import UsageError
from gateway.durations import duration_text

MAX_AMOUNT = 2**63 - 1
LIMIT = re.compile(r"(?P<dimension>[a-z_]+)=(?P<limit>\d+)(?:/(?P<period>\w+))?(?P<options>(?::[a-z]+=[^:]+)*)")
BUDGET = re.compile(r"(?P<window>[a-z]+)=(?P<limit>\d+)(?::model=(?P<model>[^:]+))?")
PREFIX = "QUOTA_DIMENSION_"
DIMENSIONS = {name.removeprefix(PREFIX).lower(): value for name, value in QuotaDimension.items() if value}
WINDOW_PREFIX = "BUDGET_WINDOW_"
WINDOWS = {name.removeprefix(WINDOW_PREFIX).lower(): value for name, value in BudgetWindow.items() if value}
EXAMPLE = "write requests=60/1m, total_tokens=100000/1m:burst=20000 or concurrency=4"


def parse_duration(text: str) -> timedelta:
    """`90d`, `1m`, `250ms`. Raises UsageError."""
    try:
        return durations.parse_duration(text)
    except ValueError as error:
        raise UsageError(str(error)) from error


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


def merge_limits(current: list[QuotaLimit], changed: list[QuotaLimit]) -> list[QuotaLimit]:
    """`current`, in which each of `changed` replaces the limit of its dimension and model, or is added."""
    merged = {(limit.dimension, limit.model): limit for limit in current}
    merged.update({(limit.dimension, limit.model): limit for limit in changed})
    return list(merged.values())
