"""The quota policy of an organization, team or key: looked at, changed, tried on recent traffic before it is saved.

Whoever changes what somebody else has changed since sees all three versions, and can save on top of the other's or not.
"""

from collections import abc
from dataclasses import replace

from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.drafts import Conflict, Draft, base_of, conflict_page, fields_of
from gateway.console.form_values import Fields
from gateway.console.forms import Problems
from gateway.console.policies.form import ReadPolicy, form_of, read_policy, rows_of
from gateway.console.policies.parts import merged, parts_of
from gateway.console.policies.place import PATHS, PolicyPlace, may_preview
from gateway.console.policies.preview import DEFAULT_WINDOW, WINDOWS, Preview, preview_page
from gateway.console.policies.words import CHOICES, grant_lines
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.versions import differences
from gateway.console.visit import Visit
from gateway.errors import (
    AlreadyExistsError,
    EtagMismatchError,
    GatewayError,
    InvalidFieldError,
    PreconditionError,
    UnavailableError,
    http_status,
)
from gateway.store.identity import PLATFORM

MORE, ALL = "add-", "all"
CANNOT_BE_SAVED = (InvalidFieldError, PreconditionError, UnavailableError)


PolicyDraft = Draft[pb.QuotaPolicy]


async def show(visit: Visit) -> Response:
    place = PolicyPlace.of(visit)
    policy = await place.read(visit)
    return await _form_page(visit, place, PolicyDraft(form_of(policy), policy), more=ALL)


async def change(visit: Visit) -> Response:
    place, fields, asked = PolicyPlace.of(visit), fields_of(visit), visit.form.text("action")
    visit.authorize(Action.READ, place.node)  # before anything is said of what was filled in
    draft = PolicyDraft(fields, _base_of(fields))
    if asked.startswith(MORE) or asked == "edit":
        return await _form_page(visit, place, draft, more=asked.removeprefix(MORE))
    name = f"{place.node.name}/quotaPolicies/{draft.value('policy_id')}"
    read = read_policy(fields, name, has_weight=place.has_weight)
    errors = read.errors if _window_of(fields) in WINDOWS else {"window": "choose one of the list", **read.errors}
    if errors:
        return await _form_page(visit, place, replace(draft, problems=Problems(errors)), 400)
    try:
        is_preview = asked != "save"
        saved = await _save(visit, place, read.policy, validate_only=is_preview)
    except (EtagMismatchError, AlreadyExistsError):
        return await _conflict_page(visit, place, draft.base, read.policy)
    except CANNOT_BE_SAVED as error:
        return await _form_page(visit, place, replace(draft, problems=_problems(error, read)), http_status(error))
    if is_preview:
        return await _preview_page(visit, place, draft, read.policy)
    notice = "The policy is as it was." if saved.etag == read.policy.etag else "The policy was changed and is in force."
    return visit.redirect(f"{ROOT}{place.page}", notice)


async def delete(visit: Visit) -> Response:
    """Of a key, which then has the limits of its team and organization only."""
    place = PolicyPlace.of(visit)
    policy = await place.read(visit)
    request = pb.DeleteQuotaPolicyRequest(name=policy.name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.DeleteQuotaPolicy, request)
    return visit.redirect(f"{ROOT}{place.page}", "The key has no policy of its own any more.")


async def _save(visit: Visit, place: PolicyPlace, policy: pb.QuotaPolicy, *, validate_only: bool) -> pb.QuotaPolicy:
    request_id = "" if validate_only else visit.form.text("request_id")
    if not policy.etag:
        create = pb.CreateQuotaPolicyRequest(
            parent=place.node.name,
            quota_policy_id=policy.name.rpartition("/")[2],
            quota_policy=policy,
            request_id=request_id,
            validate_only=validate_only,
        )
        return await visit.call(AdminServicer.CreateQuotaPolicy, create)
    update = pb.UpdateQuotaPolicyRequest(
        quota_policy=policy, update_mask=FieldMask(paths=["*"]), request_id=request_id, validate_only=validate_only
    )
    return await visit.call(AdminServicer.UpdateQuotaPolicy, update)


async def _form_page(
    visit: Visit, place: PolicyPlace, draft: PolicyDraft, status: int = 200, *, more: str = ""
) -> Response:
    """`more`: which group has an empty row behind those of the form, or ALL."""
    return await visit.render(
        "policy.html",
        status,
        place=place,
        draft=draft,
        rows=lambda group: rows_of(draft.fields, group, 1 if more in (group, ALL) else 0),
        kept=_kept(draft),
        choices=CHOICES,
        window_choices=[(word, text) for word, (text, _) in WINDOWS.items()],
        window=_window_of(draft.fields),
        grants=grant_lines(draft.base),
        may_change=place.may_change(visit),
        may_preview=may_preview(visit),
    )


async def _conflict_page(visit: Visit, place: PolicyPlace, base: pb.QuotaPolicy, yours: pb.QuotaPolicy) -> Response:
    theirs = await place.read(visit)
    if not base.name:  # the form came without it: everything of it counts as wanted
        base = theirs
    conflict = Conflict(
        name=theirs.name,
        title=f"Quota of {place.short}",
        crumbs=[*place.crumbs, ("Quota policy", place.page)],
        page=place.page,
        differences=differences(*map(parts_of, (base, theirs, yours))),
        hidden=_hidden(PolicyDraft(form_of(merged(base, theirs, yours)), theirs)),
        may_preview=may_preview(visit),
    )
    return await conflict_page(visit, conflict)


async def _preview_page(visit: Visit, place: PolicyPlace, draft: PolicyDraft, policy: pb.QuotaPolicy) -> Response:
    window = _window_of(draft.fields)
    context = {
        "place": place,
        "changes": differences(parts_of(draft.base), parts_of(draft.base), parts_of(policy)),
        "hidden": _hidden(draft),
        "windows": WINDOWS,
        "window": window,
    }
    visit.authorize(Action.READ, PLATFORM)
    return await preview_page(visit, Preview(policy, place.node.name, window, context))


def _window_of(fields: Fields) -> str:
    """The time that a preview replays."""
    return fields.get("window", "") or DEFAULT_WINDOW


def _base_of(fields: Fields) -> pb.QuotaPolicy:
    """The version that the form began as. What cannot be shown was not written by this page, and is none."""
    base = base_of(fields, pb.QuotaPolicy)
    try:
        parts_of(base)
        grant_lines(base)
    except (ValueError, OverflowError):
        return pb.QuotaPolicy()
    return base


def _kept(draft: PolicyDraft) -> dict[str, str]:
    """What the form carries unseen."""
    return draft.kept | {"policy_id": draft.base.name.rpartition("/")[2] or draft.value("policy_id")}


def _hidden(draft: PolicyDraft) -> dict[str, str]:
    """A whole form that is carried unseen, without what belongs to one sending of it."""
    left_out = ("csrf", "action")
    return {name: value for name, value in draft.fields.items() if name not in left_out} | _kept(draft)


def _problems(error: GatewayError, read: ReadPolicy) -> Problems:
    """What the service refuses, beside the fields that it is about."""
    by_field: dict[str, str] = {}
    general: list[str] = []
    for violation in error.field_violations:
        name = read.field_of(violation.field)
        if name:
            by_field.setdefault(name, violation.description)
        else:
            general.append(f"{violation.field}: {violation.description}".removeprefix(": "))
    if not error.field_violations:
        general.append(error.message)
    return Problems(by_field, tuple(general))


def _routes() -> abc.Iterator[ConsoleRoute]:
    for path in PATHS:
        yield ConsoleRoute("GET", path, Action.READ, show)
        yield ConsoleRoute("POST", path, Action.MANAGE_QUOTA, change)
        yield ConsoleRoute("POST", f"{path}/delete", Action.MANAGE_QUOTA, delete)


ROUTES = tuple(_routes())
