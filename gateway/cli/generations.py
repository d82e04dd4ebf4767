"""`evenflow generations`: where one stands, and an early end for those of a key or a team."""

from collections import abc
from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from gateway.cli.chat import ApiKeyOption
from gateway.cli.command import AddressOption, Admin, DataDirOption, admin_command, command
from gateway.cli.connection import CALL_TIMEOUT_S, Target, connect, find_address, find_api_key
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_data, print_one, stdout
from gateway.cli.references import api_key_name, team_name
from gateway.cli.resources import YesOption, confirm
from gateway.cli.security import CaCertOption, ClientCertOption, ClientKeyOption, Security

app = typer.Typer(help="Generations: where one stands, and how to end some.", no_args_is_help=True)

COLUMNS: tuple[Column[pb.GetGenerationResponse], ...] = (
    Column("GENERATION", lambda found: found.generation_id),
    Column("REQUEST ID", lambda found: found.request_id or "-"),
    Column("MODEL", lambda found: found.model),
    Column("STATE", lambda found: _word(pb.GenerationState.Name(found.state), "GENERATION_STATE_")),
    Column("QUEUE", lambda found: _queue_text(found)),
    Column("END", lambda found: _end_text(found)),
    Column("INPUT TOKENS", lambda found: str(found.usage.input_tokens)),
    Column("OUTPUT TOKENS", lambda found: str(found.usage.output_tokens)),
    Column("BILLED TOKENS", lambda found: str(found.usage.billed_tokens)),
    Column("QUEUED FOR", lambda found: f"{found.timings.queue.ToTimedelta().total_seconds():.2f} s"),
    Column("TEXT", lambda found: found.outputs[0].text if found.outputs else "not kept"),
)


@app.command()
@command
def get(
    generation: Annotated[str, typer.Argument(metavar="ID", help="A generation id, or with --request-id your own.")],
    request_id: Annotated[bool, typer.Option("--request-id", help="ID is the request id that was sent.")] = False,
    address: AddressOption = None,
    data_dir: DataDirOption = None,
    api_key_file: ApiKeyOption = None,
    ca_cert: CaCertOption = None,
    client_cert: ClientCertOption = None,
    client_key: ClientKeyOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show where a generation of one's own team stands, or what it used."""
    target = Target(address, DataDir.at(data_dir), api_key_file, Security(ca_cert, client_cert, client_key))
    name = {"request_id" if request_id else "generation_id": generation}
    with connect(find_address(target), find_api_key(target), target.security) as connection:
        found = GenerationServiceStub(connection.channel).GetGeneration(
            pb.GetGenerationRequest(**name), metadata=connection.metadata, timeout=CALL_TIMEOUT_S
        )
    print_one(found, COLUMNS, output)


@app.command()
@admin_command
def cancel(
    admin: Admin,
    generations: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Generation ids.")] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="KEY", help="Everything that a key has running.")] = None,
    team: Annotated[
        str | None, typer.Option("--team", metavar="TEAM", help="Everything that a team has running.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it goes into the audit log.")] = "",
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """End running generations, on every gateway. What was computed is billed."""
    if sum(map(bool, (generations, key, team))) != 1:
        raise UsageError("say what to end: ids, or --key, or --team")
    request = admin_pb2.CancelGenerationsRequest(
        generation_ids=generations or (),
        api_key="" if key is None else api_key_name(key),
        team="" if team is None else team_name(team),
        reason=reason,
        validate_only=True,
    )
    here = admin.call(admin.stub.CancelGenerations, request)
    what = "these generations" if generations else f"what {key or team} has running"
    confirm(f"End {what} ({len(here.generation_ids)} on this gateway, and whatever others have)?", yes=yes)
    request.validate_only = False
    _print_stopped(admin.call(admin.stub.CancelGenerations, request).generation_ids, output)


def _print_stopped(generation_ids: abc.Sequence[str], output: OutputFormat) -> None:
    if output is not OutputFormat.TABLE:
        print_data(list(generation_ids), output)
        return
    for generation_id in generation_ids:
        stdout().print(generation_id)
    stdout().print(f"{len(generation_ids)} told to stop")


def _queue_text(found: pb.GetGenerationResponse) -> str:
    if not found.HasField("queue_update"):
        return "-"
    more = "more than " if found.queue_update.position_is_lower_bound else ""
    return f"{more}{found.queue_update.position} before it"


def _end_text(found: pb.GetGenerationResponse) -> str:
    if found.state != pb.GENERATION_STATE_FINISHED:
        return "-"
    return found.error_reason or _word(pb.FinishReason.Name(found.finish_reason), "FINISH_REASON_")


def _word(name: str, prefix: str) -> str:
    return name.removeprefix(prefix).lower()
