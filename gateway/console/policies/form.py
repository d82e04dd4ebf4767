"""A quota policy as the fields of a form, there and back.

Fields are `weight`, `mode` and so on; of parts that there can be many of, `limits-0-amount` with the row's number. A
row whose fields are empty is no part, and neither is one whose `remove` is ticked. A burst that is the default for its
limit is left empty, so that it follows the limit when that is changed. Pure.
"""

import re
from collections import abc
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.form_values import Fields, FormReader
from gateway.durations import duration_text
from gateway.quota_terms import default_burst

LIMITS, BUDGETS, COSTS = "limits", "budgets", "costs"
GROUPS = {
    LIMITS: ("dimension", "amount", "period", "burst", "model"),
    BUDGETS: ("window", "amount", "model"),
    COSTS: ("input", "cached", "output", "model"),
}
DEFAULT_PERIOD = timedelta(minutes=1)


class Enum(Protocol):
    """An enum of the protocol, as the generated modules have them."""

    def items(self) -> abc.Sequence[tuple[str, Any]]: ...  # Any: each enum's own values


def words(enum: Enum, prefix: str) -> dict[str, Any]:
    """Its values by their names without the prefix, but for the one that says nothing."""
    return {name.removeprefix(prefix): value for name, value in enum.items() if value}


DIMENSIONS = words(pb.QuotaDimension, "QUOTA_DIMENSION_")
WINDOWS = words(pb.BudgetWindow, "BUDGET_WINDOW_")
MODES = words(pb.QuotaMode, "QUOTA_MODE_")
RESERVATIONS = words(pb.ReservationMode, "RESERVATION_MODE_")
STORE_LOSSES = words(pb.StoreLossAction, "STORE_LOSS_ACTION_")


@dataclass(frozen=True, slots=True)
class ReadPolicy:
    """What a form asks for. `errors` by field; `places`: which field a path of the API's message was read from."""

    policy: pb.QuotaPolicy
    errors: abc.Mapping[str, str]
    places: abc.Mapping[str, str]

    def field_of(self, path: str) -> str:
        """The field that the service's refusal of `path` belongs beside; empty: none of them."""
        path = re.sub(r"^(entries\[\d+\]\.)?(quota_policy\.)?", "", path)
        while path and path not in self.places:
            path = path.rpartition(".")[0]
        return self.places.get(path, "")


def read_policy(form: Fields, name: str, *, has_weight: bool) -> ReadPolicy:
    """The policy `name` as the form has it."""
    reader = FormReader(form)
    places = {each: each for each in ("mode", "strict", "on_store_loss", "max_overdraft", "reservation", "time_zone")}
    policy = pb.QuotaPolicy(
        name=name,
        mode=reader.choice("mode", MODES, pb.QUOTA_MODE_ENFORCE),
        on_store_loss=reader.choice("on_store_loss", STORE_LOSSES, pb.STORE_LOSS_ACTION_SERVE_STALE),
        reservation=reader.choice("reservation", RESERVATIONS, pb.RESERVATION_MODE_UNSPECIFIED),
        max_overdraft=reader.whole("max_overdraft", 0),
        strict=reader.flag("strict"),
        time_zone=reader.text("time_zone") or "UTC",
        etag=reader.text("etag"),
    )
    if has_weight:
        policy.weight, places["weight"] = reader.number("weight"), "weight"
    parts: tuple[tuple[str, str, Read], ...] = (
        (LIMITS, "limits", _read_limit),
        (BUDGETS, "budgets", _read_budget),
        (COSTS, "cost_weights", _read_cost),
    )
    for group, field, read in parts:
        for index, row in enumerate(_kept_rows(reader, group)):
            read(policy, reader, f"{group}-{row}")
            places |= _row_places(group, f"{field}[{index}]", f"{group}-{row}")
    return ReadPolicy(policy, reader.errors, places)


def form_of(policy: pb.QuotaPolicy) -> dict[str, str]:
    """The fields that show `policy`."""
    form = {
        "mode": pb.QuotaMode.Name(policy.mode).removeprefix("QUOTA_MODE_"),
        "on_store_loss": pb.StoreLossAction.Name(policy.on_store_loss).removeprefix("STORE_LOSS_ACTION_"),
        "max_overdraft": str(policy.max_overdraft or ""),
        "time_zone": policy.time_zone,
        "etag": policy.etag,
        "weight": number_text(policy.weight),
    }
    if policy.reservation:
        form["reservation"] = pb.ReservationMode.Name(policy.reservation).removeprefix("RESERVATION_MODE_")
    if policy.strict:
        form["strict"] = "on"
    for index, limit in enumerate(policy.limits):
        form |= {f"{LIMITS}-{index}-{key}": text for key, text in _limit_fields(limit).items()}
    for index, budget in enumerate(policy.budgets):
        window = pb.BudgetWindow.Name(budget.window).removeprefix("BUDGET_WINDOW_")
        fields = {"window": window, "amount": str(budget.limit), "model": budget.model}
        form |= {f"{BUDGETS}-{index}-{key}": text for key, text in fields.items()}
    for index, cost in enumerate(policy.cost_weights):
        prices = (cost.input_token, cost.cached_input_token, cost.output_token)
        fields = dict(zip(GROUPS[COSTS], (*map(str, prices), cost.model), strict=True))
        form |= {f"{COSTS}-{index}-{key}": text for key, text in fields.items()}
    return form


def rows_of(form: Fields, group: str, num_more: int) -> list[int]:
    """The rows to show: those of the form, and empty ones behind them."""
    rows = FormReader(form).rows(group)
    first = rows[-1] + 1 if rows else 0
    return [*rows, *range(first, first + num_more)]


def number_text(value: float) -> str:
    """`2`, `0.5`."""
    return f"{value:.12g}"


Read = abc.Callable[[pb.QuotaPolicy, FormReader, str], None]


def _kept_rows(reader: FormReader, group: str) -> list[int]:
    """Those that say something and are not to be removed."""
    return [
        row
        for row in reader.rows(group)
        if not reader.flag(f"{group}-{row}-remove")
        and any(reader.text(f"{group}-{row}-{field}") for field in GROUPS[group])
    ]


def _read_limit(policy: pb.QuotaPolicy, reader: FormReader, row: str) -> None:
    dimension = reader.choice(f"{row}-dimension", DIMENSIONS)
    limit = policy.limits.add(
        dimension=dimension,
        limit=reader.whole(f"{row}-amount"),
        burst=reader.whole(f"{row}-burst", 0),
        model=reader.text(f"{row}-model"),
    )
    period = reader.length(f"{row}-period")
    if period is not None:
        limit.period.FromTimedelta(period)
    elif dimension != pb.QUOTA_DIMENSION_CONCURRENCY:
        limit.period.FromTimedelta(DEFAULT_PERIOD)


def _read_budget(policy: pb.QuotaPolicy, reader: FormReader, row: str) -> None:
    policy.budgets.add(
        window=reader.choice(f"{row}-window", WINDOWS),
        limit=reader.whole(f"{row}-amount"),
        model=reader.text(f"{row}-model"),
    )


def _read_cost(policy: pb.QuotaPolicy, reader: FormReader, row: str) -> None:
    policy.cost_weights.add(
        input_token=reader.whole(f"{row}-input"),
        cached_input_token=reader.whole(f"{row}-cached"),
        output_token=reader.whole(f"{row}-output"),
        model=reader.text(f"{row}-model"),
    )


def _limit_fields(limit: pb.QuotaLimit) -> dict[str, str]:
    is_default = limit.burst == default_burst(limit.limit)
    return {
        "dimension": pb.QuotaDimension.Name(limit.dimension).removeprefix("QUOTA_DIMENSION_"),
        "amount": str(limit.limit),
        "period": duration_text(limit.period.ToTimedelta()) if limit.HasField("period") else "",
        "burst": "" if is_default or not limit.burst else str(limit.burst),
        "model": limit.model,
    }


def _row_places(group: str, path: str, row: str) -> dict[str, str]:
    """Where refusals of one row's message belong; of the row as a whole, beside its first field."""
    names = {"amount": "limit", "input": "input_token", "cached": "cached_input_token", "output": "output_token"}
    places = {f"{path}.{names.get(field, field)}": f"{row}-{field}" for field in GROUPS[group]}
    return {path: f"{row}-{GROUPS[group][0]}", **places}
