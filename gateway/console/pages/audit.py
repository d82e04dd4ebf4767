"""The record of changes: who changed what, before and after, and whether the record is whole."""

import asyncio
from collections import abc
from datetime import UTC, datetime

from starlette.responses import Response

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.audit import (
    PAGE_SIZE,
    AuditQuestion,
    audit_line,
    audit_page,
    audit_question,
    chain_state,
    chained,
)
from gateway.console.forms import Problems
from gateway.console.routes import ConsoleRoute
from gateway.console.visit import Visit
from gateway.console.words import NOTHING
from gateway.errors import InvalidFieldError, NotFoundError, UnavailableError
from gateway.store.audit_chain import ChainCheck

CHECK_PATIENCE_S = 60.0
NEWEST_FIRST = "revision desc"
RETRY_S = 10.0
NAMES = ("actor", "action", "resource", "since", "before")


class AlreadyCheckingError(UnavailableError):
    """Somebody else has the record checked now."""

    reason = "ALREADY_CHECKING"

    def __init__(self) -> None:
        super().__init__("the record is being checked for somebody else; try again in a minute", retry_after_s=RETRY_S)


async def show(visit: Visit) -> Response:
    sent = {name: visit.query(name) for name in NAMES}
    try:
        question = audit_question(sent)
        page = audit_page(await visit.call(AdminServicer.ListAuditEvents, _request(question, visit.query("page"))))
    except InvalidFieldError as error:
        problems = Problems.of(error, {**{name: name for name in NAMES}, "page_token": "page"})
        return await visit.render("audit.html", 400, sent=sent, page=None, problems=problems)
    return await visit.render("audit.html", sent=sent, page=page, problems=Problems(), absent=NOTHING)


async def show_event(visit: Visit) -> Response:
    event_id = visit.segment("event_id")
    if not event_id.isdecimal():
        raise NotFoundError(f"auditEvents/{event_id}")
    request = pb.ListAuditEventsRequest(filter=f"id = {event_id}", page_size=1)
    found = await visit.call(AdminServicer.ListAuditEvents, request)
    if not found.audit_events:
        raise NotFoundError(f"auditEvents/{event_id}")
    return await visit.render("audit_event.html", line=audit_line(found.audit_events[0]))


async def check(visit: Visit) -> Response:
    """Every hash is computed again here, a message at a time on a thread, and for one visitor at a time.

    Raises AlreadyCheckingError; UnavailableError where there are too many events.
    """
    checking = visit.parts.checking
    if checking.locked():
        raise AlreadyCheckingError
    chain = ChainCheck()
    head, revision = b"", 0
    try:
        async with checking, asyncio.timeout(CHECK_PATIENCE_S):
            async for message in visit.stream(AdminServicer.ExportAudit, pb.ExportAuditRequest()):
                await asyncio.to_thread(_add, chain, message.audit_events)
                head, revision = message.head, message.revision
    except TimeoutError:
        raise UnavailableError(
            f"the record is too long to be checked in {CHECK_PATIENCE_S:.0f} s: use evenflow audit verify --server"
        ) from None
    state = chain_state(chain, head, revision, datetime.now(UTC))
    return await visit.render("audit_chain.html", state=state)


def _add(chain: ChainCheck, events: abc.Iterable[pb.AuditEvent]) -> None:
    for event in events:
        chain.add(chained(event))


def _request(question: AuditQuestion, token: str) -> pb.ListAuditEventsRequest:
    return pb.ListAuditEventsRequest(
        page_size=PAGE_SIZE, page_token=token, filter=question.filter, order_by=NEWEST_FIRST
    )


ROUTES = (
    ConsoleRoute("GET", "/audit", Action.READ, show, is_platform=True),
    ConsoleRoute("GET", "/audit/check", Action.READ, check, is_platform=True),
    ConsoleRoute("GET", "/audit/{event_id}", Action.READ, show_event, is_platform=True),
)
