"""The queue: what runs and waits, why one request waits, and how to end some of it."""

from dataclasses import dataclass

from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.forms import Problems, told
from gateway.console.queue import QueuePage, explanation, queue_page
from gateway.console.routes import ROOT, ConsoleRoute
from gateway.console.visit import Visit
from gateway.console.words import resource_name, team_path
from gateway.errors import GatewayError, InvalidFieldError
from gateway.store.identity import PLATFORM
from gateway.words import EVERY_TEAM, State, short_name

PAGE_SIZE = 100
STATE_CHOICES = (("", "any"), *((state, state.replace("_", " ")) for state in State))
# A list asks the engines for much more than their figures do.
LIST_INTERVAL_S = 2.0
FIELDS = {"parent": "team", "state": "state", "page_token": "page", "reason": "reason", "team": "team"}


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to end: one request, or all of a team's. The Admin API refuses what names both or neither."""

    generation_id: str
    team: str

    def request(self) -> pb.CancelGenerationsRequest:
        return pb.CancelGenerationsRequest(
            generation_ids=[self.generation_id] if self.generation_id else [],
            team=resource_name(self.team) if self.team else "",
        )


async def show(visit: Visit) -> Response:
    context = {
        "team": visit.query("team"),
        "state": visit.query("state"),
        "state_choices": STATE_CHOICES,
        "may_explain": _may_explain(visit),
        "may_end_team": _may_end_team(visit),
    }
    try:
        page = await _page(visit, visit.query("page"))
    except InvalidFieldError as error:
        problems = Problems.of(error, FIELDS)
        return await visit.render("queue.html", 400, page=None, problems=problems, **context)
    return await visit.render("queue.html", 200, page=page, problems=Problems(), **context)


async def follow(visit: Visit) -> Response:
    async def parts() -> str:
        page = await _page(visit, "")
        return await visit.fragment("queue_now.html", page=page, may_explain=_may_explain(visit))

    return visit.parts.streams.respond(visit, parts, LIST_INTERVAL_S)


async def explain(visit: Visit) -> Response:
    request = pb.ExplainRequestRequest(generation_id=visit.segment("generation_id"))
    explained = explanation(await visit.call(AdminServicer.ExplainRequest, request))
    may_end = visit.may(Action.OPERATE, PLATFORM)  # of a request by its id, which does not say whose it is
    return await visit.render("request.html", told=explained, may_explain=True, may_end=may_end)


async def confirm(visit: Visit) -> Response:
    """What would end, and the question whether it should."""
    asked = Ending(visit.query("id"), visit.query("team"))
    request = asked.request()
    request.validate_only = True
    found = await visit.call(AdminServicer.CancelGenerations, request)
    return await _confirmation(visit, asked, len(found.generation_ids))


async def end(visit: Visit) -> Response:
    """What was confirmed ends; it is on record who said so, and why."""
    asked = Ending(visit.form.text("id"), visit.form.text("team"))
    request = asked.request()
    request.reason = visit.form.text("reason")
    try:
        ended = await visit.call(AdminServicer.CancelGenerations, request)
    except InvalidFieldError as error:
        return await _confirmation(visit, asked, None, error)
    num_told = len(ended.generation_ids)
    words = {0: "Nothing of that was running any more.", 1: "One request was told to stop."}
    return visit.redirect(f"{ROOT}/queue", words.get(num_told, f"{num_told} requests were told to stop."))


async def _page(visit: Visit, token: str) -> QueuePage:
    request = pb.ListQueueRequest(
        parent=_parent(visit.query("team")), state=visit.query("state"), page_size=PAGE_SIZE, page_token=token
    )
    return queue_page(await visit.call(AdminServicer.ListQueue, request))


async def _confirmation(
    visit: Visit, asked: Ending, num_found: int | None, error: GatewayError | None = None
) -> Response:
    """`num_found` None: nobody has looked."""
    status, problems = told(error, FIELDS)
    return await visit.render(
        "queue_end.html",
        status,
        generation_id=asked.generation_id,
        team=short_name(asked.team),
        num_found=num_found,
        reason=visit.form.text("reason"),
        problems=problems,
    )


def _parent(team: str) -> str:
    """Of `acme` all its teams; of nothing everybody's."""
    if not team:
        return EVERY_TEAM
    name = resource_name(team)
    return f"{name}/teams/-" if "/teams/" not in name else name


def _may_explain(visit: Visit) -> bool:
    """Who is served before a request is told to those who may see everybody."""
    return visit.may(Action.READ, PLATFORM)


def _may_end_team(visit: Visit) -> bool:
    path = team_path(resource_name(visit.query("team")))
    return path is not None and visit.may(Action.OPERATE, path)


ROUTES = (
    ConsoleRoute("GET", "/queue", Action.READ, show),
    ConsoleRoute("GET", "/live/queue", Action.READ, follow),
    ConsoleRoute("GET", "/queue/end", Action.OPERATE, confirm),
    ConsoleRoute("POST", "/queue/end", Action.OPERATE, end),
    ConsoleRoute("GET", "/queue/{generation_id}", Action.READ, explain),
)
