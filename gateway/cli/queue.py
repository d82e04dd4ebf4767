"""`evenflow queue`: what the engines have not ended yet, and why a request waits."""

from collections import abc
from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.output import Column, OutputFormat, OutputOption, print_data, print_many, print_one, stderr, to_data
from gateway.cli.references import team_name
from gateway.cli.resources import PAGE_SIZE
from gateway.words import (
    EVERY_TEAM,
    State,
    plain_seconds,
    position_text,
    reason_text,
    short_name,
    standings_of,
    wait_text,
)

app = typer.Typer(help="What waits and runs in the engines.", no_args_is_help=True)

MAX_SHOWN_AHEAD = 10

ENTRY_COLUMNS: tuple[Column[pb.QueueEntry], ...] = (
    Column("REQUEST", lambda entry: entry.generation_id),
    Column("TEAM", lambda entry: short_name(entry.team)),
    Column("CLASS", lambda entry: entry.priority_class),
    Column("STATE", lambda entry: entry.state),
    Column("PROMPT", lambda entry: str(entry.prompt_tokens)),
    Column("OUTPUT", lambda entry: f"{entry.output_tokens}/{entry.max_output_tokens}"),
    Column("WAITED", lambda entry: plain_seconds(entry.wait.ToTimedelta().total_seconds())),
    Column("AGE", lambda entry: plain_seconds(entry.age.ToTimedelta().total_seconds())),
    Column("ENGINE", lambda entry: entry.engine),
)
EXPLANATION_COLUMNS: tuple[Column[pb.ExplainRequestResponse], ...] = (
    Column("REQUEST", lambda told: told.request.generation_id),
    Column("TEAM", lambda told: short_name(told.request.team)),
    Column("CLASS", lambda told: told.request.priority_class),
    Column("STATE", lambda told: told.request.state),
    Column("POSITION", lambda told: _position_text(told)),
    Column("EXPECTED WAIT", lambda told: _wait_text(told)),
    Column("WAITED SO FAR", lambda told: plain_seconds(told.request.wait.ToTimedelta().total_seconds())),
    Column("HELD UP BY", lambda told: reason_text(told.blocked_by)),
    Column("POLICY", lambda told: told.scheduling_policy),
    Column("STANDING", lambda told: standing_text(told.standing)),
    Column(
        "TEAM WAS SERVED",
        lambda told: f"{told.tenant_prefill_tokens} prompt and {told.tenant_output_tokens} output tokens",
    ),
)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    team: Annotated[
        str | None, typer.Option("--team", metavar="TEAM", help="acme/search; left out: every team.")
    ] = None,
    state: Annotated[State | None, typer.Option("--state", help="Only those in this state.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the requests that have not ended, in order of arrival."""
    request = pb.ListQueueRequest(
        parent=EVERY_TEAM if team is None else team_name(team), state=state or "", page_size=PAGE_SIZE
    )
    entries: list[pb.QueueEntry] = []
    unreachable: dict[str, None] = {}
    while True:
        page = admin.call(admin.stub.ListQueue, request)
        entries += page.entries
        unreachable.update(dict.fromkeys(page.unreachable))
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    print_many(entries, ENTRY_COLUMNS, output)
    for address in unreachable:
        stderr().print(f"the engine at {address} does not answer", style="yellow")


@app.command()
@admin_command
def explain(
    admin: Admin,
    request: Annotated[
        str, typer.Argument(metavar="REQUEST", help="A generation id, as `evenflow queue list` has it.")
    ],
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell why a request stands where it stands: who is served before it, and which limit it meets."""
    told = admin.call(admin.stub.ExplainRequest, pb.ExplainRequestRequest(generation_id=request))
    if output is not OutputFormat.TABLE:
        print_data(to_data(told), output)
        return
    print_one(told, EXPLANATION_COLUMNS, output)
    if told.ahead:
        print_many(told.ahead[:MAX_SHOWN_AHEAD], ENTRY_COLUMNS, output)


def standing_text(standing: abc.Sequence[float]) -> str:
    """`organization 1200, team 400 …`, by the policy's own measure, which can be compared between siblings only."""
    counted = ", ".join(f"{level} {value:g}" for level, value in standings_of(standing))
    return f"{counted} (higher than a sibling's: over-served)" if counted else "the policy does not count"


def _position_text(told: pb.ExplainRequestResponse) -> str:
    return position_text(told.request.state, told.blocked_by, told.position, is_at_least=told.position_is_lower_bound)


def _wait_text(told: pb.ExplainRequestResponse) -> str:
    if not told.HasField("estimated_wait"):
        return "-"
    length_s = told.estimated_wait.ToTimedelta().total_seconds()
    return wait_text(length_s, is_at_least=told.position_is_lower_bound)
