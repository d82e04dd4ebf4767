"""Temporary quota: a limit or budget of a policy is raised until a time, and a grant is ended before its time."""

from collections import abc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.drafts import Draft, fields_of
from gateway.console.form_values import LOCAL_TIME
from gateway.console.forms import Problems
from gateway.console.policies.grant_form import PLACES, choices_of, read_grant
from gateway.console.policies.parts import parts_of
from gateway.console.policies.place import PATHS, PolicyPlace
from gateway.console.policies.words import grant_lines
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.visit import Visit
from gateway.errors import InvalidFieldError, PreconditionError, UnavailableError, http_status

DEFAULT_LENGTH = timedelta(hours=6)
CANNOT_BE_GRANTED = (InvalidFieldError, PreconditionError, UnavailableError)


GrantDraft = Draft[pb.QuotaPolicy]
"""A grant in the form, on a policy as it is now."""


async def show(visit: Visit) -> Response:
    place = PolicyPlace.of(visit)
    until = datetime.now(UTC) + DEFAULT_LENGTH
    fields = {"until": until.strftime(LOCAL_TIME), "request_id": str(uuid4()), "raised": visit.query("raised")}
    return await _page(visit, GrantDraft(fields, await place.read(visit)))


async def grant(visit: Visit) -> Response:
    place = PolicyPlace.of(visit)
    fields, policy = fields_of(visit), await place.read(visit)
    request, errors = read_grant(fields, policy)
    draft = GrantDraft(fields, policy, Problems(errors))
    if errors:
        return await _page(visit, draft, 400)
    request.request_id = draft.value("request_id")
    try:
        await visit.call(AdminServicer.GrantTemporaryQuota, request)
    except CANNOT_BE_GRANTED as error:
        return await _page(visit, replace(draft, problems=Problems.of(error, PLACES)), http_status(error))
    return visit.redirect(f"{ROOT}{place.page}", "Raised on every gateway; it ends by itself.")


async def end(visit: Visit) -> Response:
    place = PolicyPlace.of(visit)
    policy = await place.read(visit)
    request = pb.EndTemporaryQuotaRequest(name=policy.name, uid=visit.form.text("uid"))
    await visit.call(AdminServicer.EndTemporaryQuota, request)
    return visit.redirect(f"{ROOT}{place.page}", "Ended: the limit is what it was before.")


async def _page(visit: Visit, draft: GrantDraft, status: int = 200) -> Response:
    policy, place = draft.base, PolicyPlace.of(visit)
    return await visit.render(
        "grant.html",
        status,
        place=place,
        draft=draft,
        choices=[(choice.value, choice.label) for choice in choices_of(policy)],
        limits=[part for key, part in parts_of(policy).items() if key[0] in ("limits", "budgets")],
        grants=grant_lines(policy),
        may_change=place.may_change(visit),
    )


def _routes() -> abc.Iterator[ConsoleRoute]:
    for path in PATHS:
        yield ConsoleRoute("GET", f"{path}/grants", Action.MANAGE_QUOTA, show)
        yield ConsoleRoute("POST", f"{path}/grants", Action.MANAGE_QUOTA, grant)
        yield ConsoleRoute("POST", f"{path}/grants/end", Action.MANAGE_QUOTA, end)


ROUTES = tuple(_routes())
