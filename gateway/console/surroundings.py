"""What every page has around it: the sections that its visitor may see, the token of its forms, and a notice."""

import secrets
from collections import abc
from datetime import UTC, datetime, timedelta

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from gateway.console.navigation import NAVIGATION
from gateway.console.parts import Parts
from gateway.console.routes import ROOT
from gateway.console.sign_in.forgery import FIELD, FormTokens
from gateway.console.sign_in.sessions import cookie_name, drop_cookie, set_cookie
from gateway.console.sign_in.signing import Signer
from gateway.console.templating import Templates
from gateway.console.visit import Visit

NOTICE_COOKIE = "evenflow_notice"
NOTICE_LIFETIME = timedelta(minutes=1)
VISITOR_COOKIE = "evenflow_visitor"
VISITOR_BYTES = 16


class Surroundings:
    """Renders pages, for visitors and for those who are not signed in."""

    def __init__(self, parts: Parts, templates: Templates, tokens: FormTokens) -> None:
        self._templates = templates
        self._tokens = tokens
        self._notices = Signer(parts.peppers, "notice")

    async def render(
        self, visit: Visit, template: str, context: abc.Mapping[str, object], status: int = 200
    ) -> HTMLResponse:
        """A whole page. Its notice is told once."""
        notice = self._notice(visit)
        around = self.around(visit) | {"notice": notice}
        response = await self._templates.page(template, {**around, **context}, status)
        if notice:
            drop_cookie(response, visit.request, NOTICE_COOKIE)
        return response

    async def fragment(self, visit: Visit, template: str, context: abc.Mapping[str, object]) -> str:
        """A part of a page, for what is replaced while it is looked at."""
        return await self._templates.render(template, {**self.around(visit), **context})

    async def render_public(
        self, request: Request, template: str, context: abc.Mapping[str, object], status: int = 200
    ) -> HTMLResponse:
        """A page for somebody who is not signed in. Its forms are bound to the visitor's cookie."""
        name = cookie_name(request, VISITOR_COOKIE)
        visitor = request.cookies.get(name) or secrets.token_urlsafe(VISITOR_BYTES)
        around = {"root": ROOT, "csrf": self._tokens.issue(visitor), "csrf_field": FIELD, "visit": None, "notice": ""}
        response = await self._templates.page(template, {**around, **context}, status)
        set_cookie(response, request, VISITOR_COOKIE, visitor)
        return response

    def around(self, visit: Visit) -> dict[str, object]:
        path = visit.request.url.path
        entries = [entry for entry in NAVIGATION if entry.is_for(visit.principal)]
        return {
            "root": ROOT,
            "visit": visit,
            "navigation": [(entry, _is_in(path, f"{ROOT}{entry.path}")) for entry in entries],
            "csrf": self._tokens.issue(visit.session.id),
            "csrf_field": FIELD,
        }

    def announce(self, visit: Visit, response: Response) -> None:
        """The next page says what the visit has for it."""
        if visit.notice is not None:
            claims = {"exp": datetime.now(UTC) + NOTICE_LIFETIME, "sid": visit.session.id, "text": visit.notice}
            set_cookie(
                response,
                visit.request,
                NOTICE_COOKIE,
                self._notices.sign(claims),
                round(NOTICE_LIFETIME.total_seconds()),
            )

    def _notice(self, visit: Visit) -> str:
        sent = visit.request.cookies.get(cookie_name(visit.request, NOTICE_COOKIE))
        claims = None if sent is None else self._notices.read(sent)
        return str(claims["text"]) if claims is not None and claims.get("sid") == visit.session.id else ""


def _is_in(path: str, section: str) -> bool:
    return path == section or path.startswith(f"{section}/")
