"""The first page, which is the first section that its visitor may see; and the answer for paths that are none."""

from starlette.responses import RedirectResponse, Response

from gateway.auth import Action
from gateway.console.navigation import NAVIGATION
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.visit import Visit
from gateway.errors import NotFoundError


async def show_first(visit: Visit) -> Response:
    first = next(entry for entry in NAVIGATION if entry.is_for(visit.principal))
    return RedirectResponse(f"{ROOT}{first.path}", 303)


async def refuse(visit: Visit) -> Response:
    raise NotFoundError("this page")


ROUTES = (ConsoleRoute("GET", "/", Action.READ, show_first),)
LAST = (ConsoleRoute("GET", "/{path:path}", Action.READ, refuse),)
