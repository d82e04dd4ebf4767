"""`evenflow quota-policies`: weight and limits of organizations, teams and keys."""

from dataclasses import dataclass
from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.limits import budget_text, limit_text, merge_limits, parse_budget, parse_limit
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one, time_text
from gateway.cli.references import node_name, quota_policy_name
from gateway.cli.resources import (
    PAGE_SIZE,
    ModeChoice,
    PolicyFilterOption,
    ReservationChoice,
    StoreLossChoice,
    YesOption,
    all_pages,
    confirm,
)
from gateway.cli.served_models import models_of, tell_of_unserved
from gateway.words import short_name

app = typer.Typer(help="Weights and limits of organizations, teams and keys.", no_args_is_help=True)

ALL_NODES = ("organizations/-", "organizations/-/teams/-", "organizations/-/teams/-/apiKeys/-")

NodeArgument = Annotated[
    str, typer.Argument(metavar="NODE", help="acme, acme/search or acme/search/KEY; its policy is meant.")
]
WeightOption = Annotated[
    float | None, typer.Option("--weight", help="Share against siblings, above 0 and at most 1000; keys have none.")
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="requests=60/1m, total_tokens=100000/1m:burst=20000, concurrency=4, …:model=NAME; repeatable. Without a"
        " period it is per minute; without a burst that is a sixth of the limit.",
    ),
]
ModeOption = Annotated[
    ModeChoice | None,
    typer.Option("--mode", help="Refuse what is over the limits, only count it, or let it run while there is room."),
]
StrictOption = Annotated[
    bool | None, typer.Option("--strict/--not-strict", help="Check each request in Postgres: no overshoot at all.")
]
StoreLossOption = Annotated[
    StoreLossChoice | None, typer.Option("--on-store-loss", help="What happens to requests while Postgres is away.")
]
BudgetOption = Annotated[
    list[str] | None,
    typer.Option("--budget", help="Cost units: month=1000000, week=…, day=…:model=NAME; repeatable, all at once."),
]
ReservationOption = Annotated[
    ReservationChoice | None,
    typer.Option("--reservation", help="Hold back all that a request may use, or what is expected of it."),
]
ZoneOption = Annotated[str | None, typer.Option("--time-zone", help="In which budgets begin, such as Europe/Berlin.")]
OverdraftOption = Annotated[
    int | None,
    typer.Option("--max-overdraft", help="What may be spent unseen while Postgres is away; 0: five minutes' refill."),
]
COLUMNS: tuple[Column[pb.QuotaPolicy], ...] = (
    Column("NODE", lambda policy: short_name(policy.name.partition("/quotaPolicies/")[0])),
    Column("WEIGHT", lambda policy: f"{policy.weight:g}" if policy.weight else "-"),
    Column("MODE", lambda policy: pb.QuotaMode.Name(policy.mode).removeprefix("QUOTA_MODE_").lower()),
    Column("LIMITS", lambda policy: _limits_text(policy)),
    Column("ON STORE LOSS", lambda policy: _store_loss_text(policy)),
)
GRANTS: Column[pb.QuotaPolicy] = Column("GRANTS", lambda policy: "\n".join(grant_lines(policy)) or "none")


@dataclass(frozen=True, slots=True)
class Choices:
    """What the options of `create` and `update` say about a policy; None leaves it as it is."""

    weight: float | None
    mode: ModeChoice | None
    strict: bool | None
    on_store_loss: StoreLossChoice | None
    budgets: list[str] | None
    reservation: ReservationChoice | None
    time_zone: str | None
    max_overdraft: int | None

    def apply(self, policy: pb.QuotaPolicy) -> FieldMask:
        """`policy` holds what was given; returns the fields that were. Raises UsageError."""
        mask = FieldMask()
        scalars = (
            ("weight", self.weight),
            ("strict", self.strict),
            ("time_zone", self.time_zone),
            ("max_overdraft", self.max_overdraft),
            ("mode", None if self.mode is None else self.mode.to_pb()),
            ("on_store_loss", None if self.on_store_loss is None else self.on_store_loss.to_pb()),
            ("reservation", None if self.reservation is None else self.reservation.to_pb()),
        )
        for field, value in scalars:
            if value is not None:
                setattr(policy, field, value)
                mask.paths.append(field)
        if self.budgets is not None:
            policy.budgets.extend(map(parse_budget, self.budgets))
            mask.paths.append("budgets")
        return mask


@app.command()
@admin_command
def create(
    admin: Admin,
    node: NodeArgument,
    weight: WeightOption = None,
    limit: LimitOption = None,
    mode: ModeOption = None,
    strict: StrictOption = None,
    on_store_loss: StoreLossOption = None,
    budget: BudgetOption = None,
    reservation: ReservationOption = None,
    time_zone: ZoneOption = None,
    max_overdraft: OverdraftOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a key a policy. Organizations and teams have one from the beginning."""
    policy = pb.QuotaPolicy(limits=map(parse_limit, limit or ()))
    choices = Choices(weight, mode, strict, on_store_loss, budget, reservation, time_zone, max_overdraft)
    choices.apply(policy)
    parent, _, policy_id = quota_policy_name(node).partition("/quotaPolicies/")
    request = pb.CreateQuotaPolicyRequest(parent=parent, quota_policy_id=policy_id, quota_policy=policy)
    print_one(admin.call(admin.stub.CreateQuotaPolicy, request), COLUMNS, output)
    tell_of_unserved(admin, models_of(policy))


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    node: Annotated[
        str | None, typer.Argument(metavar="[NODE]", help="Such as acme, acme/search, or acme/- for its teams.")
    ] = None,
    condition: PolicyFilterOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the policies of all organizations, teams and keys, or those of NODE and of all below it.

    A - stands for any, and means that level alone: acme/- lists all teams of acme.
    """
    policies: list[pb.QuotaPolicy] = []
    for parent in ALL_NODES if node is None else with_levels_below(node_name(node)):
        policies += list_policies(admin, parent, condition)
    print_many(policies, COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, node: NodeArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one policy."""
    print_one(get_policy(admin, node), (*COLUMNS, GRANTS), output)


@app.command()
@admin_command
def update(
    admin: Admin,
    node: NodeArgument,
    weight: WeightOption = None,
    limit: LimitOption = None,
    clear_limits: Annotated[bool, typer.Option("--clear-limits", help="Drop all limits but those of --limit.")] = False,
    mode: ModeOption = None,
    strict: StrictOption = None,
    on_store_loss: StoreLossOption = None,
    budget: BudgetOption = None,
    reservation: ReservationOption = None,
    time_zone: ZoneOption = None,
    max_overdraft: OverdraftOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a policy. --limit replaces the limit of the same dimension and model, or adds one."""
    changed = pb.QuotaPolicy(name=quota_policy_name(node))
    choices = Choices(weight, mode, strict, on_store_loss, budget, reservation, time_zone, max_overdraft)
    mask = choices.apply(changed)
    limits = [parse_limit(text) for text in limit or ()]
    if limits or clear_limits:
        current = get_policy(admin, node)
        # The new list is made from the old one: nobody else may change it in between.
        changed.etag = current.etag
        kept = [] if clear_limits else list(current.limits)
        changed.limits.extend(merge_limits(kept, limits))
        mask.paths.append("limits")
    if not mask.paths:
        raise UsageError("nothing to change: see evenflow quota-policies update --help")
    request = pb.UpdateQuotaPolicyRequest(quota_policy=changed, update_mask=mask)
    print_one(admin.call(admin.stub.UpdateQuotaPolicy, request), COLUMNS, output)
    tell_of_unserved(admin, models_of(pb.QuotaPolicy(limits=limits, budgets=changed.budgets)))


@app.command()
@admin_command
def delete(admin: Admin, node: NodeArgument, yes: YesOption = False) -> None:
    """Take a key's own policy away. Organizations and teams keep theirs: clear its limits instead."""
    request = pb.DeleteQuotaPolicyRequest(name=quota_policy_name(node))
    confirm(f"Delete {request.name}? This cannot be taken back.", yes=yes)
    admin.call(admin.stub.DeleteQuotaPolicy, request)


def get_policy(admin: Admin, node: str) -> pb.QuotaPolicy:
    """The policy of `node`, as a person writes it."""
    return admin.call(admin.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=quota_policy_name(node)))


def with_levels_below(node: str) -> tuple[str, ...]:
    """The name of an organization, a team or a key, and those of all teams and keys below it; alone if it has a `-`."""
    if "-" in node.split("/"):
        return (node,)
    below = ("/teams/-", "/apiKeys/-")[node.count("/") // 2 :]
    return tuple(node + "".join(below[:depth]) for depth in range(len(below) + 1))


def raised_text(policy: pb.QuotaPolicy, grant: pb.TemporaryQuota) -> str:
    """The limit or budget that `grant` raises, to what; with the period, which stays what it is in the policy."""
    if not grant.HasField("limit"):
        return budget_text(grant.budget)
    raised = pb.QuotaLimit()
    raised.CopyFrom(grant.limit)
    for limit in policy.limits:
        if (limit.dimension, limit.model) == (raised.dimension, raised.model) and limit.HasField("period"):
            raised.period.CopyFrom(limit.period)
    return limit_text(raised)


def grant_lines(policy: pb.QuotaPolicy) -> list[str]:
    """`ID: total_tokens=9000/1m until …, reason`, as `quota end` takes the id."""
    return [
        f"{grant.uid}: {raised_text(policy, grant)} until {time_text(grant, 'expire_time')}, {grant.reason}"
        for grant in policy.temporary_quotas
    ]


def list_policies(admin: Admin, parent: str, condition: str = "") -> list[pb.QuotaPolicy]:
    """All policies at the depth of `parent`, a name that may hold `-`."""

    def fetch(token: str) -> tuple[list[pb.QuotaPolicy], str]:
        request = pb.ListQuotaPoliciesRequest(parent=parent, page_size=PAGE_SIZE, page_token=token, filter=condition)
        page = admin.call(admin.stub.ListQuotaPolicies, request)
        return list(page.quota_policies), page.next_page_token

    return all_pages(fetch)


def _limits_text(policy: pb.QuotaPolicy) -> str:
    """A line for each limit, budget and temporary quota."""
    lines = [*map(limit_text, policy.limits), *map(budget_text, policy.budgets)]
    lines += [f"{raised_text(policy, each)} until {time_text(each, 'expire_time')}" for each in policy.temporary_quotas]
    if policy.strict:
        lines.append("strict")
    return "\n".join(lines) or "none"


def _store_loss_text(policy: pb.QuotaPolicy) -> str:
    name = pb.StoreLossAction.Name(policy.on_store_loss)
    return name.removeprefix("STORE_LOSS_ACTION_").lower().replace("_", "-")
