"""The parts of a quota policy, between rows and values: limits, budgets, prices, grants. No statements."""

from collections import Counter, abc
from dataclasses import replace

from sqlalchemy.orm import selectinload
from sqlalchemy.sql.base import ExecutableOption

from gateway.quota_terms import Calendar, Mode
from gateway.store.enums import Dimension, ReservationMode, StoreLossAction
from gateway.store.errors import InvalidValueError
from gateway.store.models import QuotaLimitRow, QuotaPolicyRow
from gateway.store.policy_models import QuotaBudgetRow, QuotaCostRow, QuotaGrantRow
from gateway.store.records import QuotaBudget, QuotaCost, QuotaGrant, QuotaLimit, QuotaPolicySettings


def with_parts() -> tuple[ExecutableOption, ...]:
    """What a statement on policies needs so that records can be made of its rows."""
    parts = (QuotaPolicyRow.limits, QuotaPolicyRow.budgets, QuotaPolicyRow.costs, QuotaPolicyRow.grants)
    return tuple(selectinload(part) for part in parts)


def make_empty(row: QuotaPolicyRow) -> None:
    """A new row has no parts."""
    row.limits, row.budgets, row.costs, row.grants = [], [], [], []


def write_settings(row: QuotaPolicyRow, settings: QuotaPolicySettings) -> None:
    """The row has the settings. Raises InvalidValueError where two parts are of the same thing."""
    settings = ordered(settings)
    _require_distinct(settings)
    row.mode, row.weight = settings.mode, settings.weight
    row.on_store_loss, row.max_overdraft, row.strict = settings.on_store_loss, settings.max_overdraft, settings.strict
    row.time_zone, row.reservation = settings.time_zone, settings.reservation
    row.limits = [
        QuotaLimitRow(
            dimension=limit.dimension,
            model=limit.model,
            amount=limit.amount,
            period_ms=limit.period_ms,
            burst=limit.burst,
        )
        for limit in settings.limits
    ]
    row.budgets = [
        QuotaBudgetRow(calendar=budget.calendar, model=budget.model, amount=budget.amount)
        for budget in settings.budgets
    ]
    row.costs = [
        QuotaCostRow(
            model=cost.model,
            input_token=cost.input_token,
            cached_input_token=cost.cached_input_token,
            output_token=cost.output_token,
        )
        for cost in settings.costs
    ]


def settings_of(row: QuotaPolicyRow) -> QuotaPolicySettings:
    """The settings of a row whose parts are loaded."""
    return ordered(
        QuotaPolicySettings(
            weight=row.weight,
            limits=tuple(
                QuotaLimit(Dimension(part.dimension), part.amount, part.period_ms, part.burst, part.model)
                for part in row.limits
            ),
            mode=Mode(row.mode),
            on_store_loss=StoreLossAction(row.on_store_loss),
            max_overdraft=row.max_overdraft,
            strict=row.strict,
            time_zone=row.time_zone,
            reservation=None if row.reservation is None else ReservationMode(row.reservation),
            budgets=tuple(QuotaBudget(Calendar(part.calendar), part.amount, part.model) for part in row.budgets),
            costs=tuple(
                QuotaCost(part.input_token, part.cached_input_token, part.output_token, part.model)
                for part in row.costs
            ),
        )
    )


def ordered(settings: QuotaPolicySettings) -> QuotaPolicySettings:
    """The settings with their parts in their one order, in which what was not changed compares equal."""
    return replace(
        settings,
        limits=tuple(sorted(settings.limits, key=lambda limit: (limit.dimension, limit.model))),
        budgets=tuple(sorted(settings.budgets, key=lambda budget: (budget.calendar, budget.model))),
        costs=tuple(sorted(settings.costs, key=lambda cost: cost.model)),
    )


def grants_of(rows: abc.Iterable[QuotaGrantRow]) -> tuple[QuotaGrant, ...]:
    """The grants as values."""
    return tuple(
        QuotaGrant(
            id=row.id,
            dimension=None if row.dimension is None else Dimension(row.dimension),
            calendar=None if row.calendar is None else Calendar(row.calendar),
            model=row.model,
            amount=row.amount,
            burst=row.burst,
            expires_at=row.expires_at,
            reason=row.reason,
            creator=row.creator,
            created_at=row.created_at,
        )
        for row in rows
    )


def _require_distinct(settings: QuotaPolicySettings) -> None:
    parts = {
        "limits": [f"{limit.dimension} of {limit.model or 'all models'}" for limit in settings.limits],
        "budgets": [f"the {budget.calendar} of {budget.model or 'all models'}" for budget in settings.budgets],
        "costs": [cost.model or "all models" for cost in settings.costs],
    }
    for field, names in parts.items():
        for name, count in Counter(names).items():
            if count > 1:
                raise InvalidValueError(field, f"{name} is there {count} times")
