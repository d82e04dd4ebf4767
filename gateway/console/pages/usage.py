"""Usage: who used how much, as a page and as CSV."""

from collections import abc
from datetime import UTC, datetime

from starlette.responses import Response, StreamingResponse

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.charts import Chart
from gateway.console.forms import Problems
from gateway.console.own import own_parent
from gateway.console.routes import ConsoleRoute
from gateway.console.usage import (
    COUNTS,
    FIELDS,
    INTERVALS,
    UsageQuestion,
    form_as_sent,
    form_of,
    usage_chart,
    usage_line,
    usage_page,
    usage_question,
)
from gateway.console.usage_csv import csv_head, csv_lines, csv_name
from gateway.console.visit import Visit
from gateway.errors import InvalidFieldError

CSV_PAGE_SIZE = 1000
PER_CHOICES = (("", "none"), *((interval, interval) for interval in INTERVALS))
FORM_FIELDS = {
    **{name: name for name in ("by", "per", "from", "to")},
    "parent": "tenant",
    "start_time": "from",
    "end_time": "to",
    "page_token": "page",
}


async def show(visit: Visit) -> Response:
    sent = _sent(visit)
    context: dict[str, object] = {"counts": COUNTS, "dimensions": tuple(FIELDS), "per_choices": PER_CHOICES}
    try:
        question = _question(visit)
        response = await visit.call(AdminServicer.QueryUsage, question.request(page_token=visit.query("page")))
        total = await visit.call(AdminServicer.QueryUsage, question.total_request())
        page = usage_page(response, total, question)
        chart = await _chart(visit, question) if page.total else None
    except InvalidFieldError as error:
        problems = Problems.of(error, FORM_FIELDS)
        context |= {"question": None, "page": None, "chart": None, "form": form_as_sent(sent), "problems": problems}
        return await visit.render("usage.html", 400, **context)
    context |= {"question": question, "page": page, "chart": chart, "form": form_of(question), "problems": Problems()}
    return await visit.render("usage.html", 200, **context)


async def download(visit: Visit) -> Response:
    """All rows, as they come out of the ledger page by page."""
    question = _question(visit)
    first = await visit.call(AdminServicer.QueryUsage, question.request(CSV_PAGE_SIZE))
    headers = {"content-disposition": f'attachment; filename="{csv_name(question)}"'}
    return StreamingResponse(_csv(visit, question, first), media_type="text/csv; charset=utf-8", headers=headers)


async def _chart(visit: Visit, question: UsageQuestion) -> Chart:
    response = await visit.call(AdminServicer.QueryUsage, question.series_request())
    return usage_chart(response.rows, question)


async def _csv(visit: Visit, question: UsageQuestion, page: pb.QueryUsageResponse) -> abc.AsyncIterator[str]:
    yield csv_head(question)
    while True:
        yield csv_lines(usage_line(row, question.by) for row in page.rows)
        if not page.next_page_token:
            return
        page = await visit.call(AdminServicer.QueryUsage, question.request(CSV_PAGE_SIZE, page.next_page_token))


def _question(visit: Visit) -> UsageQuestion:
    return usage_question(_sent(visit), datetime.now(UTC), own_parent(visit.principal))


def _sent(visit: Visit) -> dict[str, list[str]]:
    sent = visit.request.query_params
    return {name: sent.getlist(name) for name in ("tenant", "by", "per", "from", "to")}


ROUTES = (
    ConsoleRoute("GET", "/usage", Action.READ, show),
    ConsoleRoute("GET", "/usage.csv", Action.READ, download),
)
