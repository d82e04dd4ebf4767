"""`evenflow quota denials`: which limits refused how many requests."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.limits import parse_duration
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, time_text
from gateway.cli.references import node_name
from gateway.cli.resources import PAGE_SIZE, all_pages
from gateway.words import short_name

COLUMNS: tuple[Column[pb.DenialSum], ...] = (
    Column("LIMIT OF", lambda row: short_name(row.node)),
    Column("ON", lambda row: row.dimension),
    Column("MODE", lambda row: "shadow" if row.shadow else "refused"),
    Column("REQUESTS", lambda row: f"{row.request_count:,}"),
    Column("TEAMS", lambda row: f"{row.team_count:,}"),
    Column("INPUT", lambda row: f"{row.input_tokens:,}"),
    Column("RESERVED", lambda row: f"{row.reserved_tokens:,}"),
    Column("LONGEST WAIT", lambda row: _wait_text(row)),
    Column("LAST", lambda row: time_text(row, "last_time")),
)


@admin_command
def denials(
    admin: Admin,
    tenant: Annotated[
        str | None, typer.Argument(metavar="[TENANT]", help="acme, acme/search or a key of it. Left out: everybody.")
    ] = None,
    last: Annotated[str, typer.Option("--last", help="How far back, such as 1h or 7d; at most 30d is kept.")] = "24h",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which limits refused requests lately, or would have, those first that refused most.

    A request that several limits refused counts at each of them.
    """
    end = datetime.now(UTC)
    request = pb.QueryDenialsRequest(parent=node_name(tenant) if tenant else "", page_size=PAGE_SIZE)
    request.start_time.FromDatetime(end - parse_duration(last))
    request.end_time.FromDatetime(end)
    print_many(all_pages(lambda token: _page(admin, request, token)), COLUMNS, output)


def _page(admin: Admin, request: pb.QueryDenialsRequest, token: str) -> tuple[list[pb.DenialSum], str]:
    request.page_token = token
    response = admin.call(admin.stub.QueryDenials, request)
    return list(response.rows), response.next_page_token


def _wait_text(row: pb.DenialSum) -> str:
    return f"{row.longest_wait.ToMilliseconds() / 1000:.1f} s" if row.HasField("longest_wait") else "-"
