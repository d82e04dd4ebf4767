"""`evenflow quota-policies`: weight and limits of organizations, teams and keys."""

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.limits import limit_text, merge_limits, parse_limit
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one
from gateway.cli.references import node_name, quota_policy_name, short
from gateway.cli.resources import PAGE_SIZE, StoreLossChoice, all_pages

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
StoreLossOption = Annotated[
    StoreLossChoice | None, typer.Option("--on-store-loss", help="What happens to requests while Postgres is away.")
]
COLUMNS: tuple[Column[pb.QuotaPolicy], ...] = (
    Column("NODE", lambda policy: short(policy.name.partition("/quotaPolicies/")[0])),
    Column("WEIGHT", lambda policy: f"{policy.weight:g}" if policy.weight else "-"),
    Column("LIMITS", lambda policy: "\n".join(map(limit_text, policy.limits)) or "none"),
    Column("ON STORE LOSS", lambda policy: _store_loss_text(policy)),
)


@app.command()
@admin_command
def create(
    admin: Admin,
    node: NodeArgument,
    weight: WeightOption = None,
    limit: LimitOption = None,
    on_store_loss: StoreLossOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a key a policy. Organizations and teams have one from the beginning."""
    policy = pb.QuotaPolicy(weight=weight or 0.0, limits=map(parse_limit, limit or ()))
    if on_store_loss is not None:
        policy.on_store_loss = on_store_loss.to_pb()
    parent, _, policy_id = quota_policy_name(node).partition("/quotaPolicies/")
    request = pb.CreateQuotaPolicyRequest(parent=parent, quota_policy_id=policy_id, quota_policy=policy)
    print_one(admin.call(admin.stub.CreateQuotaPolicy, request), COLUMNS, output)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    node: Annotated[str | None, typer.Argument(metavar="[NODE]", help="Such as acme/- for all teams of acme.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the policies of all organizations, teams and keys, or those of NODE."""
    policies: list[pb.QuotaPolicy] = []
    for parent in ALL_NODES if node is None else (node_name(node),):
        policies += list_policies(admin, parent)
    print_many(policies, COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, node: NodeArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one policy."""
    print_one(get_policy(admin, node), COLUMNS, output)


@app.command()
@admin_command
def update(
    admin: Admin,
    node: NodeArgument,
    weight: WeightOption = None,
    limit: LimitOption = None,
    clear_limits: Annotated[bool, typer.Option("--clear-limits", help="Drop all limits but those of --limit.")] = False,
    on_store_loss: StoreLossOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a policy. --limit replaces the limit of the same dimension and model, or adds one."""
    changed, mask = pb.QuotaPolicy(name=quota_policy_name(node)), FieldMask()
    limits = [parse_limit(text) for text in limit or ()]
    if weight is not None:
        changed.weight = weight
        mask.paths.append("weight")
    if limits or clear_limits:
        current = get_policy(admin, node)
        # The new list is made from the old one: nobody else may change it in between.
        changed.etag = current.etag
        kept = [] if clear_limits else list(current.limits)
        changed.limits.extend(merge_limits(kept, limits))
        mask.paths.append("limits")
    if on_store_loss is not None:
        changed.on_store_loss = on_store_loss.to_pb()
        mask.paths.append("on_store_loss")
    if not mask.paths:
        raise UsageError("nothing to change: give --weight, --limit, --clear-limits or --on-store-loss")
    request = pb.UpdateQuotaPolicyRequest(quota_policy=changed, update_mask=mask)
    print_one(admin.call(admin.stub.UpdateQuotaPolicy, request), COLUMNS, output)


def get_policy(admin: Admin, node: str) -> pb.QuotaPolicy:
    """The policy of `node`, as a person writes it."""
    return admin.call(admin.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=quota_policy_name(node)))


def list_policies(admin: Admin, parent: str) -> list[pb.QuotaPolicy]:
    """All policies at the depth of `parent`, a name that may hold `-`."""

    def fetch(token: str) -> tuple[list[pb.QuotaPolicy], str]:
        request = pb.ListQuotaPoliciesRequest(parent=parent, page_size=PAGE_SIZE, page_token=token)
        page = admin.call(admin.stub.ListQuotaPolicies, request)
        return list(page.quota_policies), page.next_page_token

    return all_pages(fetch)


def _store_loss_text(policy: pb.QuotaPolicy) -> str:
    name = pb.StoreLossAction.Name(policy.on_store_loss)
    return name.removeprefix("STORE_LOSS_ACTION_").lower().replace("_", "-")
