"""`evenflow teams`: teams, the unit of weight, quota and accounting."""

from typing import Annotated, Any

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one, time_text
from gateway.cli.references import class_name, organization_name, split_team, team_name
from gateway.cli.resources import (
    PAGE_SIZE,
    DeletedOption,
    NameOption,
    OrderOption,
    StateOption,
    TenantFilterOption,
    YesOption,
    all_pages,
    confirm,
    state_text,
)
from gateway.words import short_name

app = typer.Typer(help="Teams: the unit of weight, quota and accounting.", no_args_is_help=True)

TeamArgument = Annotated[str, typer.Argument(metavar="ORG/TEAM", help="Such as acme/search.")]
ClassOption = Annotated[
    str | None, typer.Option("--default-class", help="The priority class of requests that name none.")
]
GrantOption = Annotated[
    list[str] | None,
    typer.Option("--grant-class", help="A priority class that the team's keys may ask for; repeatable."),
]
DurableOption = Annotated[
    bool | None,
    typer.Option(
        "--durable-usage/--no-durable-usage",
        help="Whether callers hear of an end only when its usage is on disk. Default: no.",
    ),
]
SharedOption = Annotated[
    bool | None,
    typer.Option(
        "--shares-prefix-cache/--no-shares-prefix-cache",
        help="Whether prompts are computed once with those of the organization's other teams that share. Default: no.",
    ),
]
SpeculationOption = Annotated[
    bool | None,
    typer.Option(
        "--speculation/--no-speculation",
        help="Whether tokens may be guessed ahead, where the engine does that. Default: yes.",
    ),
]
COLUMNS: tuple[Column[pb.Team], ...] = (
    Column("TEAM", lambda team: short_name(team.name)),
    Column("DISPLAY NAME", lambda team: team.display_name or "-"),
    Column("STATE", lambda team: state_text(team.state)),
    Column("DEFAULT CLASS", lambda team: short_name(team.default_priority_class)),
    Column("CLASSES", lambda team: ", ".join(map(short_name, team.priority_class_grants)) or "-"),
    Column("DURABLE USAGE", lambda team: "yes" if team.durable_usage else "no"),
    Column("SHARES CACHE", lambda team: "yes" if team.shares_prefix_cache else "no"),
    Column("SPECULATION", lambda team: "no" if team.speculation_disabled else "yes"),
    Column("CREATED", lambda team: time_text(team, "create_time")),
)


@app.command()
@admin_command
def create(
    admin: Admin,
    team: TeamArgument,
    display_name: NameOption = None,
    default_class: ClassOption = None,
    grant_class: GrantOption = None,
    durable_usage: DurableOption = None,
    shares_prefix_cache: SharedOption = None,
    speculation: SpeculationOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a team, with a quota policy of weight 1 and no limits."""
    parent, team_id = split_team(team)
    fresh = pb.Team(
        display_name=display_name or "",
        default_priority_class=class_name(default_class) if default_class else "",
        priority_class_grants=[class_name(item) for item in grant_class or ()],
        durable_usage=bool(durable_usage),
        shares_prefix_cache=bool(shares_prefix_cache),
        speculation_disabled=speculation is False,
    )
    request = pb.CreateTeamRequest(parent=parent, team_id=team_id, team=fresh)
    print_one(admin.call(admin.stub.CreateTeam, request), COLUMNS, output)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    org: Annotated[str, typer.Argument(metavar="[ORG]", help="Only this organization's teams.")] = "-",
    condition: TenantFilterOption = "",
    order_by: OrderOption = "",
    deleted: DeletedOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the teams of one organization or of all."""
    parent = organization_name(org)

    def fetch(token: str) -> tuple[list[pb.Team], str]:
        request = pb.ListTeamsRequest(
            parent=parent,
            page_size=PAGE_SIZE,
            page_token=token,
            filter=condition,
            order_by=order_by,
            show_deleted=deleted,
        )
        page = admin.call(admin.stub.ListTeams, request)
        return list(page.teams), page.next_page_token

    print_many(all_pages(fetch), COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, team: TeamArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one team."""
    print_one(admin.call(admin.stub.GetTeam, pb.GetTeamRequest(name=team_name(team))), COLUMNS, output)


@app.command()
@admin_command
def update(
    admin: Admin,
    team: TeamArgument,
    display_name: NameOption = None,
    state: StateOption = None,
    default_class: ClassOption = None,
    grant_class: GrantOption = None,
    durable_usage: DurableOption = None,
    shares_prefix_cache: SharedOption = None,
    speculation: SpeculationOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a team. --grant-class replaces all of its grants. Requests of a suspended team are refused."""
    given: dict[str, Any] = {  # Any: each field has a type of its own
        "display_name": display_name,
        "state": None if state is None else state.to_pb(),
        "default_priority_class": None if default_class is None else class_name(default_class),
        "priority_class_grants": None if grant_class is None else [class_name(item) for item in grant_class],
        "durable_usage": durable_usage,
        "shares_prefix_cache": shares_prefix_cache,
        "speculation_disabled": None if speculation is None else not speculation,
    }
    changed = {field: value for field, value in given.items() if value is not None}
    if not changed:
        raise UsageError("nothing to change: see evenflow teams update --help")
    mask = FieldMask(paths=list(changed))
    request = pb.UpdateTeamRequest(team=pb.Team(name=team_name(team), **changed), update_mask=mask)
    print_one(admin.call(admin.stub.UpdateTeam, request), COLUMNS, output)


@app.command()
@admin_command
def delete(admin: Admin, team: TeamArgument, yes: YesOption = False, output: OutputOption = OutputFormat.TABLE) -> None:
    """Delete a team that has no keys that work. It can be undeleted for 30 days."""
    request = pb.DeleteTeamRequest(name=team_name(team))
    confirm(f"Delete {short_name(request.name)}? Its requests are refused from then on.", yes=yes)
    print_one(admin.call(admin.stub.DeleteTeam, request), COLUMNS, output)


@app.command()
@admin_command
def undelete(admin: Admin, team: TeamArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Take a deletion back: the team is as it was before."""
    request = pb.UndeleteTeamRequest(name=team_name(team))
    print_one(admin.call(admin.stub.UndeleteTeam, request), COLUMNS, output)
