"""Usage reports: from requests to sums of the ledger, in pages."""

import json
from collections import abc
from datetime import UTC, datetime
from typing import Literal

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import class_name, invalid, parse_node
from gateway.admin.pagination import page_size
from gateway.admin.values import timestamp
from gateway.store.records import ResourcePath
from gateway.store.usage_report import UsageDimension, UsageInterval, UsageQuery, UsageRow, query_usage

HOUR_S = 3600
FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DAY = datetime(9999, 1, 1, tzinfo=UTC)

DIMENSION_BY_PB = {pb.UsageDimension.Value(f"USAGE_DIMENSION_{each.name}"): each for each in UsageDimension}
INTERVAL_BY_PB = {pb.UsageInterval.Value(f"USAGE_INTERVAL_{each.name}"): each for each in UsageInterval}


class Usage:
    """The method of AdminService on the ledger."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def query(self, request: pb.QueryUsageRequest) -> pb.QueryUsageResponse:
        listing = _listing(request)
        after = self._backend.pages.read(request.page_token, listing)
        size = page_size(request.page_size)
        query = UsageQuery(
            parent=parse_node(request.parent, "parent") if request.parent else ResourcePath(None),
            begin=_hour(request, "start_time"),
            end=_hour(request, "end_time"),
            dimensions=_dimensions(request.group_by),
            interval=parse_interval(request.interval),
            size=size + 1,
            after=None if after is None else tuple(json.loads(after)),
        )
        if query.begin >= query.end:
            raise invalid("end_time", "must be after start_time")
        rows = await self._backend.read(query_usage(self._backend.database, query), "parent")
        token = ""
        if len(rows) > size:
            rows = rows[:size]
            token = self._backend.pages.issue(json.dumps(rows[-1].keys), listing)
        return pb.QueryUsageResponse(rows=map(_to_pb, rows), next_page_token=token)


def _listing(request: pb.QueryUsageRequest) -> str:
    """A page token continues the same question only."""
    question = pb.QueryUsageRequest()
    question.CopyFrom(request)
    question.ClearField("page_token")
    question.ClearField("page_size")
    return f"usage {question.SerializeToString(deterministic=True).hex()}"


def _dimensions(values: abc.Sequence[pb.UsageDimension.ValueType]) -> frozenset[UsageDimension]:
    for index, value in enumerate(values):
        if value not in DIMENSION_BY_PB:
            raise invalid(f"group_by[{index}]", "must be one of the dimensions that are defined")
    return frozenset(DIMENSION_BY_PB[value] for value in values)


def parse_interval(value: pb.UsageInterval.ValueType) -> UsageInterval | None:
    """None where rows have no time of their own. Raises InvalidFieldError."""
    if value and value not in INTERVAL_BY_PB:
        raise invalid("interval", "must be one of the intervals that are defined")
    return INTERVAL_BY_PB.get(value)


def _hour(request: pb.QueryUsageRequest, field: Literal["start_time", "end_time"]) -> datetime:
    stamp = getattr(request, field)
    assert isinstance(stamp, Timestamp)
    if not request.HasField(field):
        raise invalid(field, "is required")
    if stamp.nanos or stamp.seconds % HOUR_S:
        raise invalid(field, "must be a whole hour, UTC")
    if not FIRST_DAY.timestamp() <= stamp.seconds <= LAST_DAY.timestamp():
        raise invalid(field, "must be in the years 1970 to 9998")
    return stamp.ToDatetime(UTC)


def _to_pb(row: UsageRow) -> pb.UsageSum:
    sums = row.sums
    return pb.UsageSum(
        start_time=timestamp(row.start),
        organization=row.organization or "",
        team=row.team or "",
        api_key=row.api_key or "",
        model=row.model or "",
        priority_class="" if row.priority_class is None else class_name(row.priority_class),
        request_count=sums.num_requests,
        input_tokens=sums.input_tokens,
        cached_input_tokens=sums.cached_input_tokens,
        output_tokens=sums.output_tokens,
        billed_tokens=sums.billed_tokens,
        discarded_tokens=sums.discarded_tokens,
        recomputed_tokens=sums.recomputed_tokens,
        preemption_count=sums.num_preemptions,
        queue_time=_duration(sums.queue_ns),
        prefill_time=_duration(sums.prefill_ns),
        decode_time=_duration(sums.decode_ns),
        preempted_time=_duration(sums.preempted_ns),
    )


def _duration(length_ns: int) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(length_ns)
    return duration
