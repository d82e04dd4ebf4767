"""A key, a team's or the platform's: made with its secret shown once, changed, deleted and brought back.

The text of a key is in the answer that made it and nowhere else: not in the address, not in a cookie, not in a log.
"""

from google.protobuf.field_mask_pb2 import FieldMask
from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.forms import Form, told
from gateway.console.key_forms import (
    FIELD_BY_PATH,
    LIFETIMES,
    expiry_of,
    form_of,
    message_of,
    new_form,
    scopes_for,
    words_of,
)
from gateway.console.limits_left import key_limits
from gateway.console.names import node_of, page_of
from gateway.console.pages.teams import class_names
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.visit import Visit
from gateway.errors import GatewayError
from gateway.store.identity import PLATFORM
from gateway.store.records import ResourcePath

KEYS_PER_PAGE = 50
EDITED = ("display_name", "scopes", "ip_cidrs")
EDITED_OF_TEAMS = (*EDITED, "model_grants", "priority_class_grants")


async def list_platform(visit: Visit) -> Response:
    keys = await visit.call(
        AdminServicer.ListApiKeys,
        pb.ListApiKeysRequest(
            parent="-",
            page_size=KEYS_PER_PAGE,
            page_token=visit.query("page"),
            order_by="create_time desc",
            show_deleted=visit.query("deleted") == "on",
        ),
    )
    return await visit.render(
        "platform_keys.html",
        keys=keys,
        shows_deleted=visit.query("deleted") == "on",
        may_make_keys=visit.may(Action.MANAGE_KEYS, PLATFORM),
    )


async def show(visit: Visit) -> Response:
    path = node_of(visit)
    key = await visit.call(AdminServicer.GetApiKey, pb.GetApiKeyRequest(name=path.name))
    record = visit.verdict.snapshot.keys.get(path.api_key or "")
    limits = [] if record is None else await key_limits(visit.parts.admission, record, path.name)
    return await visit.render(
        "key.html",
        key=key,
        path=path,
        words=words_of(key),
        limits=limits,
        may_manage=visit.may(Action.MANAGE_KEYS, path),
        may_set_limits=visit.may(Action.MANAGE_QUOTA, ResourcePath(path.organization, path.team)),
    )


async def ask_for_new(visit: Visit) -> Response:
    visit.authorize(Action.MANAGE_KEYS, node_of(visit))
    return await _asked(visit, "key_new.html", new_form(is_platform=node_of(visit).team is None))


async def create(visit: Visit) -> Response:
    form, parent = visit.form, node_of(visit)
    message = message_of(form)
    try:
        message.expire_time.CopyFrom(expiry_of(form))
        key = await visit.call(
            AdminServicer.CreateApiKey,
            pb.CreateApiKeyRequest(parent=parent.name or "-", api_key=message, request_id=form.text("request_id")),
        )
    except GatewayError as error:
        return await _asked(visit, "key_new.html", form, error)
    return await visit.render("key_secret.html", key=key, path=node_of(visit), page=_page(key), is_new=True)


async def ask_for_changes(visit: Visit) -> Response:
    path = node_of(visit)
    visit.authorize(Action.MANAGE_KEYS, path)
    key = await visit.call(AdminServicer.GetApiKey, pb.GetApiKeyRequest(name=path.name))
    return await _asked(visit, "key_edit.html", form_of(key))


async def change(visit: Visit) -> Response:
    form, path = visit.form, node_of(visit)
    message = message_of(form)
    message.name, message.etag = path.name, form.text("etag")
    fields = list(EDITED if path.team is None else EDITED_OF_TEAMS)
    try:
        if form.text("lifetime"):
            message.expire_time.CopyFrom(expiry_of(form))
            fields.append("expire_time")
        await visit.call(
            AdminServicer.UpdateApiKey,
            pb.UpdateApiKeyRequest(api_key=message, update_mask=FieldMask(paths=fields)),
        )
    except GatewayError as error:
        return await _asked(visit, "key_edit.html", form, error)
    return visit.redirect(f"{ROOT}{page_of(path)}", "The key was changed.")


async def delete(visit: Visit) -> Response:
    path = node_of(visit)
    request = pb.DeleteApiKeyRequest(name=path.name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.DeleteApiKey, request)
    return visit.redirect(f"{ROOT}{page_of(path)}", "The key was deleted. It can be brought back until it is purged.")


async def undelete(visit: Visit) -> Response:
    path = node_of(visit)
    request = pb.UndeleteApiKeyRequest(name=path.name, etag=visit.form.text("etag"))
    await visit.call(AdminServicer.UndeleteApiKey, request)
    return visit.redirect(f"{ROOT}{page_of(path)}", "The key is back.")


def _page(key: pb.ApiKey) -> str:
    """Below the console's root."""
    parts = key.name.split("/")
    return f"/platform-keys/{parts[1]}" if len(parts) == 2 else f"/tenants/{parts[1]}/{parts[3]}/keys/{parts[5]}"


async def _asked(visit: Visit, template: str, form: Form, error: GatewayError | None = None) -> Response:
    path = node_of(visit)
    status, problems = told(error, FIELD_BY_PATH)
    return await visit.render(
        template,
        status,
        form=form,
        problems=problems,
        path=path,
        lifetimes=LIFETIMES,
        scopes=scopes_for(is_platform=path.team is None),
        class_names=[] if path.team is None else await class_names(visit),
    )


_TEAM, _PLATFORM = "/tenants/{org}/{team}/keys", "/platform-keys"
_MANAGE = Action.MANAGE_KEYS

ROUTES = (
    ConsoleRoute("GET", "/platform-keys", Action.READ, list_platform, is_platform=True),
    *(
        route
        for place, is_platform in ((_TEAM, False), (_PLATFORM, True))
        for route in (
            ConsoleRoute("GET", f"{place}/new", _MANAGE, ask_for_new, is_platform),
            ConsoleRoute("POST", f"{place}/new", _MANAGE, create, is_platform),
            ConsoleRoute("GET", f"{place}/{{key}}", Action.READ, show, is_platform),
            ConsoleRoute("GET", f"{place}/{{key}}/edit", _MANAGE, ask_for_changes, is_platform),
            ConsoleRoute("POST", f"{place}/{{key}}/edit", _MANAGE, change, is_platform),
            ConsoleRoute("POST", f"{place}/{{key}}/delete", _MANAGE, delete, is_platform),
            ConsoleRoute("POST", f"{place}/{{key}}/undelete", _MANAGE, undelete, is_platform),
        )
    ),
)
