"""A temporary grant as the fields of a form: which limit or budget of a policy is raised, to what, until when. Pure."""

from collections import abc
from dataclasses import dataclass

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.form_values import Fields, FormReader
from gateway.console.policies.parts import budget_label, limit_label

PLACES = {
    "limit": "raised",
    "limit.dimension": "raised",
    "limit.model": "raised",
    "limit.limit": "amount",
    "limit.burst": "burst",
    "budget": "raised",
    "budget.window": "raised",
    "budget.model": "raised",
    "budget.limit": "amount",
    "expire_time": "until",
    "reason": "reason",
}


Raised = pb.QuotaLimit | pb.QuotaBudget


@dataclass(frozen=True, slots=True)
class Choice:
    """A limit or budget that can be raised. `value` is what the form sends for it, whatever else changes meanwhile."""

    value: str
    label: str
    part: Raised


def choices_of(policy: pb.QuotaPolicy) -> list[Choice]:
    """Everything of `policy` that a grant can raise."""
    limits = [Choice(f"limit/{limit.dimension}/{limit.model}", limit_label(limit), limit) for limit in policy.limits]
    budgets = [Choice(f"budget/{each.window}/{each.model}", budget_label(each), each) for each in policy.budgets]
    return [*limits, *budgets]


def read_grant(form: Fields, policy: pb.QuotaPolicy) -> tuple[pb.GrantTemporaryQuotaRequest, abc.Mapping[str, str]]:
    """The grant on `policy` as the form has it, and what is wrong, by field."""
    reader = FormReader(form)
    request = pb.GrantTemporaryQuotaRequest(name=policy.name, reason=reader.text("reason"))
    amount, burst = reader.whole("amount"), reader.whole("burst", 0)
    match reader.choice("raised", {each.value: each.part for each in choices_of(policy)}):
        case pb.QuotaLimit() as limit:
            raised = pb.QuotaLimit(dimension=limit.dimension, model=limit.model, limit=amount, burst=burst)
            request.limit.CopyFrom(raised)
        case pb.QuotaBudget() as budget:
            if burst:
                reader.refuse("burst", "a budget has no burst", None)
            request.budget.CopyFrom(pb.QuotaBudget(window=budget.window, model=budget.model, limit=amount))
    until = reader.moment("until")
    if until is None:
        reader.refuse("until", "say when it ends", None)
    else:
        request.expire_time.FromDatetime(until)
    return request, reader.errors


def raised_text(grant: pb.TemporaryQuota) -> str:
    """`requests to 600`."""
    if grant.WhichOneof("raised") == "budget":
        return f"{budget_label(grant.budget)} to {grant.budget.limit:,}"
    burst = f", {grant.limit.burst:,} at once" if grant.limit.burst else ""
    return f"{limit_label(grant.limit)} to {grant.limit.limit:,}{burst}"
