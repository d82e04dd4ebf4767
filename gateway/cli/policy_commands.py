"""`evenflow quota-policies apply`, `simulate` and `export`: many policies at once, from a file and into one."""

from collections import abc
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import grpc
import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import CliError, read_refusal
from gateway.cli.limits import parse_duration
from gateway.cli.output import OutputFormat, OutputOption, print_data, stdout, to_data
from gateway.cli.policy_changes import created_tenants, difference_lines, removal_lines, summary
from gateway.cli.policy_export import export_text
from gateway.cli.policy_file import PolicyFile, read_policy_file
from gateway.cli.quota_policies import app
from gateway.cli.served_models import models_of, tell_of_unserved
from gateway.cli.simulation import print_simulation

__all__ = ["app"]

SIMULATION_TIMEOUT_S = 600.0
FileOption = Annotated[Path, typer.Option("--file", "-f", metavar="FILE", help="Policies as YAML.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Check everything and show what would change.")]
NoCreateOption = Annotated[
    bool, typer.Option("--no-create", help="Refuse a file with an organization or team that does not exist.")
]


@app.command()
@admin_command
def apply(
    admin: Admin,
    file: FileOption,
    dry_run: DryRunOption = False,
    etag: Annotated[str, typer.Option("--etag", help="Of a dry run: refused if anything was changed since.")] = "",
    no_create: NoCreateOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make classes, organizations, teams, weights and limits as FILE says, all or nothing.

    What the file leaves out stays as it is; a list that it names is the whole list. Applying a file a second time
    changes nothing.
    """
    policies = read_policy_file(file)
    if no_create:
        # What was looked at is what is applied: its etag refuses everything that came in between.
        etag = _check_that_nothing_is_created(admin, policies, etag)
    response = _apply(admin, policies, etag, dry_run=dry_run)
    tell_of_unserved(admin, models_of(*(entry.quota_policy for entry in policies.entries)))
    if output is not OutputFormat.TABLE:
        print_data(to_data(response), output)
        return
    console = stdout()
    for change in response.changes:
        for line in difference_lines(change):
            console.print(line, soft_wrap=True)
    if not response.changes:
        console.print("Nothing differs.")
    elif dry_run:
        console.print(f"Nothing was changed: this is what would be, {summary(response.changes)}.", soft_wrap=True)
        console.print(f"To make exactly this: --etag {response.etag}")
    else:
        console.print(f"{summary(response.changes)}. In force.", soft_wrap=True)


@app.command()
@admin_command
def simulate(
    admin: Admin,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Policies as for apply. Left out: those of now.")
    ] = None,
    window: Annotated[str, typer.Option("--window", metavar="TIME", help="How far to look back, at most 7d.")] = "24h",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show who would have waited, failed or gained if FILE had been in force. Changes nothing.

    The ledger's requests and the refusals on record are presented again, to the limits as they are and as they would
    be; who comes through is served by the simulator, with the costs that the engine has measured. Takes up to minutes.
    """
    policies = PolicyFile([], []) if file is None else read_policy_file(file)
    request = pb.SimulateQuotaPoliciesRequest(entries=policies.entries)
    request.window.FromTimedelta(parse_duration(window))
    with _explained(policies):
        response = admin.call(admin.stub.SimulateQuotaPolicies, request, SIMULATION_TIMEOUT_S)
    if output is not OutputFormat.TABLE:
        print_data(to_data(response), output)
        return
    console = stdout()
    print_simulation(console, response)
    for line in _removals(admin, policies):
        console.print(f"note: {line}", soft_wrap=True)


@app.command()
@admin_command
def export(
    admin: Admin,
    organization: Annotated[
        str | None, typer.Argument(metavar="[ORG]", help="Only this one, without classes. Left out: everything.")
    ] = None,
) -> None:
    """Print what is in force as a file for `apply`, which would change nothing."""
    typer.echo(export_text(admin, organization), nl=False)


def _apply(admin: Admin, policies: PolicyFile, etag: str, *, dry_run: bool) -> pb.ApplyPoliciesResponse:
    request = pb.ApplyPoliciesRequest(entries=policies.entries, etag=etag, validate_only=dry_run)
    with _explained(policies):
        return admin.call(admin.stub.ApplyPolicies, request)


def _check_that_nothing_is_created(admin: Admin, policies: PolicyFile, etag: str) -> str:
    """The etag of what was looked at. Raises CliError for an organization or team that applying would make."""
    response = _apply(admin, policies, etag, dry_run=True)
    if created := created_tenants(response.changes):
        raise CliError(f"--no-create: there is no {', no '.join(created)}; nothing was changed")
    return response.etag


def _removals(admin: Admin, policies: PolicyFile) -> list[str]:
    """What the file takes away; nothing is known of it where only an administrator higher up may apply the file."""
    if not policies.entries:
        return []
    try:
        return removal_lines(_apply(admin, policies, "", dry_run=True).changes)
    except grpc.RpcError as error:
        if read_refusal(error).code is grpc.StatusCode.PERMISSION_DENIED:
            return []
        raise


@contextmanager
def _explained(policies: PolicyFile) -> abc.Iterator[None]:
    """What the server refuses about an entry is told at its place in the file."""
    try:
        yield
    except grpc.RpcError as error:
        explained = policies.explain(error)
        if explained is None:
            raise
        raise explained from error
