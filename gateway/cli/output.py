"""What commands print: tables for people, the API's JSON form (or the same as YAML) for programs.

Knows no resource: a command names its columns. Machine formats go to stdout whole and alone; everything else a person
should read besides goes to stderr.
"""

import json
import sys
from collections import abc
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar

import typer
import yaml
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from rich import box
from rich.console import Console
from rich.table import Table

M = TypeVar("M", bound=Message)
PIPE_COLUMNS = 1000


class OutputFormat(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print the result.")]


@dataclass(frozen=True, slots=True)
class Column(Generic[M]):
    """A heading and how a resource reads under it."""

    heading: str
    text: abc.Callable[[M], str]


def print_one(message: M, columns: abc.Sequence[Column[M]], output: OutputFormat) -> None:
    """One resource: a field a line, or a JSON or YAML object."""
    if output is not OutputFormat.TABLE:
        print_data(to_data(message), output)
        return
    width = max(len(column.heading) for column in columns) + 2
    console = stdout()
    for column in columns:
        # Each line as it is: a key that was broken over two lines could not be copied.
        text = column.text(message).replace("\n", "\n" + " " * width)
        console.print(f"{column.heading.lower():<{width}}{text}", soft_wrap=True)


def print_many(messages: abc.Sequence[M], columns: abc.Sequence[Column[M]], output: OutputFormat) -> None:
    """A list of resources: a table with a line for each, or a JSON or YAML array."""
    if output is not OutputFormat.TABLE:
        print_data([to_data(message) for message in messages], output)
        return
    table = new_table(*(column.heading for column in columns))
    for message in messages:
        table.add_row(*(column.text(message) for column in columns))
    stdout().print(table)


def new_table(*headings: str) -> Table:
    """A table that breaks what is too wide for the terminal, and leaves nothing out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def print_data(data: object, output: OutputFormat) -> None:
    """`data`, plain values, as JSON or YAML on stdout."""
    if output is OutputFormat.JSON:
        sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def to_data(message: Message) -> dict[str, object]:
    """The API's JSON form (64-bit integers are strings in it), field names as the .proto spells them."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def time_text(message: Message, field: str, unset: str = "-") -> str:
    """The timestamp `field` of `message`, to the second and in UTC, or else `unset`."""
    if not message.HasField(field):
        return unset
    time = getattr(message, field)
    assert isinstance(time, Timestamp)
    return time.ToDatetime().strftime("%Y-%m-%d %H:%M:%SZ")


def stdout() -> Console:
    """For results. Markup in a value is text; a pipe has room for every column."""
    width = None if sys.stdout.isatty() else PIPE_COLUMNS
    return Console(markup=False, highlight=False, emoji=False, width=width)


def stderr() -> Console:
    """For what a person should read besides the result."""
    return Console(stderr=True, markup=False, highlight=False, emoji=False, soft_wrap=True)
