"""What the commands on resources share: options that mean the same for all of them, states as words, whole lists."""

from collections import abc
from enum import StrEnum
from typing import Annotated, TypeVar

import typer

from evenflow.admin.v1 import admin_pb2 as pb

PAGE_SIZE = 1000
Resource = TypeVar("Resource")


class StateChoice(StrEnum):
    ACTIVE = "active"
    SUSPENDED = "suspended"

    def to_pb(self) -> pb.State.ValueType:
        return pb.State.Value(f"STATE_{self.name}")


class StoreLossChoice(StrEnum):
    SERVE_STALE = "serve-stale"
    FAIL_CLOSED = "fail-closed"

    def to_pb(self) -> pb.StoreLossAction.ValueType:
        return pb.StoreLossAction.Value(f"STORE_LOSS_ACTION_{self.name}")


NameOption = Annotated[str | None, typer.Option("--display-name", help="A name for people.")]
StateOption = Annotated[StateChoice | None, typer.Option("--state", help="Requests of a suspended tenant are refused.")]


def state_text(state: pb.State.ValueType) -> str:
    return pb.State.Name(state).removeprefix("STATE_").lower()


def all_pages(fetch: abc.Callable[[str], tuple[list[Resource], str]]) -> list[Resource]:
    """Everything that `fetch(page_token)`, which returns a page and the next token, has to offer."""
    found, token = fetch("")
    while token:
        page, token = fetch(token)
        found += page
    return found
