"""What happens around every request, in this order: request id, trace, errors to answers, authentication, permission.

There is one pipeline, so that no path can be served without all of it. Nothing of a body is read before its sender is
known and may do what the path is for.
"""

from collections import abc
from dataclasses import dataclass

from google.protobuf.empty_pb2 import Empty
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.errors import GatewayError, http_status
from gateway.http.call import CALL, ClientGoneError, HttpCall
from gateway.http.refusals import ErrorBody, OverloadedError, Renamed, error_headers, error_object
from gateway.http.routes import HttpRoute
from gateway.http.tracing import server_span
from gateway.interceptors import Gatekeeper
from gateway.interceptors.authentication import AUTHORIZATION, authorize_message
from gateway.interceptors.call import REQUEST_ID, request_id_of
from gateway.interceptors.errors import refusal_of
from gateway.telemetry import RpcRecord, enter_rpc

# Of a path that is none of ours.
MAX_LOGGED_CHARS = 200


class Endpoint:
    """What a path does for a caller who may. `renamed` has the names of its parameters."""

    def __init__(self, serve: abc.Callable[[HttpCall], abc.Awaitable[None]], renamed: Renamed = str) -> None:
        self.serve = serve
        self.renamed = renamed


@dataclass(slots=True)
class Pipeline:
    """`max_live`: requests that are served at once. Written by itself only."""

    gatekeeper: Gatekeeper
    max_live: int
    num_live: int = 0

    def protected(self, route: HttpRoute, endpoint: Endpoint) -> ASGIApp:
        """The endpoint for those who may use the route."""

        async def serve(scope: Scope, receive: Receive, send: Send) -> None:
            call = begin_call(scope, receive, send, route.template)
            call.renamed = endpoint.renamed
            self.num_live += 1
            try:
                with server_span(call, route, self.gatekeeper.tracer):
                    await self._answer(call, route, endpoint)
            finally:
                self.num_live -= 1

        return _Served(serve)

    async def _answer(self, call: HttpCall, route: HttpRoute, endpoint: Endpoint) -> None:
        try:
            if self.num_live > self.max_live:
                raise OverloadedError
            verdict = await self.gatekeeper.admit(route.rpc, call.headers(AUTHORIZATION), call.peer)
            # The team's own place: no path of this door names another one.
            authorize_message(route.rpc, Empty(), verdict)
            await endpoint.serve(call)
        except ClientGoneError:
            call.is_gone = True
        except Exception as error:  # noqa: BLE001 - the edge: whatever it is, one call fails and the gateway goes on
            await refuse(call, refusal_of(error, call.record))


class _Served:
    """The router takes an object for an ASGI application, and a function for something else."""

    def __init__(self, serve: ASGIApp) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._serve(scope, receive, send)


def begin_call(scope: Scope, receive: Receive, send: Send, path: str = "") -> HttpCall:
    """The call of this task from here on. `path` is the route's, if it has one: a caller can write anything."""
    record = RpcRecord(f"{scope['method']} {path or scope['path'][:MAX_LOGGED_CHARS]}", "")
    call = scope[CALL] = HttpCall(scope, receive, send, record)
    record.request_id = request_id_of(call.headers(REQUEST_ID))
    enter_rpc(record)
    return call


async def refuse(call: HttpCall, error: GatewayError) -> None:
    """The caller is told, if the answer has not begun."""
    call.error = error
    if call.status is not None:
        return
    try:
        await call.discard_body()
    except ClientGoneError:
        return
    body = ErrorBody(error=error_object(error, call.record.request_id, call.renamed))
    await call.respond(http_status(error), body.model_dump_json().encode(), *error_headers(error))
