"""A team, which is what is weighed and limited: its limits with what is left, its keys, its use; and its changes."""

from collections import abc
from uuid import UUID

from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response
from uuid_utils import uuid7

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.forms import Form, told
from gateway.console.limits_left import own_first, team_limits
from gateway.console.names import node_of, page_of
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.tenant_states import DONE, state_asked
from gateway.console.tenant_use import read_use
from gateway.console.tree import weight_of
from gateway.console.visit import Visit
from gateway.errors import GatewayError
from gateway.store.records import DEFAULT_CLASS, ResourcePath

KEYS_PER_PAGE = 50
FLAGS = ("durable_usage", "shares_prefix_cache", "speculation_disabled")
EDITED = ("display_name", "default_priority_class", "priority_class_grants", *FLAGS)
FIELD_BY_PATH = {
    "team_id": "id",
    "team.display_name": "display_name",
    "team.default_priority_class": "default_class",
    "team.priority_class_grants": "classes",
}


async def show(visit: Visit) -> Response:
    path = node_of(visit)
    team = await visit.call(AdminServicer.GetTeam, pb.GetTeamRequest(name=path.name))
    keys = await visit.call(
        AdminServicer.ListApiKeys,
        pb.ListApiKeysRequest(
            parent=path.name,
            page_size=KEYS_PER_PAGE,
            page_token=visit.query("page"),
            order_by="create_time desc",
            show_deleted=visit.query("deleted") == "on",
        ),
    )
    record = visit.verdict.snapshot.teams.get(UUID(team.uid))
    above = ResourcePath(path.organization)
    return await visit.render(
        "team.html",
        team=team,
        path=path,
        keys=keys,
        shows_deleted=visit.query("deleted") == "on",
        limits=[] if record is None else own_first(await team_limits(visit.parts.admission, record)),
        weight=weight_of(visit.verdict.snapshot, team),
        use=await read_use(visit, path.name),
        may_manage=visit.may(Action.MANAGE_TENANCY, above),
        may_make_keys=visit.may(Action.MANAGE_KEYS, path),
        may_set_limits=visit.may(Action.MANAGE_QUOTA, above),
    )


async def ask_for_new(visit: Visit) -> Response:
    visit.authorize(Action.MANAGE_TENANCY, node_of(visit))
    return await _new(visit, Form({"request_id": [str(uuid7())], "default_class": [DEFAULT_CLASS]}))


async def create(visit: Visit) -> Response:
    form, parent = visit.form, node_of(visit)
    request = pb.CreateTeamRequest(
        parent=parent.name, team_id=form.text("id"), team=_message(form), request_id=form.text("request_id")
    )
    try:
        made = await visit.call(AdminServicer.CreateTeam, request)
    except GatewayError as error:
        return await _new(visit, form, error)
    slug = made.name.rpartition("/")[2]
    return visit.redirect(
        f"{ROOT}/tenants/{parent.organization}/{slug}", f"The team {slug} was made. Next: its first key."
    )


async def ask_for_changes(visit: Visit) -> Response:
    visit.authorize(Action.MANAGE_TENANCY, ResourcePath(node_of(visit).organization))
    team = await visit.call(AdminServicer.GetTeam, pb.GetTeamRequest(name=node_of(visit).name))
    values: dict[str, abc.Sequence[str]] = {
        "display_name": [team.display_name],
        "default_class": [team.default_priority_class.rpartition("/")[2]],
        "classes": [name.rpartition("/")[2] for name in team.priority_class_grants],
        "etag": [team.etag],
    }
    values |= {name: ["on"] for name in FLAGS if getattr(team, name)}
    return await _edit(visit, Form(values))


async def change(visit: Visit) -> Response:
    form, path = visit.form, node_of(visit)
    message = _message(form)
    message.name, message.etag = path.name, form.text("etag")
    try:
        await visit.call(
            AdminServicer.UpdateTeam, pb.UpdateTeamRequest(team=message, update_mask=FieldMask(paths=EDITED))
        )
    except GatewayError as error:
        return await _edit(visit, form, error)
    return _back(visit, "The team was changed.")


async def set_state(visit: Visit) -> Response:
    state = state_asked(visit.form)
    message = pb.Team(name=node_of(visit).name, state=state, etag=visit.form.text("etag"))
    await visit.call(
        AdminServicer.UpdateTeam, pb.UpdateTeamRequest(team=message, update_mask=FieldMask(paths=["state"]))
    )
    return _back(visit, f"The team is {DONE[state]}.")


async def delete(visit: Visit) -> Response:
    request = pb.DeleteTeamRequest(name=node_of(visit).name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.DeleteTeam, request)
    return _back(visit, "The team was deleted. It can be brought back until it is purged.")


async def undelete(visit: Visit) -> Response:
    request = pb.UndeleteTeamRequest(name=node_of(visit).name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.UndeleteTeam, request)
    return _back(visit, "The team is back.")


def _message(form: Form) -> pb.Team:
    return pb.Team(
        display_name=form.text("display_name"),
        default_priority_class=_class_name(form.text("default_class")),
        priority_class_grants=map(_class_name, form.all("classes")),
        durable_usage=form.is_on("durable_usage"),
        shares_prefix_cache=form.is_on("shares_prefix_cache"),
        speculation_disabled=form.is_on("speculation_disabled"),
    )


def _class_name(slug: str) -> str:
    return f"priorityClasses/{slug}" if slug else ""


def _back(visit: Visit, notice: str) -> Response:
    return visit.redirect(f"{ROOT}{page_of(node_of(visit))}", notice)


async def _new(visit: Visit, form: Form, error: GatewayError | None = None) -> Response:
    return await _asked(visit, "team_new.html", form, error)


async def _edit(visit: Visit, form: Form, error: GatewayError | None = None) -> Response:
    return await _asked(visit, "team_edit.html", form, error)


async def _asked(visit: Visit, template: str, form: Form, error: GatewayError | None) -> Response:
    classes = await class_names(visit)
    status, problems = told(error, FIELD_BY_PATH)
    default = form.text("default_class")
    return await visit.render(
        template,
        status,
        form=form,
        problems=problems,
        path=node_of(visit),
        class_names=classes,
        class_options=[(name, name) for name in dict.fromkeys([*classes, default]) if name],
    )


async def class_names(visit: Visit) -> list[str]:
    """Of all priority classes, the one that is served first first."""
    answer = await visit.call(AdminServicer.ListPriorityClasses, pb.ListPriorityClassesRequest(page_size=1000))
    classes = sorted(answer.priority_classes, key=lambda each: (each.rank, each.name))
    return [each.name.rpartition("/")[2] for each in classes]


ROUTES = (
    ConsoleRoute("GET", "/tenants/{org}/-/teams/new", Action.MANAGE_TENANCY, ask_for_new),
    ConsoleRoute("POST", "/tenants/{org}/-/teams/new", Action.MANAGE_TENANCY, create),
    ConsoleRoute("GET", "/tenants/{org}/{team}", Action.READ, show),
    ConsoleRoute("GET", "/tenants/{org}/{team}/edit", Action.MANAGE_TENANCY, ask_for_changes),
    ConsoleRoute("POST", "/tenants/{org}/{team}/edit", Action.MANAGE_TENANCY, change),
    ConsoleRoute("POST", "/tenants/{org}/{team}/state", Action.MANAGE_TENANCY, set_state),
    ConsoleRoute("POST", "/tenants/{org}/{team}/delete", Action.MANAGE_TENANCY, delete),
    ConsoleRoute("POST", "/tenants/{org}/{team}/undelete", Action.MANAGE_TENANCY, undelete),
)
