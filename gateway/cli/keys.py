"""`evenflow keys`: API keys. The key itself is shown once, when it is made."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import grpc
import typer
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.api_key import NEVER_EXPIRES
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError, read_refusal
from gateway.cli.key_use import explain_key
from gateway.cli.limits import parse_duration
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one, time_text
from gateway.cli.references import api_key_name, class_name, platform_key_name, team_name
from gateway.cli.resources import PAGE_SIZE, DeletedOption, KeyFilterOption, NameOption, OrderOption, all_pages
from gateway.private_files import make_private_dir, write_private
from gateway.words import short_name

app = typer.Typer(help="API keys: made for a team, shown once, revoked for good.", no_args_is_help=True)

PLATFORM = "-"  # the parent of the keys that belong to no team
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The public id: the 12 characters after ef_live_.")]
ExpiresOption = Annotated[str | None, typer.Option("--expires", help="90d, 12h, 2027-01-31 or never.")]
ScopeOption = Annotated[
    list[str] | None, typer.Option("--scope", help="inference, quota.read, admin.read, …; repeatable.")
]
ModelOption = Annotated[list[str] | None, typer.Option("--model", help="A model it may use; repeatable.")]
ClassOption = Annotated[list[str] | None, typer.Option("--class", help="A priority class it may ask for; repeatable.")]
CidrOption = Annotated[list[str] | None, typer.Option("--cidr", help="A network it may be used from; repeatable.")]
SECRET: Column[pb.ApiKey] = Column("SECRET", lambda key: key.secret or "-")
COLUMNS: tuple[Column[pb.ApiKey], ...] = (
    Column("KEY", lambda key: key.name.rpartition("/")[2]),
    Column("TEAM", lambda key: short_name(key.name.rpartition("apiKeys/")[0].rstrip("/")) or "(platform)"),
    Column("DISPLAY NAME", lambda key: key.display_name or "-"),
    Column("SCOPES", lambda key: ", ".join(key.scopes)),
    Column("STATE", lambda key: _state_text(key)),
    Column("EXPIRES", lambda key: time_text(key, "expire_time", unset="never")),
    Column("LAST USED", lambda key: time_text(key, "last_used_time")),
)
# What most keys have not; shown of one that has it.
DETAILS: tuple[Column[pb.ApiKey], ...] = (
    Column("MODELS", lambda key: ", ".join(key.model_grants)),
    Column("CLASSES", lambda key: ", ".join(map(short_name, key.priority_class_grants))),
    Column("NETWORKS", lambda key: ", ".join(key.ip_cidrs)),
    Column("REVOKED", lambda key: time_text(key, "revoke_time", unset="")),
    Column("REASON", lambda key: key.revoke_reason),
    Column("DELETED", lambda key: time_text(key, "delete_time", unset="")),
    Column("GONE FROM", lambda key: time_text(key, "purge_time", unset="")),
)


@dataclass(frozen=True, slots=True)
class Grants:
    """What the options of `create` and `update` say about a key; None leaves it as it is."""

    scopes: list[str] | None
    models: list[str] | None
    classes: list[str] | None
    cidrs: list[str] | None
    expires: str | None
    display_name: str | None

    def apply(self, key: pb.ApiKey) -> FieldMask:
        """`key` holds what was given; returns the fields that were. Raises UsageError."""
        mask = FieldMask()
        if self.display_name is not None:
            key.display_name = self.display_name
            mask.paths.append("display_name")
        if self.expires is not None:
            key.expire_time.CopyFrom(parse_expiry(self.expires, datetime.now(UTC)))
            mask.paths.append("expire_time")
        lists = (
            ("scopes", self.scopes),
            ("model_grants", self.models),
            ("priority_class_grants", None if self.classes is None else [class_name(item) for item in self.classes]),
            ("ip_cidrs", self.cidrs),
        )
        for field, values in lists:
            if values is not None:
                getattr(key, field).extend(values)
                mask.paths.append(field)
        return mask


@app.command()
@admin_command
def create(
    admin: Admin,
    team: Annotated[
        str | None, typer.Option("--team", metavar="ORG/TEAM", help="Whose key it is, such as acme/search.")
    ] = None,
    platform: Annotated[
        bool, typer.Option("--platform", help="Instead, an administrator's key: of no team, by default for everything.")
    ] = False,
    display_name: NameOption = None,
    expires: ExpiresOption = None,
    scope: ScopeOption = None,
    model: ModelOption = None,
    grant_class: ClassOption = None,
    cidr: CidrOption = None,
    save: Annotated[
        bool, typer.Option("--save", help="Also keep it for `evenflow chat`, in the data directory.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Make a key and show it, this once. It expires after 90 days unless --expires says otherwise."""
    if platform and save:
        raise UsageError("--save keeps a key for evenflow chat, and a platform key is for no team")
    request = pb.CreateApiKeyRequest(parent=_parent_of_new(team, platform=platform))
    Grants(scope, model, grant_class, cidr, expires, display_name).apply(request.api_key)
    key = admin.call(admin.stub.CreateApiKey, request)
    if save:
        make_private_dir(admin.data_dir.path)
        write_private(admin.data_dir.api_key, key.secret + "\n")
    print_key(key, output, SECRET)
    if output is OutputFormat.TABLE:
        explain_key(admin.connection.address, key, kept_in=[admin.data_dir.api_key] if save else [])


def _parent_of_new(team: str | None, *, platform: bool) -> str:
    if platform == (team is not None):
        raise UsageError("say whose key it is: --team ORG/TEAM, or --platform for one of an administrator")
    return PLATFORM if team is None else team_name(team)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    team: Annotated[str | None, typer.Option("--team", metavar="ORG/TEAM", help="Only this team's keys.")] = None,
    platform: Annotated[bool, typer.Option("--platform", help="The administrators' keys instead.")] = False,
    condition: KeyFilterOption = "",
    order_by: OrderOption = "",
    deleted: DeletedOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the keys of one team or of all teams, or those of the platform."""
    if platform and team is not None:
        raise UsageError("a platform key belongs to no team: give --platform or --team")
    parent = PLATFORM if platform else team_name(team or "-/-")

    def fetch(token: str) -> tuple[list[pb.ApiKey], str]:
        request = pb.ListApiKeysRequest(
            parent=parent,
            page_size=PAGE_SIZE,
            page_token=token,
            filter=condition,
            order_by=order_by,
            show_deleted=deleted,
        )
        page = admin.call(admin.stub.ListApiKeys, request)
        return list(page.api_keys), page.next_page_token

    print_many(all_pages(fetch), COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, key: KeyArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show what a key may do. The key itself is stored nowhere."""
    print_key(find_key(admin, key), output)


@app.command()
@admin_command
def update(
    admin: Admin,
    key: KeyArgument,
    display_name: NameOption = None,
    expires: ExpiresOption = None,
    scope: ScopeOption = None,
    model: ModelOption = None,
    grant_class: ClassOption = None,
    cidr: CidrOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a key. A list that is given replaces the old one as a whole."""
    changed = pb.ApiKey(name=find_key(admin, key).name)
    mask = Grants(scope, model, grant_class, cidr, expires, display_name).apply(changed)
    if not mask.paths:
        raise UsageError("nothing to change: see evenflow keys update --help")
    request = pb.UpdateApiKeyRequest(api_key=changed, update_mask=mask)
    print_key(admin.call(admin.stub.UpdateApiKey, request), output)


def print_key(key: pb.ApiKey, output: OutputFormat, *first: Column[pb.ApiKey]) -> None:
    """One key with what it has of `DETAILS`; `first` before everything else."""
    print_one(key, (*first, *COLUMNS, *(column for column in DETAILS if column.text(key))), output)


def find_key(admin: Admin, reference: str) -> pb.ApiKey:
    """The key that a person means by `reference`: a team's or, where no team has it, a platform key."""
    platform_name = platform_key_name(reference)
    try:
        return admin.call(admin.stub.GetApiKey, pb.GetApiKeyRequest(name=api_key_name(reference)))
    except grpc.RpcError as error:
        if not platform_name or read_refusal(error).code is not grpc.StatusCode.NOT_FOUND:
            raise
    return admin.call(admin.stub.GetApiKey, pb.GetApiKeyRequest(name=platform_name))


def parse_expiry(text: str, now: datetime) -> Timestamp:
    """`90d` from `now`, the beginning of a day in UTC, or never. Raises UsageError."""
    stamp = Timestamp()
    try:
        day = None if text == "never" else datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
        stamp.FromDatetime(NEVER_EXPIRES if day is None else day)
    except ValueError:
        stamp.FromDatetime(now + parse_duration(text))
    return stamp


def _state_text(key: pb.ApiKey) -> str:
    if key.HasField("delete_time"):
        return "deleted"
    if key.HasField("revoke_time"):
        return "revoked"
    has_expired = key.HasField("expire_time") and key.expire_time.ToDatetime(tzinfo=UTC) <= datetime.now(UTC)
    if has_expired:
        return "expired"
    ending = [secret for secret in key.secrets if secret.HasField("expire_time")]
    return f"active, old secret until {time_text(ending[0], 'expire_time')}" if ending else "active"
