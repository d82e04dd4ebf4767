"""`evenflow orgs`: organizations, the roots of the tenant tree."""

from typing import Annotated

import typer
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.command import Admin, admin_command
from gateway.cli.errors import UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_many, print_one, time_text
from gateway.cli.references import organization_name
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

app = typer.Typer(help="Organizations: the roots of the tenant tree.", no_args_is_help=True)

OrganizationArgument = Annotated[str, typer.Argument(metavar="ORG", help="Such as acme.")]
COLUMNS: tuple[Column[pb.Organization], ...] = (
    Column("ORGANIZATION", lambda org: short_name(org.name)),
    Column("DISPLAY NAME", lambda org: org.display_name or "-"),
    Column("STATE", lambda org: state_text(org.state)),
    Column("CREATED", lambda org: time_text(org, "create_time")),
)


@app.command()
@admin_command
def create(
    admin: Admin, org: OrganizationArgument, display_name: NameOption = None, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Create an organization, with a quota policy of weight 1 and no limits."""
    organization_id = short_name(organization_name(org))
    request = pb.CreateOrganizationRequest(
        organization_id=organization_id, organization=pb.Organization(display_name=display_name or "")
    )
    print_one(admin.call(admin.stub.CreateOrganization, request), COLUMNS, output)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    condition: TenantFilterOption = "",
    order_by: OrderOption = "",
    deleted: DeletedOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List all organizations."""
    wanted = pb.ListOrganizationsRequest(filter=condition, order_by=order_by, show_deleted=deleted)
    print_many(list_organizations(admin, wanted), COLUMNS, output)


@app.command()
@admin_command
def show(admin: Admin, org: OrganizationArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Show one organization."""
    request = pb.GetOrganizationRequest(name=organization_name(org))
    print_one(admin.call(admin.stub.GetOrganization, request), COLUMNS, output)


@app.command()
@admin_command
def update(
    admin: Admin,
    org: OrganizationArgument,
    display_name: NameOption = None,
    state: StateOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change an organization. Requests of a suspended one are refused; nothing is deleted."""
    organization, mask = pb.Organization(name=organization_name(org)), FieldMask()
    if display_name is not None:
        organization.display_name = display_name
        mask.paths.append("display_name")
    if state is not None:
        organization.state = state.to_pb()
        mask.paths.append("state")
    if not mask.paths:
        raise UsageError("nothing to change: give --display-name or --state")
    request = pb.UpdateOrganizationRequest(organization=organization, update_mask=mask)
    print_one(admin.call(admin.stub.UpdateOrganization, request), COLUMNS, output)


@app.command()
@admin_command
def delete(
    admin: Admin, org: OrganizationArgument, yes: YesOption = False, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Delete an organization that has no teams. It can be undeleted for 30 days."""
    request = pb.DeleteOrganizationRequest(name=organization_name(org))
    confirm(f"Delete {short_name(request.name)}? Its requests are refused from then on.", yes=yes)
    print_one(admin.call(admin.stub.DeleteOrganization, request), COLUMNS, output)


@app.command()
@admin_command
def undelete(admin: Admin, org: OrganizationArgument, output: OutputOption = OutputFormat.TABLE) -> None:
    """Take a deletion back: the organization is as it was before."""
    request = pb.UndeleteOrganizationRequest(name=organization_name(org))
    print_one(admin.call(admin.stub.UndeleteOrganization, request), COLUMNS, output)


def list_organizations(admin: Admin, wanted: pb.ListOrganizationsRequest) -> list[pb.Organization]:
    """All that `wanted` asks for."""

    def fetch(token: str) -> tuple[list[pb.Organization], str]:
        request = pb.ListOrganizationsRequest(page_size=PAGE_SIZE, page_token=token)
        request.MergeFrom(wanted)
        page = admin.call(admin.stub.ListOrganizations, request)
        return list(page.organizations), page.next_page_token

    return all_pages(fetch)
