"""`evenflow usage`: who used how much, from the ledger."""

import csv
import re
import sys
from collections import abc
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated

import grpc
import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import CliError, UsageError, read_refusal
from gateway.cli.output import Column, OutputFormat, print_many, stdout, time_text
from gateway.cli.references import node_name
from gateway.cli.resources import PAGE_SIZE, all_pages
from gateway.words import counted, short_name

app = typer.Typer(help="What tenants used.", no_args_is_help=True)

MONTH = re.compile(r"(\d{4})-(\d{2})")
COUNTS = (
    "request_count",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "billed_tokens",
    "discarded_tokens",
    "recomputed_tokens",
    "preemption_count",
)


class Dimension(StrEnum):
    ORGANIZATION = "organization"
    TEAM = "team"
    KEY = "key"
    MODEL = "model"
    CLASS = "class"


class Interval(StrEnum):
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"


class ReportFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


FIELDS = {
    Dimension.ORGANIZATION: "organization",
    Dimension.TEAM: "team",
    Dimension.KEY: "api_key",
    Dimension.MODEL: "model",
    Dimension.CLASS: "priority_class",
}
PB_DIMENSIONS = {each: pb.UsageDimension.Value(f"USAGE_DIMENSION_{name.upper()}") for each, name in FIELDS.items()}

NodeArgument = Annotated[
    str | None, typer.Argument(metavar="[TENANT]", help="acme, acme/search or a key of it. Left out: everybody.")
]
ByOption = Annotated[
    list[Dimension] | None, typer.Option("--by", help="What rows are told apart by; repeatable. Default: team.")
]
PerOption = Annotated[Interval | None, typer.Option("--per", help="A row for each; left out: one for the whole time.")]
MonthOption = Annotated[str | None, typer.Option("--month", metavar="YYYY-MM", help="Of this month, UTC.")]
FromOption = Annotated[
    datetime | None, typer.Option("--from", formats=["%Y-%m-%d", "%Y-%m-%dT%H"], help="From this day or hour on, UTC.")
]
ToOption = Annotated[
    datetime | None, typer.Option("--to", formats=["%Y-%m-%d", "%Y-%m-%dT%H"], help="Up to the begin of this one, UTC.")
]
FormatOption = Annotated[ReportFormat, typer.Option("--output", "-o", help="How to print the result.")]


@app.command("report")
@admin_command
def report(
    admin: Admin,
    tenant: NodeArgument = None,
    by: ByOption = None,
    per: PerOption = None,
    month: MonthOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    output: FormatOption = ReportFormat.TABLE,
) -> None:
    """Report who used how much, by default the teams in this month.

    A generation counts in the hour in which it began. The sums are equal to the ledger's rows.
    """
    dimensions = tuple(dict.fromkeys(by or (Dimension.TEAM,)))
    begin, end = find_times(month, from_, to, datetime.now(UTC))
    question = pb.QueryUsageRequest(
        parent=node_name(tenant) if tenant else "",
        group_by=[PB_DIMENSIONS[dimension] for dimension in dimensions],
        interval=pb.UsageInterval.Value(f"USAGE_INTERVAL_{per.name}") if per else pb.USAGE_INTERVAL_UNSPECIFIED,
        page_size=PAGE_SIZE,
    )
    question.start_time.FromDatetime(begin)
    question.end_time.FromDatetime(end)
    rows = _rows(admin, question)
    rows.sort(key=lambda row: (row.start_time.seconds, *(getattr(row, FIELDS[each]) for each in dimensions)))
    if output is ReportFormat.CSV:
        print_csv(rows, dimensions, has_times=per is not None)
        return
    print_many(rows, columns(dimensions, has_times=per is not None), OutputFormat(output.value))
    if output is ReportFormat.TABLE:
        stdout().print(f"{begin:%Y-%m-%d %H:%MZ} to {end:%Y-%m-%d %H:%MZ}: {_total_text(rows)}")


def _total_text(rows: abc.Iterable[pb.UsageSum]) -> str:
    """`1,200 requests, 345,678 tokens billed`."""
    sums = [(row.request_count, row.billed_tokens) for row in rows]
    requests, billed = (sum(column) for column in zip(*sums, strict=True)) if sums else (0, 0)
    return f"{counted(requests, 'request')}, {counted(billed, 'token')} billed"


def find_times(
    month: str | None, begin: datetime | None, end: datetime | None, now: datetime
) -> tuple[datetime, datetime]:
    """Begin and end of what is asked for: a month, or from `begin` to `end`, or to the end of this hour.

    Raises UsageError.
    """
    if month is not None:
        if begin is not None or end is not None:
            raise UsageError("--month says it all: leave out --from and --to")
        return _month(month)
    if begin is None and end is None:
        return _month(f"{now:%Y-%m}")
    if begin is None:
        raise UsageError("--to needs a --from")
    begin = begin.replace(tzinfo=UTC)
    this_hour = now.replace(minute=0, second=0, microsecond=0)
    end = this_hour + timedelta(hours=1) if end is None else end.replace(tzinfo=UTC)
    if begin >= end:
        raise UsageError("--from must be before --to")
    return begin, end


def columns(dimensions: abc.Sequence[Dimension], *, has_times: bool) -> list[Column[pb.UsageSum]]:
    """What the rows are told apart by, then the counts."""
    found: list[Column[pb.UsageSum]] = []
    if has_times:
        found.append(Column("FROM", lambda row: time_text(row, "start_time")))
    found += [Column(dimension.name, partial(_name, field=FIELDS[dimension])) for dimension in dimensions]
    return found + [Column(_heading(name), partial(_count, field=name)) for name in COUNTS]


def print_csv(rows: abc.Sequence[pb.UsageSum], dimensions: abc.Sequence[Dimension], *, has_times: bool) -> None:
    """The rows with a heading; numbers as they are, times in ISO 8601."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([*(["from"] if has_times else []), *dimensions, *COUNTS])
    for row in rows:
        times = [row.start_time.ToDatetime(UTC).isoformat()] if has_times else []
        names = [_name(row, FIELDS[dimension]) for dimension in dimensions]
        writer.writerow([*times, *names, *(getattr(row, name) for name in COUNTS)])


def _rows(admin: Admin, question: pb.QueryUsageRequest) -> list[pb.UsageSum]:
    """Raises CliError where the caller may not ask for everybody's."""
    try:
        return all_pages(lambda token: _page(admin, question, token))
    except grpc.RpcError as error:
        refusal = read_refusal(error)
        if question.parent or refusal.reason != "ROLE_NOT_GRANTED":
            raise
        hint = "that is everybody's usage; name yours: evenflow usage report ORG/TEAM"
        raise CliError(str(refusal), hint=hint) from error


def _page(admin: Admin, question: pb.QueryUsageRequest, token: str) -> tuple[list[pb.UsageSum], str]:
    question.page_token = token
    response = admin.call(admin.stub.QueryUsage, question)
    return list(response.rows), response.next_page_token


def _month(text: str) -> tuple[datetime, datetime]:
    match = MONTH.fullmatch(text)
    year, month = (int(match[1]), int(match[2])) if match else (0, 0)
    if not (1 <= month <= 12 and 1970 <= year <= 9998):
        raise UsageError(f"--month: {text!r} is no month, such as 2026-11")
    begin = datetime(year, month, 1, tzinfo=UTC)
    return begin, datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC)


def _name(row: pb.UsageSum, field: str) -> str:
    """`acme/search` of a resource, the id of one that is gone."""
    value = getattr(row, field)
    assert isinstance(value, str)
    return value if field == "model" else short_name(value)


def _count(row: pb.UsageSum, field: str) -> str:
    return f"{getattr(row, field):,}"


def _heading(field: str) -> str:
    return field.removesuffix("_tokens").replace("_count", "s").replace("_", " ").upper()
