"""The values of a quota policy: what is accepted, and what a limit that leaves something open means.

A setting that this release would store and not act on is refused, so that nobody relies on it.
"""

from collections import abc
from dataclasses import replace
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import quota
from gateway.admin.names import invalid
from gateway.store.enums import Dimension, StoreLossAction
from gateway.store.models import MAX_WEIGHT
from gateway.store.records import QuotaLimit, QuotaPolicySettings

FIELD = "quota_policy"
WRITABLE = frozenset({"mode", "weight", "limits", "on_store_loss", "max_overdraft", "strict"})
DEFAULT_PERIOD_MS = 60_000
MAX_PERIOD = timedelta(days=366)
MAX_AMOUNT = 10**15
MAX_MODEL_CHARS = 200

PREFIX = "QUOTA_DIMENSION_"
# Only what the quota arithmetic counts.
DIMENSION_BY_PB = {pb.QuotaDimension.Value(PREFIX + name): Dimension(name) for name in quota.Dimension}


def edited(current: QuotaPolicySettings, message: pb.QuotaPolicy, fields: frozenset[str]) -> QuotaPolicySettings:
    """`current` with `fields` taken from `message`. Raises InvalidFieldError."""
    _require_available(message, fields)
    settings = current
    if "weight" in fields:
        settings = replace(settings, weight=_parse_weight(message.weight, has_weight=current.weight is not None))
    if "limits" in fields:
        settings = replace(settings, limits=_parse_limits(message.limits))
    if "on_store_loss" in fields:
        settings = replace(settings, on_store_loss=_parse_store_loss(message.on_store_loss))
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


def _require_available(message: pb.QuotaPolicy, fields: frozenset[str]) -> None:
    unavailable = {
        "mode": message.mode not in (pb.QUOTA_MODE_UNSPECIFIED, pb.QUOTA_MODE_ENFORCE),
        "max_overdraft": message.max_overdraft != 0,
        "strict": message.strict,
    }
    for field in sorted(fields & unavailable.keys()):
        if unavailable[field]:
            raise invalid(f"{FIELD}.{field}", "this release has only the default")


def _parse_weight(weight: float, *, has_weight: bool) -> float:
    field = f"{FIELD}.weight"
    if not has_weight:
        raise invalid(field, "keys share nothing among themselves: set the weight of the team or organization")
    if not 0 < weight <= MAX_WEIGHT:
        raise invalid(field, f"must be greater than 0 and at most {MAX_WEIGHT}")
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
        raise invalid(f"{field}.dimension", f"must be one of those that this release counts: {names}")
    if not 1 <= message.limit <= MAX_AMOUNT:
        raise invalid(f"{field}.limit", f"must be from 1 to {MAX_AMOUNT}")
    if len(message.model) > MAX_MODEL_CHARS or not message.model.isprintable():
        raise invalid(f"{field}.model", f"must be a model's name of at most {MAX_MODEL_CHARS} characters")
    if dimension is Dimension.CONCURRENCY:
        if message.HasField("period") or message.burst:
            raise invalid(field, "a limit on concurrency has neither period nor burst")
        return QuotaLimit(dimension, message.limit, None, None, message.model)
    if not 0 <= message.burst <= MAX_AMOUNT:
        raise invalid(f"{field}.burst", f"must be from 1 to {MAX_AMOUNT}")
    burst = message.burst or quota.default_burst(message.limit)
    period_ms = _parse_period(message.period, f"{field}.period") if message.HasField("period") else DEFAULT_PERIOD_MS
    return QuotaLimit(dimension, message.limit, period_ms, burst, message.model)


def _parse_period(period: Duration, field: str) -> int:
    """In milliseconds, of which it must be a whole number."""
    if period.nanos % 1_000_000 or not 0 < period.ToMilliseconds() <= MAX_PERIOD / timedelta(milliseconds=1):
        raise invalid(field, f"must be from one millisecond to {MAX_PERIOD.days} days, in whole milliseconds")
    return period.ToMilliseconds()
