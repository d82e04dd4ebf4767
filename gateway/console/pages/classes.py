"""Priority classes: a list, and the form that makes or changes one."""

from dataclasses import replace

from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import class_name
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.class_form import PLACES, form_of, merged, parts_of, read_class
from gateway.console.drafts import Conflict, Draft, base_of, conflict_page, fields_of
from gateway.console.forms import Problems
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
NEW_FIELDS = {"rank": "200", "min_share": "0", "preemptible": "on"}
NAMES = {f"priority_class.{path}": name for path, name in PLACES.items()} | {"priority_class_id": "name"}
CANNOT_BE_SAVED = (InvalidFieldError, PreconditionError, UnavailableError)


ClassDraft = Draft[pb.PriorityClass]
"""Based on an empty message: of a class that is to be made."""


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
    return await _form_page(visit, ClassDraft(NEW_FIELDS, pb.PriorityClass()))


async def create(visit: Visit) -> Response:
    fields = fields_of(visit)
    message, errors = read_class(fields, "")
    draft = ClassDraft(fields, pb.PriorityClass(), Problems(errors))
    if errors:
        return await _form_page(visit, draft, 400)
    name = draft.value("name").strip()
    request = pb.CreatePriorityClassRequest(
        priority_class_id=name, priority_class=message, request_id=draft.value("request_id")
    )
    try:
        await visit.call(AdminServicer.CreatePriorityClass, request)
    except (AlreadyExistsError, *CANNOT_BE_SAVED) as error:
        is_taken = isinstance(error, AlreadyExistsError)
        problems = Problems({"name": "is taken"}) if is_taken else Problems.of(error, NAMES)
        return await _form_page(visit, replace(draft, problems=problems), http_status(error))
    return visit.redirect(f"{ROOT}{PAGE}", f"There is a class {name} now. Grant it to teams and keys.")


async def show(visit: Visit) -> Response:
    found = await _read(visit)
    return await _form_page(visit, ClassDraft(form_of(found), found))


async def change(visit: Visit) -> Response:
    name, fields = visit.segment("name"), fields_of(visit)
    message, errors = read_class(fields, class_name(name))
    draft = ClassDraft(fields, base_of(fields, pb.PriorityClass), Problems(errors))
    if errors or draft.value("action") == "edit":
        return await _form_page(visit, draft, 400 if errors else 200)
    request = pb.UpdatePriorityClassRequest(
        priority_class=message, update_mask=FieldMask(paths=["*"]), request_id=draft.value("request_id")
    )
    try:
        saved = await visit.call(AdminServicer.UpdatePriorityClass, request)
    except EtagMismatchError:
        return await _conflict_page(visit, draft.base, message)
    except CANNOT_BE_SAVED as error:
        return await _form_page(visit, replace(draft, problems=Problems.of(error, NAMES)), http_status(error))
    is_same = saved.etag == message.etag
    told = "is as it was." if is_same else "was changed, for what is queued and running, too."
    return visit.redirect(f"{ROOT}{PAGE}", f"The class {name} {told}")


async def delete(visit: Visit) -> Response:
    name = visit.segment("name")
    request = pb.DeletePriorityClassRequest(name=class_name(name), etag=visit.form.text("etag"))
    try:
        await visit.call(AdminServicer.DeletePriorityClass, request)
    except PreconditionError as error:
        found = await _read(visit)
        problems = Problems(general=(error.message,))
        return await _form_page(visit, ClassDraft(form_of(found), found, problems), http_status(error))
    return visit.redirect(f"{ROOT}{PAGE}", f"The class {name} is gone; what is queued or running in it goes on.")


async def _form_page(visit: Visit, draft: ClassDraft, status: int = 200) -> Response:
    name = str(visit.request.path_params.get("name", ""))
    return await visit.render(
        "class.html",
        status,
        name=name,
        draft=draft,
        kept=draft.kept,
        may_change=_may_change(visit),
        may_delete=_may_change(visit) and name not in ("", DEFAULT_CLASS),
    )


async def _conflict_page(visit: Visit, base: pb.PriorityClass, yours: pb.PriorityClass) -> Response:
    theirs, name = await _read(visit), visit.segment("name")
    base = base if base.name else theirs
    page, result = f"{PAGE}/{name}", form_of(merged(base, theirs, yours))
    conflict = Conflict(
        name=theirs.name,
        title=f"Priority class {name}",
        crumbs=[("Classes", PAGE), (name, page)],
        page=page,
        differences=differences(*map(parts_of, (base, theirs, yours))),
        hidden=result | ClassDraft(form_of(theirs), theirs).kept,
    )
    return await conflict_page(visit, conflict)


async def _read(visit: Visit) -> pb.PriorityClass:
    request = pb.GetPriorityClassRequest(name=class_name(visit.segment("name")))
    return await visit.call(AdminServicer.GetPriorityClass, request)


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
