"""The application: every path behind the one pipeline, and what is told without a key."""

import json
import time
from collections import abc
from dataclasses import dataclass
from functools import cache

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.http import routes
from gateway.http.chat import chat_params
from gateway.http.completions import completion_params
from gateway.http.door import HttpDoor
from gateway.http.endpoints import Endpoints
from gateway.http.forwarded import Forwarded
from gateway.http.generating import Generating
from gateway.http.measuring import Measured
from gateway.http.openapi import document
from gateway.http.pipeline import Endpoint, Pipeline, begin_call, refuse
from gateway.http.refusals import MethodNotAllowedError, Renamed, UnknownPathError
from gateway.http.responses import response_params
from gateway.http.routes import HttpRoute
from gateway.http.tls import following_context
from gateway.http.tokenize import tokenize_params
from gateway.interceptors import Gatekeeper
from gateway.servicer.launch import Launcher
from gateway.settings import GatewaySettings

HEARTBEAT_S = 10.0
CONSOLE_PATH = "/console"


@dataclass(frozen=True, slots=True)
class DoorParts:
    """What the door is made over. `is_ready` says whether a request could be served now."""

    gatekeeper: Gatekeeper
    launcher: Launcher
    is_ready: abc.Callable[[], bool]
    started_unix_s: int
    max_body_bytes: int
    max_live: int


def http_door(
    settings: GatewaySettings,
    gatekeeper: Gatekeeper,
    launcher: Launcher,
    *,
    is_ready: abc.Callable[[], bool],
    console: ASGIApp | None = None,
) -> HttpDoor | None:
    """The door that the settings ask for; None where they ask for none. `console` is served below CONSOLE_PATH.

    Raises SettingsError.
    """
    address, files = settings.http_address, settings.tls_files
    if address is None:
        return None
    parts = DoorParts(
        gatekeeper=gatekeeper,
        launcher=launcher,
        is_ready=is_ready,
        started_unix_s=int(time.time()),
        max_body_bytes=settings.http_max_body_bytes,
        max_live=settings.max_concurrent_rpcs,
    )
    app = make_app(parts, console)
    return HttpDoor(
        address,
        Forwarded(Measured(app, app.routes, gatekeeper.meters), gatekeeper.proxies),
        max_connections=settings.max_concurrent_rpcs,
        tls=None if files is None else following_context(files),
        reuse_port=settings.reuse_port,
    )


def make_app(parts: DoorParts, console: ASGIApp | None = None) -> Starlette:
    """Serves the paths of `routes`, those without a key, and refuses all others in the same words."""
    generating = Generating(parts.launcher, HEARTBEAT_S)
    endpoints = Endpoints(parts.launcher, generating, parts.max_body_bytes, parts.started_unix_s)
    pipeline = Pipeline(parts.gatekeeper, parts.max_live)
    served: dict[HttpRoute, tuple[abc.Callable[..., abc.Awaitable[None]], Renamed]] = {
        routes.CHAT_COMPLETIONS: (endpoints.chat_completions, chat_params),
        routes.COMPLETIONS: (endpoints.completions, completion_params),
        routes.RESPONSES: (endpoints.responses, response_params),
        routes.TOKENIZE: (endpoints.tokenize, tokenize_params),
        routes.LIST_MODELS: (endpoints.list_models, str),
        routes.GET_MODEL: (endpoints.get_model, str),
    }
    protected = [
        Route(route.path, pipeline.protected(route, Endpoint(*served[route])), methods=[route.verb])
        for route in routes.HTTP_ROUTES
    ]
    mounted = [] if console is None else [Route(CONSOLE_PATH, _to_console), Mount(CONSOLE_PATH, console)]
    app = Starlette(
        routes=[*protected, *_public(parts), *mounted],
        exception_handlers={404: _refuse_unknown, 405: _refuse_method},
    )
    # A redirect would name the host and the scheme that the request came with, before anybody has shown a key.
    app.router.redirect_slashes = False
    return app


def _public(parts: DoorParts) -> list[Route]:
    async def healthz(_request: Request) -> Response:
        return _json(200, json.dumps({"status": "ok"}))

    async def readyz(_request: Request) -> Response:
        is_ready = parts.is_ready()
        return _json(200 if is_ready else 503, json.dumps({"status": "ready" if is_ready else "not ready"}))

    description = _description()

    async def openapi(_request: Request) -> Response:
        return _json(200, description)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/openapi.json", openapi)]


async def _to_console(_request: Request) -> Response:
    return RedirectResponse(f"{CONSOLE_PATH}/", 308)


@cache
def _description() -> str:
    """Of this release, written once: making it takes longer than all the rest of a door."""
    return json.dumps(document())


def _json(status: int, content: str) -> Response:
    return Response(content, status, {"cache-control": "no-store"}, "application/json")


async def _refuse_unknown(request: Request, _error: Exception) -> "_Refusal":
    return _Refusal(UnknownPathError(routes.meant_by(request.url.path)))


async def _refuse_method(request: Request, error: Exception) -> "_Refusal":
    assert isinstance(error, HTTPException), "it was raised for its status"
    return _Refusal(MethodNotAllowedError((error.headers or {}).get("Allow", "other methods")))


class _Refusal(Response):
    """A refusal before any route was found, in the same words as all others."""

    def __init__(self, error: UnknownPathError | MethodNotAllowedError) -> None:
        super().__init__()
        self._error = error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refuse(begin_call(scope, receive, send), self._error)
