"""Refusals by limit: from requests to sums of the denial events, in pages."""

import json
from datetime import UTC, datetime
from typing import Literal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import invalid, parse_node
from gateway.admin.pagination import page_size
from gateway.admin.usage import FIRST_DAY, LAST_DAY, parse_interval
from gateway.admin.values import timestamp
from gateway.store.denial_report import DenialQuery, DenialRow, query_denials
from gateway.store.records import ResourcePath


class Denials:
    """The method of AdminService on refusals."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def query(self, request: pb.QueryDenialsRequest) -> pb.QueryDenialsResponse:
        """A page in the order of the rows' numbers."""
        listing = _listing(request)
        after = self._backend.pages.read(request.page_token, listing)
        size = page_size(request.page_size)
        query = DenialQuery(
            parent=parse_node(request.parent, "parent") if request.parent else ResourcePath(None),
            begin=_time(request, "start_time"),
            end=_time(request, "end_time"),
            interval=parse_interval(request.interval),
            size=size + 1,
            after=None if after is None else tuple(json.loads(after)),
        )
        if query.begin >= query.end:
            raise invalid("end_time", "must be after start_time")
        rows = await self._backend.read(query_denials(self._backend.database, query), "parent")
        token = ""
        if len(rows) > size:
            rows = rows[:size]
            token = self._backend.pages.issue(json.dumps(rows[-1].keys), listing)
        return pb.QueryDenialsResponse(rows=map(_to_pb, rows), next_page_token=token)


def _listing(request: pb.QueryDenialsRequest) -> str:
    """A page token continues the same question only."""
    question = pb.QueryDenialsRequest()
    question.CopyFrom(request)
    question.ClearField("page_token")
    question.ClearField("page_size")
    return f"denials {question.SerializeToString(deterministic=True).hex()}"


def _time(request: pb.QueryDenialsRequest, field: Literal["start_time", "end_time"]) -> datetime:
    stamp = getattr(request, field)
    assert isinstance(stamp, Timestamp)
    if not request.HasField(field):
        raise invalid(field, "is required")
    if not FIRST_DAY.timestamp() <= stamp.seconds < LAST_DAY.timestamp() or not 0 <= stamp.nanos < 10**9:
        raise invalid(field, "must be in the years 1970 to 9998")
    return stamp.ToDatetime(UTC)


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
