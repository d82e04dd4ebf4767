"""Who changed something last, for whoever finds it changed: told to those who may read the audit log."""

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.auth import Action
from gateway.console.visit import Visit
from gateway.store.identity import PLATFORM


async def last_change(visit: Visit, resource: str) -> pb.AuditEvent | None:
    """The newest event about `resource`; None where there is none, or the visitor may not know."""
    if not visit.may(Action.READ, PLATFORM):
        return None
    request = pb.ListAuditEventsRequest(page_size=1, filter=f'resource = "{resource}"', order_by="id desc")
    found = await visit.call(AdminServicer.ListAuditEvents, request)
    return found.audit_events[0] if found.audit_events else None
