"""From a tenant's policies to the limits over one request: grants that have not ended, prices, calendar windows.

Pure, but for the moment that it is told. A policy's limits count cost units by its own prices; for a model that it has
none for, by those of the node above.
"""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from gateway.quota_budgets import EPOCH, window_at
from gateway.quota_terms import (
    DEFAULT_WEIGHTS,
    BudgetWindow,
    CostWeights,
    Dimension,
    Limit,
    default_overdraft,
)
from gateway.store.enums import Dimension as StoredDimension
from gateway.store.enums import ReservationMode, StoreLossAction
from gateway.store.records import QuotaGrant, QuotaLimit
from gateway.store.snapshot import PolicyRecord

NS_PER_MS = 1_000_000
MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """The policy of one key, team or organization; `node` is its resource name."""

    node: str
    policy: PolicyRecord


def limits_at(path: abc.Sequence[NodePolicy], model: str | None, now: datetime) -> tuple[Limit, ...]:
    """Every limit and budget over a request for `model`, from the key up; None: over requests for any model."""
    found: list[Limit] = []
    for index, level in enumerate(path):
        policies = [above.policy for above in path[index:]]
        found += _rates_and_slots(level, model, now, policies)
        found += _budgets(level, model, now, policies)
    return tuple(found)


def reservation_mode(path: abc.Iterable[NodePolicy]) -> ReservationMode:
    """What the deepest policy says that says anything."""
    said = (level.policy.reservation for level in path)
    return next((mode for mode in said if mode is not None), ReservationMode.HARD)


def unix_ns(moment: datetime) -> int:
    """Nanoseconds since 1970, exact to the microsecond."""
    return (moment.astimezone(UTC) - EPOCH) // MICROSECOND * 1000


def _rates_and_slots(
    level: NodePolicy, model: str | None, now: datetime, policies: abc.Sequence[PolicyRecord]
) -> abc.Iterator[Limit]:
    for limit in level.policy.limits:
        if model is not None and limit.model not in ("", model):
            continue
        grants = _in_force(level.policy, now, limit.model, dimension=limit.dimension.value)
        amount, burst = _raised(limit, grants)
        has_price = limit.dimension is StoredDimension.COST_UNITS
        yield _limit(
            level,
            Dimension(limit.dimension.value),
            amount,
            period_ns=(limit.period_ms or 0) * NS_PER_MS,
            burst=burst,
            model=limit.model,
            weights=_weights(policies, model or limit.model) if has_price else DEFAULT_WEIGHTS,
        )


def _budgets(
    level: NodePolicy, model: str | None, now: datetime, policies: abc.Sequence[PolicyRecord]
) -> abc.Iterator[Limit]:
    for budget in level.policy.budgets:
        if model is not None and budget.model not in ("", model):
            continue
        grants = _in_force(level.policy, now, budget.model, calendar=budget.calendar.value)
        yield _limit(
            level,
            Dimension.BUDGET,
            max([budget.amount, *(grant.amount for grant in grants)]),
            model=budget.model,
            window=window_at(budget.calendar, level.policy.time_zone, unix_ns(now)),
            weights=_weights(policies, model or budget.model),
        )


def _limit(
    level: NodePolicy,
    dimension: Dimension,
    amount: int,
    *,
    model: str,
    weights: CostWeights,
    period_ns: int = 0,
    burst: int = 0,
    window: BudgetWindow | None = None,
) -> Limit:
    """With what all limits of a policy have in common."""
    policy = level.policy
    return Limit(
        node=level.node,
        dimension=dimension,
        limit=amount,
        period_ns=period_ns,
        burst=burst,
        model=model,
        window=window,
        weights=weights,
        mode=policy.mode,
        strict=policy.strict,
        fails_closed=policy.on_store_loss is StoreLossAction.FAIL_CLOSED,
        max_overdraft=policy.max_overdraft or default_overdraft(amount, period_ns),
    )


def _in_force(
    policy: PolicyRecord, now: datetime, model: str, *, dimension: str | None = None, calendar: str | None = None
) -> list[QuotaGrant]:
    return [
        grant
        for grant in policy.grants
        if grant.expires_at > now and (grant.dimension, grant.calendar, grant.model) == (dimension, calendar, model)
    ]


def _raised(limit: QuotaLimit, grants: abc.Sequence[QuotaGrant]) -> tuple[int, int]:
    """Amount and burst with the largest of `grants`; a burst that was not granted grows as the limit does."""
    amount, burst = limit.amount, limit.burst or 0
    for grant in grants:
        amount = max(amount, grant.amount)
        burst = max(burst, grant.burst or (limit.burst or 0) * grant.amount // limit.amount)
    return amount, burst


def _weights(policies: abc.Iterable[PolicyRecord], model: str) -> CostWeights:
    """The prices of `model` by the first policy that has some."""
    for policy in policies:
        by_model = {cost.model: cost for cost in policy.costs}
        cost = by_model.get(model) or by_model.get("")
        if cost is not None:
            return CostWeights(cost.input_token, cost.cached_input_token, cost.output_token)
    return DEFAULT_WEIGHTS
