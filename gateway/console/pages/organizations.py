"""An organization: what it is, its teams, its limits with what is left of them; made, changed, suspended, deleted."""

from uuid import UUID

from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response
from uuid_utils import uuid7

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.forms import Form, told
from gateway.console.limits_left import organization_limits, own_first
from gateway.console.names import node_of, page_of
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.tenant_states import DONE, state_asked
from gateway.console.tenant_use import read_use
from gateway.console.tree import weight_of
from gateway.console.visit import Visit
from gateway.errors import GatewayError
from gateway.store.identity import PLATFORM
from gateway.store.records import ResourcePath

PAGE_SIZE = 100
FIELD_BY_PATH = {"organization_id": "id", "organization.display_name": "display_name"}


async def show(visit: Visit) -> Response:
    path = node_of(visit)
    organization = await visit.call(AdminServicer.GetOrganization, pb.GetOrganizationRequest(name=path.name))
    teams = await visit.call(
        AdminServicer.ListTeams,
        pb.ListTeamsRequest(
            parent=path.name,
            page_size=PAGE_SIZE,
            page_token=visit.query("page"),
            order_by="name",
            show_deleted=visit.query("deleted") == "on",
        ),
    )
    snapshot = visit.verdict.snapshot
    record = snapshot.organizations.get(UUID(organization.uid))
    return await visit.render(
        "organization.html",
        organization=organization,
        slug=path.organization,
        teams=teams,
        shows_deleted=visit.query("deleted") == "on",
        limits=[] if record is None else own_first(await organization_limits(visit.parts.admission, record)),
        weight_of=lambda resource: weight_of(snapshot, resource),
        use=await read_use(visit, path.name),
        may_manage=visit.may(Action.MANAGE_TENANCY, PLATFORM),
        may_make_teams=visit.may(Action.MANAGE_TENANCY, path),
        may_set_limits=visit.may(Action.MANAGE_QUOTA, PLATFORM),
    )


async def ask_for_new(visit: Visit) -> Response:
    return await _new(visit, Form({"request_id": [str(uuid7())]}))


async def create(visit: Visit) -> Response:
    form = visit.form
    try:
        made = await visit.call(
            AdminServicer.CreateOrganization,
            pb.CreateOrganizationRequest(
                organization_id=form.text("id"),
                organization=pb.Organization(display_name=form.text("display_name")),
                request_id=form.text("request_id"),
            ),
        )
    except GatewayError as error:
        return await _new(visit, form, error)
    slug = made.name.rpartition("/")[2]
    return visit.redirect(f"{ROOT}/tenants/{slug}", f"The organization {slug} was made. Next: its first team.")


async def ask_for_changes(visit: Visit) -> Response:
    name = node_of(visit).name
    organization = await visit.call(AdminServicer.GetOrganization, pb.GetOrganizationRequest(name=name))
    return await _edit(visit, Form({"display_name": [organization.display_name], "etag": [organization.etag]}))


async def change(visit: Visit) -> Response:
    form, path = visit.form, node_of(visit)
    message = pb.Organization(name=path.name, display_name=form.text("display_name"), etag=form.text("etag"))
    try:
        await visit.call(
            AdminServicer.UpdateOrganization,
            pb.UpdateOrganizationRequest(organization=message, update_mask=FieldMask(paths=["display_name"])),
        )
    except GatewayError as error:
        return await _edit(visit, form, error)
    return _back(visit, path, "The organization was changed.")


async def set_state(visit: Visit) -> Response:
    path, state = node_of(visit), state_asked(visit.form)
    message = pb.Organization(name=path.name, state=state, etag=visit.form.text("etag"))
    await visit.call(
        AdminServicer.UpdateOrganization,
        pb.UpdateOrganizationRequest(organization=message, update_mask=FieldMask(paths=["state"])),
    )
    return _back(visit, path, f"The organization is {DONE[state]}.")


async def delete(visit: Visit) -> Response:
    path = node_of(visit)
    request = pb.DeleteOrganizationRequest(name=path.name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.DeleteOrganization, request)
    return _back(visit, path, "The organization was deleted. It can be brought back until it is purged.")


async def undelete(visit: Visit) -> Response:
    path = node_of(visit)
    request = pb.UndeleteOrganizationRequest(name=path.name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.UndeleteOrganization, request)
    return _back(visit, path, "The organization is back.")


def _back(visit: Visit, path: ResourcePath, notice: str) -> Response:
    return visit.redirect(f"{ROOT}{page_of(path)}", notice)


async def _new(visit: Visit, form: Form, error: GatewayError | None = None) -> Response:
    status, problems = told(error, FIELD_BY_PATH)
    return await visit.render("organization_new.html", status, form=form, problems=problems)


async def _edit(visit: Visit, form: Form, error: GatewayError | None = None) -> Response:
    status, problems = told(error, FIELD_BY_PATH)
    slug = node_of(visit).organization
    return await visit.render("organization_edit.html", status, form=form, problems=problems, slug=slug)


ROUTES = (
    ConsoleRoute("GET", "/tenants/-/new", Action.MANAGE_TENANCY, ask_for_new, is_platform=True),
    ConsoleRoute("POST", "/tenants/-/new", Action.MANAGE_TENANCY, create, is_platform=True),
    ConsoleRoute("GET", "/tenants/{org}", Action.READ, show),
    ConsoleRoute("GET", "/tenants/{org}/-/edit", Action.MANAGE_TENANCY, ask_for_changes, is_platform=True),
    ConsoleRoute("POST", "/tenants/{org}/-/edit", Action.MANAGE_TENANCY, change, is_platform=True),
    ConsoleRoute("POST", "/tenants/{org}/-/state", Action.MANAGE_TENANCY, set_state, is_platform=True),
    ConsoleRoute("POST", "/tenants/{org}/-/delete", Action.MANAGE_TENANCY, delete, is_platform=True),
    ConsoleRoute("POST", "/tenants/{org}/-/undelete", Action.MANAGE_TENANCY, undelete, is_platform=True),
)
