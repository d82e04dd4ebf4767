"""The duration of each HTTP request, by route, status and error, however it ends. One layer around all that is served.

It is the outermost one of ours: what comes this far is told by no other, and uvicorn's own line is silenced.
"""

import asyncio
import time
from collections import abc

import structlog
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import InternalError
from gateway.http.call import CALL, CANCELLED, HttpCall
from gateway.meters import Meters
from gateway.telemetry import current_rpc

CLIENT_GONE = 499
"""nginx's status of a request whose client went away before it was answered."""

OTHER = "other"
VERBS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = structlog.get_logger()


class Measured:
    """`app`, whose `routes` are the only paths that have a name. What clients make up has one for all."""

    def __init__(self, app: ASGIApp, routes: abc.Iterable[BaseRoute], meters: Meters) -> None:
        self._app = app
        self._meters = meters
        self._path_by_endpoint = dict(_paths(routes, ""))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s, status, raised = time.monotonic(), CLIENT_GONE, ""

        async def note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note)
        except asyncio.CancelledError:
            raised = CANCELLED
            raise
        except Exception as error:
            raised = InternalError.reason
            self._log(scope, error)
            raise
        finally:
            verb = scope["method"] if scope["method"] in VERBS else OTHER
            error_type = raised or _error_type(scope.pop(CALL, None), status)
            self._meters.http_ended(verb, self._route(scope), status, error_type, time.monotonic() - began_s)

    def _route(self, scope: Scope) -> str:
        """The router has written into the scope which endpoint it found."""
        return self._path_by_endpoint.get(id(scope.get("endpoint")), OTHER)

    def _log(self, scope: Scope, error: Exception) -> None:
        record = current_rpc()
        request_id = record.request_id if record is not None else None
        log.error("http request failed", route=self._route(scope), request_id=request_id, exc_info=error)


def _error_type(call: HttpCall | None, status: int) -> str:
    """The reason that its caller was told; of what has none, a page, the status that says that we failed."""
    if call is not None:
        return call.error_type
    if status == CLIENT_GONE:
        return CANCELLED
    return str(status) if status >= 500 else ""


def _paths(routes: abc.Iterable[BaseRoute], prefix: str) -> abc.Iterator[tuple[int, str]]:
    for route in routes:
        if isinstance(route, Route):
            yield id(route.endpoint), prefix + route.path_format
        elif isinstance(route, Mount):
            yield from _paths(route.routes, prefix + route.path)
