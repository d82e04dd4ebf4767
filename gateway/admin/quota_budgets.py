"""The values of a quota policy beside its limits: budgets, prices, time zone, the way of reserving, grants."""

from collections import abc
from zoneinfo import available_timezones

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import invalid
from gateway.admin.values import timestamp
from gateway.quota_terms import Calendar
from gateway.store.enums import ReservationMode
from gateway.store.records import QuotaBudget, QuotaCost, QuotaGrant

FIELD = "quota_policy"
MAX_AMOUNT = 10**15
MAX_PRICE = 10**9
MAX_MODEL_CHARS = 200

WINDOW_PREFIX = "BUDGET_WINDOW_"
RESERVATION_PREFIX = "RESERVATION_MODE_"
DIMENSION_PREFIX = "QUOTA_DIMENSION_"
CALENDAR_BY_PB = {pb.BudgetWindow.Value(WINDOW_PREFIX + calendar): calendar for calendar in Calendar}
RESERVATION_BY_PB = {pb.ReservationMode.Value(RESERVATION_PREFIX + mode): mode for mode in ReservationMode}


def parse_time_zone(name: str) -> str:
    """A name of the IANA database; empty: UTC. Raises InvalidFieldError, as do the others."""
    if name and name not in available_timezones():
        raise invalid(f"{FIELD}.time_zone", "must be the name of a time zone, such as Europe/Berlin")
    return name or "UTC"


def parse_reservation(value: pb.ReservationMode.ValueType) -> ReservationMode | None:
    """None where it is left to the node above."""
    if value == pb.RESERVATION_MODE_UNSPECIFIED:
        return None
    if value not in RESERVATION_BY_PB:
        raise invalid(f"{FIELD}.reservation", "must be HARD or EXPECTED")
    return RESERVATION_BY_PB[value]


def parse_budgets(messages: abc.Iterable[pb.QuotaBudget]) -> tuple[QuotaBudget, ...]:
    """One per window and model."""
    budgets: dict[tuple[Calendar, str], QuotaBudget] = {}
    for index, message in enumerate(messages):
        budget = parse_budget(message, f"{FIELD}.budgets[{index}]")
        if (budget.calendar, budget.model) in budgets:
            raise invalid(f"{FIELD}.budgets[{index}]", "an earlier budget has the same window and model")
        budgets[budget.calendar, budget.model] = budget
    return tuple(budgets.values())


def parse_budget(message: pb.QuotaBudget, field: str) -> QuotaBudget:
    if message.window not in CALENDAR_BY_PB:
        raise invalid(f"{field}.window", "must be DAY, WEEK or MONTH")
    if not 1 <= message.limit <= MAX_AMOUNT:
        raise invalid(f"{field}.limit", f"must be from 1 to {MAX_AMOUNT}")
    return QuotaBudget(CALENDAR_BY_PB[message.window], message.limit, parse_model(message.model, f"{field}.model"))


def parse_costs(messages: abc.Iterable[pb.CostWeights]) -> tuple[QuotaCost, ...]:
    """One per model."""
    costs: dict[str, QuotaCost] = {}
    for index, message in enumerate(messages):
        field = f"{FIELD}.cost_weights[{index}]"
        for name in ("input_token", "cached_input_token", "output_token"):
            if not 0 <= getattr(message, name) <= MAX_PRICE:
                raise invalid(f"{field}.{name}", f"must be from 0 to {MAX_PRICE}")
        if message.cached_input_token > message.input_token:
            raise invalid(f"{field}.cached_input_token", "must be at most input_token")
        model = parse_model(message.model, f"{field}.model")
        if model in costs:
            raise invalid(field, "an earlier entry has the same model")
        costs[model] = QuotaCost(message.input_token, message.cached_input_token, message.output_token, model)
    return tuple(costs.values())


def parse_model(name: str, field: str) -> str:
    """Any name, also of a model that is not served yet; empty: all of them."""
    if len(name) > MAX_MODEL_CHARS or not name.isprintable():
        raise invalid(field, f"must be a model's name of at most {MAX_MODEL_CHARS} characters")
    return name


def reservation_to_pb(mode: ReservationMode | None) -> pb.ReservationMode.ValueType:
    if mode is None:
        return pb.RESERVATION_MODE_UNSPECIFIED
    return pb.ReservationMode.Value(RESERVATION_PREFIX + mode)


def budget_to_pb(budget: QuotaBudget) -> pb.QuotaBudget:
    window = pb.BudgetWindow.Value(WINDOW_PREFIX + budget.calendar)
    return pb.QuotaBudget(window=window, model=budget.model, limit=budget.amount)


def cost_to_pb(cost: QuotaCost) -> pb.CostWeights:
    return pb.CostWeights(
        model=cost.model,
        input_token=cost.input_token,
        cached_input_token=cost.cached_input_token,
        output_token=cost.output_token,
    )


def grant_to_pb(grant: QuotaGrant) -> pb.TemporaryQuota:
    message = pb.TemporaryQuota(
        uid=str(grant.id),
        expire_time=timestamp(grant.expires_at),
        reason=grant.reason,
        creator=grant.creator,
        create_time=timestamp(grant.created_at),
    )
    if grant.dimension is not None:
        dimension = pb.QuotaDimension.Value(DIMENSION_PREFIX + grant.dimension)
        limit = pb.QuotaLimit(dimension=dimension, model=grant.model, limit=grant.amount, burst=grant.burst or 0)
        message.limit.CopyFrom(limit)
    elif grant.calendar is not None:
        message.budget.CopyFrom(budget_to_pb(QuotaBudget(grant.calendar, grant.amount, grant.model)))
    return message
