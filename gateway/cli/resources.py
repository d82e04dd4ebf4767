"""What the commands on resources share: options that mean the same for all of them, confirmation, whole lists."""

from collections import abc
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.errors import CliError, ExitCode

PAGE_SIZE = 1000
Resource = TypeVar("Resource")


class StateChoice(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"

    def to_pb(self) -> pb.State.ValueType:
        return pb.State.Value(f"STATE_{self.name}")


class ModeChoice(StrEnum):
    ENFORCE = "enforce"
    SHADOW = "shadow"
    BORROW = "borrow"

    def to_pb(self) -> pb.QuotaMode.ValueType:
        return pb.QuotaMode.Value(f"QUOTA_MODE_{self.name}")


class ReservationChoice(StrEnum):
    HARD = "hard"
    EXPECTED = "expected"

    def to_pb(self) -> pb.ReservationMode.ValueType:
        return pb.ReservationMode.Value(f"RESERVATION_MODE_{self.name}")


class StoreLossChoice(StrEnum):
    SERVE_STALE = "serve-stale"
    FAIL_CLOSED = "fail-closed"

    def to_pb(self) -> pb.StoreLossAction.ValueType:
        return pb.StoreLossAction.Value(f"STORE_LOSS_ACTION_{self.name}")


NameOption = Annotated[str | None, typer.Option("--display-name", help="A name for people.")]
StateOption = Annotated[StateChoice | None, typer.Option("--state", help="Requests of a suspended tenant are refused.")]


def _filter_option(example: str) -> Any:  # what typer.Option gives, whose type it does not tell
    """Each kind of resource has fields of its own, and so an example of its own."""
    return typer.Option("--filter", metavar="CONDITION", help=f"Such as '{example}'.")


TenantFilterOption = Annotated[str, _filter_option('state = "STATE_SUSPENDED" AND display_name = "a*"')]
KeyFilterOption = Annotated[str, _filter_option('revoke_time:* AND display_name = "a*"')]
ClassFilterOption = Annotated[str, _filter_option("rank >= 200 AND preemptible = true")]
PolicyFilterOption = Annotated[str, _filter_option('mode = "QUOTA_MODE_SHADOW" AND weight > 1')]
AuditFilterOption = Annotated[str, _filter_option('action = "apiKeys.*" AND event_time > "2026-11-01"')]
OrderOption = Annotated[str, typer.Option("--order-by", metavar="FIELDS", help="Such as 'create_time desc, name'.")]
DeletedOption = Annotated[bool, typer.Option("--deleted", help="Deleted ones, too.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def confirm(question: str, *, yes: bool) -> None:
    """Somebody has agreed: by `--yes`, or by answering. Raises CliError, after which nothing was changed."""
    if yes:
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise CliError("nothing was changed", ExitCode.REFUSED, "where nobody can be asked: --yes")


def state_text(state: pb.State.ValueType) -> str:
    return pb.State.Name(state).removeprefix("STATE_").lower()


def all_pages(fetch: abc.Callable[[str], tuple[list[Resource], str]]) -> list[Resource]:
    """Everything that `fetch(page_token)`, which returns a page and the next token, has to offer."""
    found, token = fetch("")
    while token:
        page, token = fetch(token)
        found += page
    return found
