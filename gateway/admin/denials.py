"""Refusals by limit: from requests to sums of the denial events, in pages."""

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.reports import ReportPage, interval_of, parent_of, times_of
from gateway.admin.values import timestamp
from gateway.store.denial_report import DenialQuery, DenialRow, query_denials


class Denials:
    """The method of AdminService on refusals."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def query(self, request: pb.QueryDenialsRequest) -> pb.QueryDenialsResponse:
        """A page in the order of the rows' numbers."""
        page = ReportPage.of(request, self._backend.pages)
        begin, end = times_of(request)
        query = DenialQuery(parent_of(request), begin, end, interval_of(request), size=page.size + 1, after=page.after)
        rows = await self._backend.read(query_denials(self._backend.database, query), "parent")
        kept, token = page.cut(rows)
        return pb.QueryDenialsResponse(rows=map(_to_pb, kept), next_page_token=token)


def _to_pb(row: DenialRow) -> pb.DenialSum:
    wait = None
    if row.longest_wait_ms is not None:
        wait = Duration()
        wait.FromMilliseconds(row.longest_wait_ms)
    return pb.DenialSum(
        start_time=timestamp(row.start),
        node=row.node,
        dimension=row.dimension,
        shadow=row.is_shadow,
        request_count=row.num_requests,
        team_count=row.num_teams,
        input_tokens=row.input_tokens,
        reserved_tokens=row.reserved_tokens,
        last_time=timestamp(row.last_at),
        longest_wait=wait,
    )
