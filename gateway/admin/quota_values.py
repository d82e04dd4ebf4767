"""The values of a quota policy: what is accepted, and what a limit that leaves something open means."""

from collections import abc
from dataclasses import replace
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import invalid
from gateway.admin.quota_budgets import (
    MAX_AMOUNT,
    parse_budgets,
    parse_costs,
    parse_model,
    parse_reservation,
    parse_time_zone,
)
from gateway.quota_terms import Mode, default_burst
from gateway.store.enums import Dimension, StoreLossAction
from gateway.store.models import MAX_WEIGHT, MIN_WEIGHT
from gateway.store.records import QuotaLimit, QuotaPolicySettings

FIELD = "quota_policy"
WRITABLE = frozenset(
    {
        *("mode", "weight", "limits", "on_store_loss", "max_overdraft", "strict"),
        *("reservation", "time_zone", "budgets", "cost_weights"),
    }
)
DEFAULT_PERIOD_MS = 60_000
MAX_PERIOD = timedelta(days=366)

PREFIX = "QUOTA_DIMENSION_"
MODE_PREFIX = "QUOTA_MODE_"
DIMENSION_BY_PB = {pb.QuotaDimension.Value(PREFIX + dimension): dimension for dimension in Dimension}
MODE_BY_PB = {pb.QuotaMode.Value(MODE_PREFIX + mode): mode for mode in Mode}


def edited(current: QuotaPolicySettings, message: pb.QuotaPolicy, fields: frozenset[str]) -> QuotaPolicySettings:
    """`current` with `fields` taken from `message`. Raises InvalidFieldError."""
    settings = _with_parts(current, message, fields)
    if "weight" in fields:
        settings = replace(settings, weight=_parse_weight(message.weight, has_weight=current.weight is not None))
    if "on_store_loss" in fields:
        settings = replace(settings, on_store_loss=_parse_store_loss(message.on_store_loss))
    if "mode" in fields:
        settings = replace(settings, mode=_parse_mode(message.mode))
    if "strict" in fields:
        settings = replace(settings, strict=message.strict)
    if "max_overdraft" in fields:
        settings = replace(settings, max_overdraft=_parse_overdraft(message.max_overdraft))
    if "reservation" in fields:
        settings = replace(settings, reservation=parse_reservation(message.reservation))
    return settings


def _with_parts(current: QuotaPolicySettings, message: pb.QuotaPolicy, fields: frozenset[str]) -> QuotaPolicySettings:
    settings = current
    if "limits" in fields:
        settings = replace(settings, limits=_parse_limits(message.limits))
    if "time_zone" in fields:
        settings = replace(settings, time_zone=parse_time_zone(message.time_zone))
    if "budgets" in fields:
        settings = replace(settings, budgets=parse_budgets(message.budgets))
    if "cost_weights" in fields:
        settings = replace(settings, costs=parse_costs(message.cost_weights))
    return settings


def limit_to_pb(limit: QuotaLimit) -> pb.QuotaLimit:
    message = pb.QuotaLimit(
        dimension=pb.QuotaDimension.Value(PREFIX + limit.dimension),
        model=limit.model,
        limit=limit.amount,
        burst=limit.burst or 0,
    )
    if limit.period_ms is not None:
        message.period.FromMilliseconds(limit.period_ms)
    return message


def _parse_mode(value: pb.QuotaMode.ValueType) -> Mode:
    if value == pb.QUOTA_MODE_UNSPECIFIED:
        return Mode.ENFORCE
    if value not in MODE_BY_PB:
        raise invalid(f"{FIELD}.mode", "must be ENFORCE, SHADOW or BORROW")
    return MODE_BY_PB[value]


def _parse_overdraft(amount: int) -> int:
    if not 0 <= amount <= MAX_AMOUNT:
        raise invalid(f"{FIELD}.max_overdraft", f"must be from 0 to {MAX_AMOUNT}")
    return amount


def _parse_weight(weight: float, *, has_weight: bool) -> float:
    field = f"{FIELD}.weight"
    if not has_weight:
        raise invalid(field, "keys share nothing among themselves: set the weight of the team or organization")
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise invalid(field, f"must be from {MIN_WEIGHT} to {MAX_WEIGHT}")
    return weight


def _parse_store_loss(value: pb.StoreLossAction.ValueType) -> StoreLossAction:
    if value == pb.STORE_LOSS_ACTION_UNSPECIFIED:
        return StoreLossAction.SERVE_STALE
    if value not in pb.StoreLossAction.values():
        raise invalid(f"{FIELD}.on_store_loss", "must be SERVE_STALE or FAIL_CLOSED")
    return StoreLossAction(pb.StoreLossAction.Name(value).removeprefix("STORE_LOSS_ACTION_"))


def _parse_limits(messages: abc.Iterable[pb.QuotaLimit]) -> tuple[QuotaLimit, ...]:
    limits: dict[tuple[Dimension, str], QuotaLimit] = {}
    for index, message in enumerate(messages):
        field = f"{FIELD}.limits[{index}]"
        limit = _parse_limit(message, field)
        if (limit.dimension, limit.model) in limits:
            raise invalid(field, "an earlier limit has the same dimension and model")
        limits[limit.dimension, limit.model] = limit
    # The store's order, in which a policy that was not changed compares equal.
    return tuple(sorted(limits.values(), key=lambda limit: (limit.dimension, limit.model)))


def _parse_limit(message: pb.QuotaLimit, field: str) -> QuotaLimit:
    dimension = DIMENSION_BY_PB.get(message.dimension)
    if dimension is None:
        names = ", ".join(map(pb.QuotaDimension.Name, DIMENSION_BY_PB))
        raise invalid(f"{field}.dimension", f"must be one of those that are counted: {names}")
    if not 1 <= message.limit <= MAX_AMOUNT:
        raise invalid(f"{field}.limit", f"must be from 1 to {MAX_AMOUNT}")
    parse_model(message.model, f"{field}.model")
    if dimension is Dimension.CONCURRENCY:
        if message.HasField("period") or message.burst:
            raise invalid(field, "a limit on concurrency has neither period nor burst")
        return QuotaLimit(dimension, message.limit, None, None, message.model)
    if not 0 <= message.burst <= MAX_AMOUNT:
        raise invalid(f"{field}.burst", f"must be from 1 to {MAX_AMOUNT}")
    burst = message.burst or default_burst(message.limit)
    period_ms = _parse_period(message.period, f"{field}.period") if message.HasField("period") else DEFAULT_PERIOD_MS
    return QuotaLimit(dimension, message.limit, period_ms, burst, message.model)


def _parse_period(period: Duration, field: str) -> int:
    """In milliseconds, of which it must be a whole number."""
    if period.nanos % 1_000_000 or not 0 < period.ToMilliseconds() <= MAX_PERIOD / timedelta(milliseconds=1):
        raise invalid(field, f"must be from one millisecond to {MAX_PERIOD.days} days, in whole milliseconds")
    return period.ToMilliseconds()
