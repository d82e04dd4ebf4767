"""`evenflow keys rotate`, `revoke`, `delete` and `undelete`: what ends a key or one of its secrets."""

from typing import Annotated

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import CliError
from gateway.cli.key_use import explain_key, renew_kept
from gateway.cli.keys import SECRET, KeyArgument, app, find_key, print_key
from gateway.cli.limits import parse_duration
from gateway.cli.output import OutputFormat, OutputOption, stderr, time_text
from gateway.cli.resources import YesOption, confirm

__all__ = ["app"]

GraceOption = Annotated[str, typer.Option("--grace", metavar="TIME", help="How long the old secret works on; 0s: not.")]
DiscardOption = Annotated[
    bool, typer.Option("--discard-newest", help="End the newer of two secrets, because its answer got lost.")
]


@app.command()
@admin_command
def rotate(
    admin: Admin,
    key: KeyArgument,
    grace: GraceOption = "24h",
    discard_newest: DiscardOption = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a key a new secret and show it, this once. The old one works until the grace time is over.

    Where the data directory keeps the key (admin.key, api.key), it keeps the new secret from then on.
    """
    length = parse_duration(grace)
    found = find_key(admin, key)
    name = found.name
    is_live = not (found.HasField("revoke_time") or found.HasField("delete_time"))
    if len(found.secrets) > 1 and is_live and not discard_newest:
        raise _has_two_secrets(found)
    if not length or discard_newest:
        confirm(f"Rotate {name}? What uses the secret that ends is refused at once.", yes=yes)
    request = pb.RotateApiKeyRequest(name=name, discard_newest=discard_newest)
    request.grace.FromTimedelta(length)
    rotated = admin.call(admin.stub.RotateApiKey, request)
    print_key(rotated, output, SECRET)
    files = renew_kept(admin, rotated)
    if output is OutputFormat.TABLE:
        explain_key(admin.connection.address, rotated, kept_in=files)


@app.command()
@admin_command
def revoke(
    admin: Admin,
    key: KeyArgument,
    reason: Annotated[str, typer.Option("--reason", help="Kept with the key.")] = "",
    abort_inflight: Annotated[bool, typer.Option("--abort-inflight", help="Cancel what it has running.")] = False,
    yes: YesOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Revoke a key, for good, on every gateway."""
    found = find_key(admin, key)
    if not found.HasField("revoke_time"):
        confirm(f"Revoke {found.name}? This cannot be taken back.", yes=yes)
    request = pb.RevokeApiKeyRequest(name=found.name, reason=reason, abort_inflight=abort_inflight)
    print_key(admin.call(admin.stub.RevokeApiKey, request), output)
    if found.HasField("revoke_time"):
        kept = f"; its reason stays {found.revoke_reason!r}" if reason and reason != found.revoke_reason else ""
        stderr().print(f"\nIt had been revoked before, at {time_text(found, 'revoke_time')}{kept}.", style="yellow")


@app.command()
@admin_command
def delete(admin: Admin, key: KeyArgument, yes: YesOption = False, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a key. It is refused from then on, and can be undeleted for 30 days."""
    name = find_key(admin, key).name
    confirm(f"Delete {name}?", yes=yes)
    print_key(admin.call(admin.stub.DeleteApiKey, pb.DeleteApiKeyRequest(name=name)), output)


@app.command()
@admin_command
def undelete(admin: Admin, key: KeyArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Take a deletion back. A revoked key stays revoked."""
    request = pb.UndeleteApiKeyRequest(name=find_key(admin, key).name)
    print_key(admin.call(admin.stub.UndeleteApiKey, request), output)


def _has_two_secrets(key: pb.ApiKey) -> CliError:
    """Which is what the server would say, with what to do in this command's words."""
    end = next((time_text(secret, "expire_time") for secret in key.secrets if secret.HasField("expire_time")), "-")
    return CliError(
        f"{key.name} has two secrets, of which the older one ends at {end}: wait, or discard the newest one",
        hint=f"if nobody has it: evenflow keys rotate {key.name.rpartition('/')[2]} --discard-newest",
    )
