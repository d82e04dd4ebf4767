"""What ends a key or its secret: rotation with a time of grace, and revocation, at once and for good."""

from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from starlette.responses import Response
from uuid_utils import uuid7

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.forms import Form, told
from gateway.console.key_forms import FIELD_BY_PATH, words_of
from gateway.console.names import node_of, page_of
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.visit import Visit
from gateway.errors import FieldViolation, GatewayError, InvalidFieldError

GRACES = (
    ("0", "none: the old secret ends now"),
    ("1", "1 hour"),
    ("24", "24 hours"),
    ("168", "7 days"),
    ("720", "30 days"),
)


async def ask_to_rotate(visit: Visit) -> Response:
    return await _asked(visit, "key_rotate.html", Form({"grace": ["24"], "request_id": [str(uuid7())]}))


async def rotate(visit: Visit) -> Response:
    form, path = visit.form, node_of(visit)
    try:
        key = await visit.call(
            AdminServicer.RotateApiKey,
            pb.RotateApiKeyRequest(
                name=path.name,
                grace=_grace(form.text("grace")),
                discard_newest=form.is_on("discard_newest"),
                request_id=form.text("request_id"),
            ),
        )
    except GatewayError as error:
        return await _asked(visit, "key_rotate.html", form, error)
    return await visit.render("key_secret.html", key=key, path=path, page=page_of(path), is_new=False)


async def ask_to_revoke(visit: Visit) -> Response:
    return await _asked(visit, "key_revoke.html", Form())


async def revoke(visit: Visit) -> Response:
    form, path = visit.form, node_of(visit)
    try:
        await visit.call(
            AdminServicer.RevokeApiKey,
            pb.RevokeApiKeyRequest(
                name=path.name, reason=form.text("reason"), abort_inflight=form.is_on("abort_inflight")
            ),
        )
    except GatewayError as error:
        return await _asked(visit, "key_revoke.html", form, error)
    return visit.redirect(f"{ROOT}{page_of(path)}", "The key was revoked. Nothing is accepted with it any more.")


def _grace(hours: str) -> Duration:
    """Raises InvalidFieldError for what is no choice of ours."""
    if hours not in dict(GRACES):
        raise InvalidFieldError(FieldViolation("grace", "choose one of the times that are offered"))
    grace = Duration()
    grace.FromTimedelta(timedelta(hours=int(hours)))
    return grace


async def _asked(visit: Visit, template: str, form: Form, error: GatewayError | None = None) -> Response:
    path = node_of(visit)
    visit.authorize(Action.MANAGE_KEYS, path)
    key = await visit.call(AdminServicer.GetApiKey, pb.GetApiKeyRequest(name=path.name))
    status, problems = told(error, FIELD_BY_PATH)
    return await visit.render(
        template, status, form=form, problems=problems, path=path, key=key, words=words_of(key), graces=GRACES
    )


ROUTES = tuple(
    route
    for place, is_platform in (("/tenants/{org}/{team}/keys/{key}", False), ("/platform-keys/{key}", True))
    for route in (
        ConsoleRoute("GET", f"{place}/rotate", Action.MANAGE_KEYS, ask_to_rotate, is_platform),
        ConsoleRoute("POST", f"{place}/rotate", Action.MANAGE_KEYS, rotate, is_platform),
        ConsoleRoute("GET", f"{place}/revoke", Action.MANAGE_KEYS, ask_to_revoke, is_platform),
        ConsoleRoute("POST", f"{place}/revoke", Action.MANAGE_KEYS, revoke, is_platform),
    )
)
