"""`evenflow queue`: what the engines have not ended yet, and why a request waits."""

from collections import abc
from enum import StrEnum
from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.output import Column, OutputFormat, OutputOption, print_data, print_many, print_one, stderr, to_data
from gateway.cli.references import short, team_name
from gateway.cli.resources import PAGE_SIZE

app = typer.Typer(help="What waits and runs in the engines.", no_args_is_help=True)

EVERY_TEAM = "organizations/-/teams/-"
MAX_SHOWN_AHEAD = 10
LEVELS = ("organization", "team")
REASONS = {
    "": "nothing: it is being computed, or will be in the next step",
    "order": "others are served first",
    "rows": "the batch is full (max_num_seqs): it is next when somebody ends",
    "blocks": "the KV pool has no room for its prompt: it is next when somebody ends",
    "fairness": "it yields: its tenant was served more than its share",
    "kv_pressure": "it gave its place in the step, or its memory, to others",
    "quota": "its output tokens are not granted: a quota of its key, team or organization is used up",
    "reader": "its client does not read",
    "copy": "its memory is moving between the device and the host",
}


class State(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    SWAPPING_OUT = "swapping_out"
    SWAPPED = "swapped"
    SWAPPING_IN = "swapping_in"


ENTRY_COLUMNS: tuple[Column[pb.QueueEntry], ...] = (
    Column("REQUEST", lambda entry: entry.generation_id),
    Column("TEAM", lambda entry: short(entry.team) or entry.team),
    Column("CLASS", lambda entry: entry.priority_class),
    Column("STATE", lambda entry: entry.state),
    Column("PROMPT", lambda entry: str(entry.prompt_tokens)),
    Column("OUTPUT", lambda entry: f"{entry.output_tokens}/{entry.max_output_tokens}"),
    Column("WAITED", lambda entry: seconds_text(entry.wait.ToTimedelta().total_seconds())),
    Column("AGE", lambda entry: seconds_text(entry.age.ToTimedelta().total_seconds())),
    Column("ENGINE", lambda entry: entry.engine),
)
EXPLANATION_COLUMNS: tuple[Column[pb.ExplainRequestResponse], ...] = (
    Column("REQUEST", lambda told: told.request.generation_id),
    Column("TEAM", lambda told: short(told.request.team) or told.request.team),
    Column("CLASS", lambda told: told.request.priority_class),
    Column("STATE", lambda told: told.request.state),
    Column("POSITION", lambda told: position_text(told)),
    Column("EXPECTED WAIT", lambda told: _wait_text(told)),
    Column("WAITED SO FAR", lambda told: seconds_text(told.request.wait.ToTimedelta().total_seconds())),
    Column("HELD UP BY", lambda told: REASONS.get(told.blocked_by, told.blocked_by)),
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


def position_text(told: pb.ExplainRequestResponse) -> str:
    """`3 before it`, `more than 100 before it`, or that it does not wait."""
    if told.request.state not in (State.WAITING, State.SWAPPED) or told.blocked_by in ("quota", "reader"):
        return "not in the queue"
    if told.position_is_lower_bound:
        return f"more than {told.position} before it"
    return f"{told.position} before it"


def standing_text(standing: abc.Sequence[float]) -> str:
    """`organization 1200, team 400 …`, by the policy's own measure, which can be compared between siblings only.

    A policy that knows one level counts teams.
    """
    levels = zip(LEVELS[-len(standing) :], standing, strict=False)
    counted = ", ".join(f"{level} {value:g}" for level, value in levels)
    return f"{counted} (higher than a sibling's: over-served)" if counted else "the policy does not count"


def seconds_text(length_s: float) -> str:
    return f"{length_s:.1f} s"


def _wait_text(told: pb.ExplainRequestResponse) -> str:
    if not told.HasField("estimated_wait"):
        return "-"
    about = seconds_text(told.estimated_wait.ToTimedelta().total_seconds())
    return f"more than {about}" if told.position_is_lower_bound else f"about {about}"
