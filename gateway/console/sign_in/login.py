"""Signing in and out: a key or a token is proved once, and a session stands for it from then on.

How often that can be tried is limited by where it comes from and by which key it is about. A form's token keeps others
from signing a visitor in as somebody else.
"""

import math
from urllib.parse import unquote, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.api_key import parse
from gateway.auth import Action, authorize_anywhere
from gateway.console.forms import read_form
from gateway.console.parts import Parts
from gateway.console.routes import ROOT
from gateway.console.sign_in.forgery import FIELD, FormTokens
from gateway.console.sign_in.login_limits import TooManyLoginsError
from gateway.console.sign_in.sessions import Session, Sessions, cookie_name
from gateway.console.surroundings import VISITOR_COOKIE, Surroundings
from gateway.console.visit import Visit, peer_of
from gateway.errors import GatewayError, http_status
from gateway.errors_auth import CredentialInvalidError, PermissionDeniedError
from gateway.interceptors.errors import refusal_of
from gateway.telemetry import current_rpc

MAX_CREDENTIAL_CHARS = 8192
# A token of the largest size as a form has it, and the page to go on to. Nobody is known yet.
MAX_FORM_BYTES = 64 * 1024
WRONG = "This is no valid key or token. Keys begin with ef_live_ and are pasted whole."
NOT_AN_ADMINISTRATOR = (
    "This credential is valid, but nothing is shown to it here: it needs a role that may read, and the scope "
    "admin.read or admin. An administrator can give it both."
)

log = structlog.get_logger()


class Login:
    """The two pages that change who is signed in."""

    def __init__(self, parts: Parts, sessions: Sessions, tokens: FormTokens, surroundings: Surroundings) -> None:
        self._parts = parts
        self._sessions = sessions
        self._tokens = tokens
        self._surroundings = surroundings

    async def show(self, request: Request) -> Response:
        """Where to sign in."""
        return await self._page(request, request.query_params.get("next", ""))

    async def sign_in(self, request: Request) -> Response:
        form = await read_form(request, MAX_FORM_BYTES)
        visitor = request.cookies.get(cookie_name(request, VISITOR_COOKIE), "")
        self._tokens.require(request, visitor, form.text(FIELD))
        try:
            session = await self._proved(form.text("credential"), peer_of(request))
        except GatewayError as error:
            return await self._refused(request, form.text("next"), error)
        response = RedirectResponse(own_path(form.text("next")), 303)
        self._sessions.set(response, session, request)
        return response

    async def sign_out(self, visit: Visit) -> Response:
        """The session has ended on every gateway, whoever has a copy of its cookie; the browser forgets it."""
        await self._parts.session_ends.end(visit.session)
        response = RedirectResponse(f"{ROOT}/login", 303)
        self._sessions.end(response, visit.request)
        return response

    async def _proved(self, text: str, peer: str) -> Session:
        await self._parts.login_limits.require(peer, parse(text))
        if len(text) > MAX_CREDENTIAL_CHARS:
            raise CredentialInvalidError
        remembered = await self._parts.authenticator.remember(text, peer)
        verdict = await self._parts.authenticator.resume(remembered, peer)
        authorize_anywhere(verdict.principal, Action.READ)
        log.info("console sign-in", key=verdict.principal.public_id or verdict.principal.name)
        return self._sessions.begin(remembered)

    async def _refused(self, request: Request, back: str, error: GatewayError) -> Response:
        record = current_rpc()
        assert record is not None, "the pipeline began it"
        told = refusal_of(error, record)
        message = told.message
        if isinstance(told, CredentialInvalidError):
            message = WRONG
        elif isinstance(told, PermissionDeniedError) and told.reason in ("SCOPE_NOT_GRANTED", "ROLE_NOT_GRANTED"):
            message = NOT_AN_ADMINISTRATOR
        response = await self._page(request, back, message, http_status(told))
        if isinstance(told, TooManyLoginsError) and told.retry_after_s is not None:
            response.headers["retry-after"] = str(math.ceil(told.retry_after_s))
        return response

    async def _page(self, request: Request, back: str, problem: str = "", status: int = 200) -> Response:
        context = {"next": own_path(back), "problem": problem}
        return await self._surroundings.render_public(request, "login.html", context, status)


def own_path(text: str) -> str:
    """`text` where it is the path of a page of ours, the first page otherwise: nobody is sent elsewhere."""
    home = f"{ROOT}/"
    if not text.startswith(home) or "\\" in text or not text.isprintable() or not text.isascii():
        return home
    parts = urlsplit(text)
    if parts.scheme or parts.netloc or "//" in parts.path or ".." in unquote(parts.path).split("/"):
        return home
    return home if parts.path == f"{ROOT}/login" else text
