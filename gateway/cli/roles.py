"""`evenflow roles`: who may do what where, beside what a key may do by itself."""

import re
from collections import abc
from enum import StrEnum
from typing import Annotated

import grpc
import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.keys import find_key
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one, stderr, time_text
from gateway.cli.references import API_KEY, PUBLIC_ID, organization_name, team_name
from gateway.cli.resources import PAGE_SIZE, all_pages
from gateway.words import short_name

app = typer.Typer(help="Roles: who may administrate or use what.", no_args_is_help=True)

PLATFORM = "(platform)"
NONE_GIVEN = (
    "No such role was given. Without one, a team's key has `service` in its team, and a platform key is"
    " `platform-admin`, each as far as its scopes go."
)
_SUBJECT = re.compile(r"(?:jwtIssuers/)?([a-z][a-z0-9-]*)/(?:subjects/)?(.+)")


class RoleChoice(StrEnum):
    PLATFORM_ADMIN = "platform-admin"
    PLATFORM_VIEWER = "platform-viewer"
    ORG_ADMIN = "org-admin"
    TEAM_ADMIN = "team-admin"
    MEMBER = "member"
    SERVICE = "service"

    def to_pb(self) -> pb.Role.ValueType:
        return pb.Role.Value(f"ROLE_{self.name}")


PrincipalOption = Annotated[
    str, typer.Option("--to", metavar="WHO", help="A key's public id, or ISSUER/SUBJECT of a token.")
]
PlaceOption = Annotated[
    str | None, typer.Option("--at", metavar="ORG[/TEAM]", help="Where; a platform role holds everywhere.")
]
COLUMNS: tuple[Column[pb.RoleBinding], ...] = (
    Column("BINDING", lambda item: item.name.rpartition("/")[2]),
    Column("ROLE", lambda item: pb.Role.Name(item.role).removeprefix("ROLE_").lower().replace("_", "-")),
    Column("WHERE", lambda item: short_name(_place(item.name)) or PLATFORM),
    Column("WHO", lambda item: short_name(item.principal)),
    Column("SINCE", lambda item: time_text(item, "create_time")),
)


@app.command()
@admin_command
def grant(
    admin: Admin,
    role: Annotated[RoleChoice, typer.Argument(help="What for.")],
    principal: PrincipalOption,
    at: PlaceOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Give a role to a key or to the subject of a token. A key also needs the scopes: keys update KEY --scope …"""
    binding = pb.RoleBinding(principal=principal_name(principal), role=role.to_pb())
    request = pb.CreateRoleBindingRequest(parent=place_name(at), role_binding=binding)
    print_one(admin.call(admin.stub.CreateRoleBinding, request), COLUMNS, output)
    if binding.principal.startswith("apiKeys/"):
        for warning in warnings(admin, role, binding.principal.removeprefix("apiKeys/")):
            stderr().print(f"\n{warning}", style="yellow")


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    at: Annotated[str | None, typer.Argument(metavar="[ORG[/TEAM]]", help="Only there and below.")] = None,
    principal: Annotated[str | None, typer.Option("--of", metavar="WHO", help="Only this one's.")] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the roles that were given, wherever you may look."""
    parent = "organizations/-" if at is None else place_name(at)
    who = "" if principal is None else principal_name(principal)

    def fetch(token: str) -> tuple[list[pb.RoleBinding], str]:
        request = pb.ListRoleBindingsRequest(parent=parent, page_size=PAGE_SIZE, page_token=token, principal=who)
        page = admin.call(admin.stub.ListRoleBindings, request)
        return list(page.role_bindings), page.next_page_token

    bindings = all_pages(fetch)
    print_many(bindings, COLUMNS, output)
    if not bindings and output is OutputFormat.TABLE:
        stderr().print(NONE_GIVEN)


@app.command()
@admin_command
def revoke(
    admin: Admin,
    role: Annotated[RoleChoice, typer.Argument(help="Which.")],
    principal: PrincipalOption,
    at: PlaceOption = None,
) -> None:
    """Take a role away, at once."""
    parent, who = place_name(at), principal_name(principal)
    request = pb.ListRoleBindingsRequest(parent=parent, page_size=PAGE_SIZE, principal=who)
    for binding in admin.call(admin.stub.ListRoleBindings, request).role_bindings:
        if binding.role == role.to_pb() and _place(binding.name) == parent:
            admin.call(admin.stub.DeleteRoleBinding, pb.DeleteRoleBindingRequest(name=binding.name))
            return
    raise UsageError(f"{short_name(who)} is no {role} at {short_name(parent) or PLATFORM}: see evenflow roles list")


def warnings(admin: Admin, role: RoleChoice, public_id: str) -> abc.Iterator[str]:
    """What whoever gives `role` to the key should know; nothing where they may not look at it."""
    try:
        key = find_key(admin, public_id)
    except grpc.RpcError:
        return
    team = short_name(key.name.rpartition("/apiKeys/")[0])
    if team and role in (RoleChoice.PLATFORM_ADMIN, RoleChoice.PLATFORM_VIEWER):
        may = "change" if role is RoleChoice.PLATFORM_ADMIN else "read"
        yield f"{public_id} is a key of {team}: whoever has it may now {may} what is everybody's, of all organizations."
    if role is not RoleChoice.SERVICE and not any(scope.startswith("admin") for scope in key.scopes):
        scopes = " ".join(f"--scope {scope}" for scope in (*key.scopes, "admin.read"))
        yield (
            f"Its scopes ({', '.join(key.scopes)}) do not let it use the role to read or change anything:"
            f" evenflow keys update {public_id} {scopes}"
        )


def principal_name(text: str) -> str:
    """`apiKeys/9fKq…` of a key, `jwtIssuers/login/subjects/alice` of `login/alice`. Raises UsageError."""
    if match := PUBLIC_ID.fullmatch(text.removeprefix("apiKeys/")):
        return f"apiKeys/{match[1]}"
    if match := API_KEY.fullmatch(text):
        return f"apiKeys/{match[3]}"
    if match := _SUBJECT.fullmatch(text):
        return f"jwtIssuers/{match[1]}/subjects/{match[2]}"
    raise UsageError(f"{text!r} is nobody: write a key's public id or ISSUER/SUBJECT")


def place_name(text: str | None) -> str:
    """The resource name of an organization or a team; empty for the platform. Raises UsageError."""
    if text is None:
        return ""
    return team_name(text) if "/" in text.removeprefix("organizations/") else organization_name(text)


def _place(binding: str) -> str:
    return f"/{binding}".rpartition("/roleBindings/")[0].removeprefix("/")
