"""Priority classes: a list, and the form that makes or changes one."""

from dataclasses import dataclass, field
from uuid import uuid4

from google.protobuf import json_format
from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import class_name
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.class_form import PLACES, form_of, merged, parts_of, read_class
from gateway.console.form_values import Fields
from gateway.console.forms import Problems
from gateway.console.last_change import last_change
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.versions import differences
from gateway.console.visit import Visit
from gateway.errors import (
    AlreadyExistsError,
    EtagMismatchError,
    InvalidFieldError,
    PreconditionError,
    UnavailableError,
    http_status,
)
from gateway.store.identity import PLATFORM
from gateway.store.records import DEFAULT_CLASS

PAGE = "/classes"
PAGE_SIZE = 200
NAMES = {f"priority_class.{path}": name for path, name in PLACES.items()} | {"priority_class_id": "name"}
CANNOT_BE_SAVED = (InvalidFieldError, PreconditionError, UnavailableError)


@dataclass(frozen=True, slots=True)
class Draft:
    """A class in the form. `name` is empty for one that is to be made."""

    name: str
    fields: Fields
    base: pb.PriorityClass
    problems: Problems = field(default_factory=Problems)

    def value(self, name: str) -> str:
        return self.fields.get(name, "")

    def problem(self, name: str) -> str:
        return self.problems.by_field.get(name, "")


async def show_all(visit: Visit) -> Response:
    request = pb.ListPriorityClassesRequest(page_size=PAGE_SIZE, page_token=visit.query("page"))
    found = await visit.call(AdminServicer.ListPriorityClasses, request)
    return await visit.render(
        "classes.html",
        classes=found.priority_classes,
        next_page=found.next_page_token,
        kept_share=sum(each.min_share for each in found.priority_classes),
        may_change=_may_change(visit),
    )


async def show_new(visit: Visit) -> Response:
    fields = {"rank": "200", "min_share": "0", "preemptible": "on"}
    return await _form_page(visit, Draft("", fields, pb.PriorityClass()))


async def create(visit: Visit) -> Response:
    fields = _fields_of(visit)
    message, errors = read_class(fields, "")
    if errors:
        return await _form_page(visit, Draft("", fields, pb.PriorityClass(), Problems(errors)), 400)
    name = fields.get("name", "").strip()
    request = pb.CreatePriorityClassRequest(
        priority_class_id=name, priority_class=message, request_id=fields.get("request_id", "")
    )
    try:
        await visit.call(AdminServicer.CreatePriorityClass, request)
    except (AlreadyExistsError, *CANNOT_BE_SAVED) as error:
        is_taken = isinstance(error, AlreadyExistsError)
        problems = Problems({"name": "is taken"}) if is_taken else Problems.of(error, NAMES)
        return await _form_page(visit, Draft("", fields, pb.PriorityClass(), problems), http_status(error))
    return visit.redirect(f"{ROOT}{PAGE}", f"There is a class {name} now. Grant it to teams and keys.")


async def show(visit: Visit) -> Response:
    found = await _read(visit)
    return await _form_page(visit, Draft(visit.segment("name"), form_of(found), found))


async def change(visit: Visit) -> Response:
    name, fields = visit.segment("name"), _fields_of(visit)
    base = _base_of(fields)
    message, errors = read_class(fields, class_name(name))
    if errors or fields.get("action") == "edit":
        return await _form_page(visit, Draft(name, fields, base, Problems(errors)), 400 if errors else 200)
    request = pb.UpdatePriorityClassRequest(
        priority_class=message, update_mask=FieldMask(paths=["*"]), request_id=fields.get("request_id", "")
    )
    try:
        saved = await visit.call(AdminServicer.UpdatePriorityClass, request)
    except EtagMismatchError:
        return await _conflict_page(visit, base, message)
    except CANNOT_BE_SAVED as error:
        return await _form_page(visit, Draft(name, fields, base, Problems.of(error, NAMES)), http_status(error))
    is_same = saved.etag == message.etag
    return visit.redirect(
        f"{ROOT}{PAGE}",
        f"The class {name} is as it was."
        if is_same
        else f"The class {name} was changed, for what is queued and running, too.",
    )


async def delete(visit: Visit) -> Response:
    name = visit.segment("name")
    request = pb.DeletePriorityClassRequest(name=class_name(name), etag=visit.form.text("etag"))
    try:
        await visit.call(AdminServicer.DeletePriorityClass, request)
    except PreconditionError as error:
        found = await _read(visit)
        problems = Problems(general=(error.message,))
        return await _form_page(visit, Draft(name, form_of(found), found, problems), http_status(error))
    return visit.redirect(f"{ROOT}{PAGE}", f"The class {name} is gone; what is queued or running in it goes on.")


async def _form_page(visit: Visit, draft: Draft, status: int = 200) -> Response:
    return await visit.render(
        "class.html",
        status,
        draft=draft,
        kept=_kept(draft.fields, draft.base),
        may_change=_may_change(visit),
        may_delete=_may_change(visit) and draft.name not in ("", DEFAULT_CLASS),
    )


async def _conflict_page(visit: Visit, base: pb.PriorityClass, yours: pb.PriorityClass) -> Response:
    theirs = await _read(visit)
    base = base if base.name else theirs
    result = merged(base, theirs, yours)
    return await visit.render(
        "conflict.html",
        409,
        title=f"Priority class {visit.segment('name')}",
        crumbs=[("Classes", PAGE), (visit.segment("name"), f"{PAGE}/{visit.segment('name')}")],
        page=f"{PAGE}/{visit.segment('name')}",
        differences=differences(*map(parts_of, (base, theirs, yours))),
        change=await last_change(visit, theirs.name),
        hidden=form_of(result) | _kept(form_of(theirs), theirs),
        may_preview=False,
    )


async def _read(visit: Visit) -> pb.PriorityClass:
    request = pb.GetPriorityClassRequest(name=class_name(visit.segment("name")))
    return await visit.call(AdminServicer.GetPriorityClass, request)


def _kept(fields: Fields, base: pb.PriorityClass) -> dict[str, str]:
    """What the form carries unseen. A repeated press of a button is the same request."""
    text = json_format.MessageToJson(base, indent=None) if base.name else "{}"
    return {"base": text, "etag": fields.get("etag", ""), "request_id": str(uuid4())}


def _base_of(fields: Fields) -> pb.PriorityClass:
    try:
        return json_format.Parse(fields.get("base", "{}"), pb.PriorityClass(), ignore_unknown_fields=True)
    except json_format.ParseError:
        return pb.PriorityClass()


def _fields_of(visit: Visit) -> Fields:
    return {name: values[0] for name, values in visit.form.values.items()}


def _may_change(visit: Visit) -> bool:
    return visit.may(Action.MANAGE_SYSTEM, PLATFORM)


ROUTES = (
    ConsoleRoute("GET", PAGE, Action.READ, show_all),
    ConsoleRoute("GET", f"{PAGE}/-/new", Action.MANAGE_SYSTEM, show_new, is_platform=True),
    ConsoleRoute("POST", f"{PAGE}/-/new", Action.MANAGE_SYSTEM, create, is_platform=True),
    ConsoleRoute("GET", f"{PAGE}/{{name}}", Action.READ, show),
    ConsoleRoute("POST", f"{PAGE}/{{name}}", Action.MANAGE_SYSTEM, change, is_platform=True),
    ConsoleRoute("POST", f"{PAGE}/{{name}}/delete", Action.MANAGE_SYSTEM, delete, is_platform=True),
)
