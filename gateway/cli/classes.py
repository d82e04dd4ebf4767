"""`evenflow classes`: priority classes, how urgent a request may be."""

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.limits import parse_duration
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one
from gateway.cli.references import class_name
from gateway.cli.resources import PAGE_SIZE, ClassFilterOption, OrderOption, YesOption, all_pages, confirm
from gateway.durations import duration_text
from gateway.words import short_name

app = typer.Typer(help="Priority classes: how urgent a request may be.", no_args_is_help=True)

NO_BOUND = "none"
MIN_RANK, MAX_RANK = -(2**31), 2**31 - 1
ClassArgument = Annotated[str, typer.Argument(metavar="CLASS", help="Such as batch.")]
RankOption = Annotated[
    int | None, typer.Option("--rank", min=MIN_RANK, max=MAX_RANK, help="A lower rank is served first.")
]
ShareOption = Annotated[
    float | None, typer.Option("--min-share", help="Of the engine, kept for it even behind urgent work; 0 to 1.")
]
PreemptibleOption = Annotated[
    bool | None, typer.Option("--preemptible/--not-preemptible", help="Whether more urgent work may interrupt it.")
]
WaitOption = Annotated[
    str | None, typer.Option("--max-queue-wait", metavar="TIME", help="Refused after so long in the queue, or none.")
]
COLUMNS: tuple[Column[pb.PriorityClass], ...] = (
    Column("CLASS", lambda item: short_name(item.name)),
    Column("RANK", lambda item: str(item.rank)),
    Column("MIN SHARE", lambda item: f"{item.min_share:g}"),
    Column("PREEMPTIBLE", lambda item: "yes" if item.preemptible else "no"),
    Column("MAX QUEUE WAIT", lambda item: _wait_text(item)),
)


@app.command()
@admin_command
def create(
    admin: Admin,
    name: ClassArgument,
    rank: Annotated[int, typer.Option("--rank", min=MIN_RANK, max=MAX_RANK, help="A lower rank is served first.")],
    min_share: ShareOption = None,
    preemptible: PreemptibleOption = None,
    max_queue_wait: WaitOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a class. Grant it to teams: evenflow teams update ORG/TEAM --grant-class CLASS."""
    item = pb.PriorityClass()
    _fill(item, rank, min_share, True if preemptible is None else preemptible, max_queue_wait)
    request = pb.CreatePriorityClassRequest(priority_class_id=short_name(class_name(name)), priority_class=item)
    print_one(admin.call(admin.stub.CreatePriorityClass, request), COLUMNS, output)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    condition: ClassFilterOption = "",
    order_by: OrderOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List all classes, the most urgent first."""

    def fetch(token: str) -> tuple[list[pb.PriorityClass], str]:
        request = pb.ListPriorityClassesRequest(
            page_size=PAGE_SIZE, page_token=token, filter=condition, order_by=order_by
        )
        page = admin.call(admin.stub.ListPriorityClasses, request)
        return list(page.priority_classes), page.next_page_token

    print_many(all_pages(fetch), COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, name: ClassArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one class."""
    request = pb.GetPriorityClassRequest(name=class_name(name))
    print_one(admin.call(admin.stub.GetPriorityClass, request), COLUMNS, output)


@app.command()
@admin_command
def update(
    admin: Admin,
    name: ClassArgument,
    rank: RankOption = None,
    min_share: ShareOption = None,
    preemptible: PreemptibleOption = None,
    max_queue_wait: WaitOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a class. It governs what is queued and running at once."""
    changed = pb.PriorityClass(name=class_name(name))
    mask = _fill(changed, rank, min_share, preemptible, max_queue_wait)
    if not mask.paths:
        raise UsageError("nothing to change: see evenflow classes update --help")
    request = pb.UpdatePriorityClassRequest(priority_class=changed, update_mask=mask)
    print_one(admin.call(admin.stub.UpdatePriorityClass, request), COLUMNS, output)


@app.command()
@admin_command
def delete(admin: Admin, name: ClassArgument, yes: YesOption = False) -> None:
    """Delete a class that no team and no key names. What is queued in it goes on."""
    request = pb.DeletePriorityClassRequest(name=class_name(name))
    confirm(f"Delete the class {short_name(request.name)}? This cannot be taken back.", yes=yes)
    admin.call(admin.stub.DeletePriorityClass, request)


def _fill(
    item: pb.PriorityClass,
    rank: int | None,
    min_share: float | None,
    preemptible: bool | None,
    max_queue_wait: str | None,
) -> FieldMask:
    """`item` holds what was given; returns the fields that were. Raises UsageError."""
    mask = FieldMask()
    if rank is not None:
        item.rank = rank
        mask.paths.append("rank")
    if min_share is not None:
        item.min_share = min_share
        mask.paths.append("min_share")
    if preemptible is not None:
        item.preemptible = preemptible
        mask.paths.append("preemptible")
    if max_queue_wait is not None:
        mask.paths.append("max_queue_wait")
        if max_queue_wait != NO_BOUND:
            item.max_queue_wait.FromTimedelta(parse_duration(max_queue_wait))
    return mask


def _wait_text(item: pb.PriorityClass) -> str:
    return duration_text(item.max_queue_wait.ToTimedelta()) if item.HasField("max_queue_wait") else "-"
