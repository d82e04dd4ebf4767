"""What a quota policy says, part by part and in words, and one person's changes of it on top of another's.

A part is one field or, of the lists, one limit, budget or price, told from its siblings by what it counts and for which
model. Pure.
"""

from datetime import timedelta

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.policies.form import DEFAULT_PERIOD, number_text
from gateway.console.versions import Part, PartKey, all_keys, text_of
from gateway.durations import duration_text
from gateway.quota_terms import default_burst

PERIODS = {
    timedelta(seconds=1): "second",
    timedelta(minutes=1): "minute",
    timedelta(hours=1): "hour",
    timedelta(days=1): "day",
}


def parts_of(policy: pb.QuotaPolicy) -> dict[PartKey, Part]:
    """Everything that `policy` says, in the order in which a form shows it."""
    parts: dict[PartKey, Part] = {("weight",): Part("Weight", number_text(policy.weight))} if policy.weight else {}
    parts |= {("mode",): Part("Over a limit", _word(pb.QuotaMode.Name(policy.mode), "QUOTA_MODE_"))}
    for limit in policy.limits:
        dimension = pb.QuotaDimension.Name(limit.dimension).removeprefix("QUOTA_DIMENSION_")
        parts[("limits", dimension, limit.model)] = Part(f"Limit: {limit_label(limit)}", limit_text(limit), limit)
    for budget in policy.budgets:
        window = pb.BudgetWindow.Name(budget.window).removeprefix("BUDGET_WINDOW_")
        parts[("budgets", window, budget.model)] = Part(f"Budget: {budget_label(budget)}", f"{budget.limit:,}", budget)
    for cost in policy.cost_weights:
        parts[("cost_weights", cost.model)] = Part(f"Prices: {cost.model or 'all models'}", _cost_text(cost), cost)
    return parts | {
        ("reservation",): Part("Held back", _word(pb.ReservationMode.Name(policy.reservation), "RESERVATION_MODE_")),
        ("time_zone",): Part("Time zone", policy.time_zone or "UTC"),
        ("strict",): Part("Strict", "yes" if policy.strict else "no"),
        ("on_store_loss",): Part(
            "Without the database", _word(pb.StoreLossAction.Name(policy.on_store_loss), "STORE_LOSS_ACTION_")
        ),
        ("max_overdraft",): Part("Overdraft", f"{policy.max_overdraft:,}" if policy.max_overdraft else "default"),
    }


def merged(base: pb.QuotaPolicy, theirs: pb.QuotaPolicy, yours: pb.QuotaPolicy) -> pb.QuotaPolicy:
    """`theirs` with everything that `yours` changed of `base`, under the etag of `theirs`."""
    old, their, your = (parts_of(side) for side in (base, theirs, yours))
    result = pb.QuotaPolicy()
    result.CopyFrom(theirs)
    for field in ("limits", "budgets", "cost_weights"):
        result.ClearField(field)
    for key in all_keys(old, their, your):
        is_yours = text_of(your.get(key)) != text_of(old.get(key))
        chosen = your.get(key) if is_yours else their.get(key)
        if len(key) > 1:
            if chosen is not None:
                getattr(result, key[0]).append(chosen.message)
        elif is_yours:
            setattr(result, key[0], getattr(yours, key[0]))
    return result


def limit_label(limit: pb.QuotaLimit) -> str:
    """`total tokens`, `requests of large`."""
    name = _word(pb.QuotaDimension.Name(limit.dimension), "QUOTA_DIMENSION_")
    return f"{name} of {limit.model}" if limit.model else name


def limit_text(limit: pb.QuotaLimit) -> str:
    """`100,000 per minute, 20,000 at once`; of concurrency `8 at once`."""
    if limit.dimension == pb.QUOTA_DIMENSION_CONCURRENCY:
        return f"{limit.limit:,} at once"
    period = limit.period.ToTimedelta() if limit.HasField("period") else DEFAULT_PERIOD
    burst = limit.burst or default_burst(limit.limit)
    return f"{limit.limit:,} per {PERIODS.get(period) or duration_text(period)}, {burst:,} at once"


def budget_label(budget: pb.QuotaBudget) -> str:
    """`cost units per month`."""
    name = f"cost units per {_word(pb.BudgetWindow.Name(budget.window), 'BUDGET_WINDOW_')}"
    return f"{name} of {budget.model}" if budget.model else name


def _cost_text(cost: pb.CostWeights) -> str:
    return f"{cost.input_token} in, {cost.cached_input_token} cached, {cost.output_token} out"


def _word(name: str, prefix: str) -> str:
    """An enum's value in words: `fail closed`."""
    word = name.removeprefix(prefix)
    return "as above" if word == "UNSPECIFIED" else word.lower().replace("_", " ")
