"""What happens around every request, in this order: request id, session, permission, forgery, errors to pages, headers.

There is one pipeline, so that no page can be served without all of it.
"""

from collections import abc
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.console.forms import read_form
from gateway.console.parts import Parts
from gateway.console.refusals import Trouble
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.sign_in.forgery import FIELD, FormTokens
from gateway.console.sign_in.sessions import Session, Sessions
from gateway.console.surroundings import Surroundings
from gateway.console.visit import Visit, recognize
from gateway.errors import GatewayError
from gateway.interceptors.call import REQUEST_ID, request_id_of
from gateway.interceptors.errors import refusal_of
from gateway.telemetry import RpcRecord, enter_rpc

CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # With `no-referrer` browsers would not say which origin a form comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

Public = abc.Callable[[Request], abc.Awaitable[Response]]


class Pipeline:
    """Serves routes; knows none of them."""

    def __init__(self, parts: Parts, sessions: Sessions, tokens: FormTokens, surroundings: Surroundings) -> None:
        self._parts = parts
        self._sessions = sessions
        self._tokens = tokens
        self._surroundings = surroundings

    def protected(self, route: ConsoleRoute) -> Public:
        """The page for those who are signed in and may see it."""

        async def serve(request: Request) -> Response:
            record = _begin(request, f"{route.verb} {ROOT}{route.path}")
            session = self._sessions.read(request)
            visit = None
            try:
                if session is None:
                    return _secured(_to_login(request), record)
                visit = await self._visit(request, route, session)
                await self._admit(visit)
                response = await route.serve(visit)
                self._surroundings.announce(visit, response)
                return _secured(response, record)
            except Exception as error:  # noqa: BLE001 - the edge: whatever it is, one page fails and the gateway goes on
                return _secured(await self._refuse(request, visit, refusal_of(error, record), record), record)

        return serve

    def public(self, name: str, serve_public: Public) -> Public:
        """The page for anybody."""

        async def serve(request: Request) -> Response:
            record = _begin(request, f"{request.method} {ROOT}{name}")
            try:
                return _secured(await serve_public(request), record)
            except Exception as error:  # noqa: BLE001 - the edge
                return _secured(await self._refuse(request, None, refusal_of(error, record), record), record)

        return serve

    async def _visit(self, request: Request, route: ConsoleRoute, session: Session) -> Visit:
        verdict = await recognize(self._parts, session, request)
        return Visit(request, route, self._parts, session, verdict, self._surroundings)

    async def _admit(self, visit: Visit) -> None:
        """The visitor may be here, and what they sent comes from a page of ours. Raises what refuses it."""
        visit.authorize_route()
        if visit.request.method not in ("GET", "HEAD"):
            visit.form = await read_form(visit.request)
            self._tokens.require(visit.request, visit.session.id, visit.form.text(FIELD))

    async def _refuse(self, request: Request, visit: Visit | None, error: GatewayError, record: RpcRecord) -> Response:
        trouble = Trouble.of(error, record.request_id)
        if trouble.status == 401:
            response = _to_login(request)
            self._sessions.end(response, request)
            return response
        if visit is not None:
            return await self._surroundings.render(visit, "error.html", {"trouble": trouble}, trouble.status)
        return await self._surroundings.render_public(request, "error.html", {"trouble": trouble}, trouble.status)


def _begin(request: Request, method: str) -> RpcRecord:
    """What logs and the record of changes say about this request."""
    record = RpcRecord(method, request_id_of(request.headers.getlist(REQUEST_ID)))
    enter_rpc(record)
    return record


def _to_login(request: Request) -> Response:
    """Where to sign in, and from there back to the page that was asked for, if that was a page."""
    path = request.url.path
    if request.url.query:
        path += f"?{request.url.query}"
    back = f"?next={quote(path)}" if request.method in ("GET", "HEAD") and path != f"{ROOT}/" else ""
    return RedirectResponse(f"{ROOT}/login{back}", 303)


def _secured(response: Response, record: RpcRecord) -> Response:
    response.headers[REQUEST_ID] = record.request_id
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    return response
