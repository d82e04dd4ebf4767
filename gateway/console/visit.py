"""One request of somebody who is signed in: who they are, what they sent, and how they are answered.

The only way to the Admin API: every call asks first whether this visitor may make it, by the same table as gRPC's.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from gateway.admin.servicer import SERVICE, AdminServicer, Context
from gateway.auth import Action, Principal, Verdict, authorize, authorize_anywhere, enter_principal
from gateway.auth.address import peer_name
from gateway.console.forms import Form
from gateway.console.routes import ConsoleRoute
from gateway.console.sign_in.sessions import Session
from gateway.interceptors.authentication import authorize_message
from gateway.interceptors.list_sizes import require_short_lists
from gateway.store.identity import PLATFORM
from gateway.store.records import ResourcePath

if TYPE_CHECKING:
    from gateway.console.parts import Parts

Asked = TypeVar("Asked", bound=Message)
Answered = TypeVar("Answered")
Method = abc.Callable[[AdminServicer, Asked, Context], abc.Awaitable[Answered]]
Streaming = abc.Callable[[AdminServicer, Asked, Context], abc.AsyncIterator[Answered]]


class Pages(Protocol):
    """Makes pages of templates, with what every page has around it."""

    async def render(
        self, visit: "Visit", template: str, context: abc.Mapping[str, object], status: int = 200
    ) -> HTMLResponse: ...

    async def fragment(self, visit: "Visit", template: str, context: abc.Mapping[str, object]) -> str: ...


@dataclass(slots=True)
class Visit:
    """Made and renewed by the pipeline. `form` is empty but for POST; `notice` is what the next page is to say."""

    request: Request
    route: ConsoleRoute
    parts: "Parts"
    session: Session
    verdict: Verdict
    pages: Pages
    form: Form = field(default_factory=Form)
    notice: str | None = None

    @property
    def principal(self) -> Principal:
        return self.verdict.principal

    def segment(self, name: str) -> str:
        """A part of the path, as the route names it."""
        return str(self.request.path_params[name])

    def query(self, name: str) -> str:
        """A field of the address; empty where it has none."""
        return self.request.query_params.get(name, "").strip()

    def authorize_route(self) -> None:
        """The visitor may be here at all. Raises what `gateway.auth.authorize` raises."""
        if self.route.is_platform:
            authorize(self.principal, self.route.action, PLATFORM)
        else:
            authorize_anywhere(self.principal, self.route.action)

    async def renew(self) -> None:
        """The visitor is who they are now, and may still be here.

        Raises what ends that; UnavailableError where nobody can tell.
        """
        self.verdict = await recognize(self.parts, self.session, self.request)
        self.authorize_route()

    def may(self, action: Action, path: ResourcePath) -> bool:
        """Whether the visitor may do it there: to show what leads to it, or not."""
        return self.principal.may(action, path)

    def authorize(self, action: Action, path: ResourcePath) -> None:
        """For what is no call of the Admin API. Raises what `gateway.auth.authorize` raises."""
        authorize(self.principal, action, path)

    async def call(self, method: Method[Asked, Answered], request: Asked) -> Answered:
        """The answer of the Admin API's method, `AdminServicer.GetTeam`, if the visitor may have it.

        Raises GatewayError.
        """
        require_short_lists(request)
        authorize_message(f"/{SERVICE}/{method.__name__}", request, self.verdict)
        # No method of the service looks at its transport.
        return await method(self.parts.admin, request, cast("Context", None))

    def stream(self, method: Streaming[Asked, Answered], request: Asked) -> abc.AsyncIterator[Answered]:
        """The same of a method that answers with a stream, `AdminServicer.ExportAudit`."""
        authorize_message(f"/{SERVICE}/{method.__name__}", request, self.verdict)
        return method(self.parts.admin, request, cast("Context", None))

    async def render(self, template: str, status: int = 200, **context: object) -> HTMLResponse:
        """The page, with what every page has around it."""
        return await self.pages.render(self, template, context, status)

    async def fragment(self, template: str, **context: object) -> str:
        """A part of a page, as `live` sends it."""
        return await self.pages.fragment(self, template, context)

    def redirect(self, path: str, notice: str | None = None) -> Response:
        """After a change: the browser gets the page at `path`, which says `notice` once."""
        self.notice = notice
        return RedirectResponse(path, 303)


async def recognize(parts: "Parts", session: Session, request: Request) -> Verdict:
    """Whose session it is, as of now; this task acts for them from here on.

    Raises SessionEndedError, and what `Authenticator.resume` raises.
    """
    await parts.session_ends.require_open(session)
    verdict = await parts.authenticator.resume(session.remembered, peer_of(request))
    enter_principal(verdict.principal)
    return verdict


def peer_of(request: Request) -> str:
    """Where the request comes from, in gRPC's names of peers."""
    return peer_name(request.scope["client"])
