"""Denials: which limits refused how many requests, lately."""

import asyncio
from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.charts import Chart
from gateway.console.denials import DEFAULT_SPAN, SPANS, denials_chart, denials_page
from gateway.console.forms import Problems
from gateway.console.own import own_parent
from gateway.console.routes import ConsoleRoute
from gateway.console.visit import Visit
from gateway.console.words import resource_name
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.words import short_name

PAGE_SIZE = 100
CHART_PAGE_SIZE = 1000
MAX_CHART_PAGES = 20
MAX_HOURLY = timedelta(days=3)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
SPAN_CHOICES = (("1h", "hour"), ("24h", "24 hours"), ("7d", "7 days"), ("30d", "30 days"))
FIELDS = {"parent": "tenant", "page_token": "page", "span": "span"}


async def show(visit: Visit) -> Response:
    sent = visit.query("span") or DEFAULT_SPAN
    tenant = visit.query("tenant")
    parent = resource_name(tenant) if tenant else own_parent(visit.principal)
    context = {"span": sent, "span_choices": SPAN_CHOICES, "tenant": short_name(parent)}
    try:
        span, now = _span(sent), datetime.now(UTC)
        request = _request(parent, now - span, now)
        request.page_size, request.page_token = PAGE_SIZE, visit.query("page")
        page = denials_page(await visit.call(AdminServicer.QueryDenials, request))
    except InvalidFieldError as error:
        empty = denials_page(pb.QueryDenialsResponse())
        problems = Problems.of(error, FIELDS)
        return await visit.render("denials.html", 400, page=empty, chart=None, problems=problems, **context)
    chart = await _chart(visit, parent, span, now) if page.refusing or page.shadows else None
    return await visit.render("denials.html", 200, page=page, chart=chart, problems=Problems(), **context)


def _span(word: str) -> timedelta:
    """Raises InvalidFieldError for what is no choice of ours."""
    if word not in SPANS:
        raise InvalidFieldError(FieldViolation("span", "choose one of the times that are offered"))
    return SPANS[word]


async def _chart(visit: Visit, parent: str, span: timedelta, now: datetime) -> Chart | None:
    """Of all rows, however many limits refused; None where there are more than anybody can wait for."""
    step = HOUR if span <= MAX_HOURLY else DAY
    begin = now - span
    begin = begin.replace(minute=0, second=0, microsecond=0, hour=begin.hour if step == HOUR else 0)
    request = _request(parent, begin, now)
    request.interval = pb.USAGE_INTERVAL_HOUR if step == HOUR else pb.USAGE_INTERVAL_DAY
    request.page_size = CHART_PAGE_SIZE
    rows: list[pb.DenialSum] = []
    for _ in range(MAX_CHART_PAGES):
        response = await visit.call(AdminServicer.QueryDenials, request)
        rows += response.rows
        request.page_token = response.next_page_token
        if not request.page_token:
            return await asyncio.to_thread(denials_chart, rows, begin, now, step)
    return None


def _request(parent: str, begin: datetime, end: datetime) -> pb.QueryDenialsRequest:
    request = pb.QueryDenialsRequest(parent=parent)
    request.start_time.FromDatetime(begin)
    request.end_time.FromDatetime(end)
    return request


ROUTES = (ConsoleRoute("GET", "/denials", Action.READ, show),)
