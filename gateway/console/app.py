"""The application: every route behind the one pipeline. To be mounted at ROOT."""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.auth import Action
from gateway.console import pages
from gateway.console.parts import Parts
from gateway.console.pipeline import Pipeline
from gateway.console.refusals import WrongMethodError
from gateway.console.routes import ConsoleRoute
from gateway.console.sign_in.forgery import FormTokens
from gateway.console.sign_in.login import Login
from gateway.console.sign_in.sessions import Sessions
from gateway.console.statics import Statics
from gateway.console.surroundings import Surroundings
from gateway.console.templating import Templates


def console_app(parts: Parts) -> Starlette:
    """Serves the pages of `gateway.console.pages`, signing in, and what pages look like."""
    statics = Statics()
    tokens, sessions = FormTokens(parts.peppers), Sessions(parts.peppers)
    surroundings = Surroundings(parts, Templates(statics), tokens)
    pipeline = Pipeline(parts, sessions, tokens, surroundings)
    login = Login(parts, sessions, tokens, surroundings)

    async def static(request: Request) -> Response:
        return statics.respond(request)

    public = [
        Route("/login", pipeline.public("/login", login.show), methods=["GET"]),
        Route("/login", pipeline.public("/login", login.sign_in), methods=["POST"]),
        Route("/static/{path:path}", pipeline.public("/static", static), methods=["GET"]),
    ]
    routes = (ConsoleRoute("POST", "/logout", Action.READ, login.sign_out), *pages.ROUTES)
    protected = [Route(route.path, pipeline.protected(route), methods=[route.verb]) for route in routes]
    wrong_method = pipeline.public("", _refuse_method)

    async def refuse_method(request: Request, _error: Exception) -> Response:
        return await wrong_method(request)

    app = Starlette(routes=[*public, *protected], exception_handlers={405: refuse_method})
    app.router.redirect_slashes = False
    return app


async def _refuse_method(_request: Request) -> Response:
    raise WrongMethodError
