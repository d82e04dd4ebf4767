"""Audit events: read, filtered, and the whole chain as a stream that its reader can check."""

import json
from collections import abc

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend, Listing, refusal
from gateway.admin.values import timestamp
from gateway.store.audit import FIELDS, chain_end, list_audit_events, read_chain
from gateway.store.audit_chain import ChainedEvent, Document
from gateway.store.errors import StoreError

LISTING = Listing("auditEvents", FIELDS, int, weigh=lambda event: _weight(event))


class Audit:
    """The methods of AdminService on the record of changes."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def list(self, request: pb.ListAuditEventsRequest) -> pb.ListAuditEventsResponse:
        records, token = await self._backend.filtered_page(
            lambda page: list_audit_events(self._backend.database, page), request, LISTING
        )
        return pb.ListAuditEventsResponse(audit_events=map(_to_pb, records), next_page_token=token)

    async def export(self) -> abc.AsyncIterator[pb.ExportAuditResponse]:
        """Every event up to the one that is the newest now, then its hash and revision by the other witness."""
        end = await self._backend.read(chain_end(self._backend.database))
        try:
            async for batch in read_chain(self._backend.database, end):
                yield pb.ExportAuditResponse(audit_events=map(_to_pb, batch))
        except StoreError as error:
            raise refusal(error, "") from error
        yield pb.ExportAuditResponse(head=end.head, revision=end.revision)


def _to_pb(event: ChainedEvent) -> pb.AuditEvent:
    content = event.content
    return pb.AuditEvent(
        name=f"auditEvents/{event.id}",
        event_time=timestamp(content["event_time"]),
        actor=content["actor"],
        action=content["action"],
        resource=content["resource"],
        before=_json(content["before"]),
        after=_json(content["after"]),
        request_id=content["correlation_id"],
        hash=event.hash,
        previous_hash=event.previous_hash,
        revision=content["revision"],
    )


def _weight(event: ChainedEvent) -> int:
    """About how many bytes it takes in an answer."""
    return sum(len(_json(event.content[part])) for part in ("before", "after"))


def _json(document: Document | None) -> str:
    return "" if document is None else json.dumps(document, sort_keys=True, ensure_ascii=False)
