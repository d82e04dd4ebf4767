"""Usage reports: from requests to sums of the ledger, in pages."""

from collections import abc

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.backend import Backend
from gateway.admin.names import class_name, invalid
from gateway.admin.reports import ReportPage, interval_of, parent_of, times_of
from gateway.admin.values import timestamp
from gateway.store.usage_report import UsageDimension, UsageQuery, UsageRow, query_usage

HOUR_S = 3600
DIMENSION_BY_PB = {pb.UsageDimension.Value(f"USAGE_DIMENSION_{each.name}"): each for each in UsageDimension}


class Usage:
    """The method of AdminService on the ledger."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def query(self, request: pb.QueryUsageRequest) -> pb.QueryUsageResponse:
        page = ReportPage.of(request, self._backend.pages)
        begin, end = times_of(request)
        _require_hour(request.start_time, "start_time")
        _require_hour(request.end_time, "end_time")
        query = UsageQuery(
            parent=parent_of(request),
            begin=begin,
            end=end,
            dimensions=_dimensions(request.group_by),
            interval=interval_of(request),
            size=page.size + 1,
            after=page.after,
        )
        rows = await self._backend.read(query_usage(self._backend.database, query), "parent")
        kept, token = page.cut(rows)
        return pb.QueryUsageResponse(rows=map(_to_pb, kept), next_page_token=token)


def _dimensions(values: abc.Sequence[pb.UsageDimension.ValueType]) -> frozenset[UsageDimension]:
    for index, value in enumerate(values):
        if value not in DIMENSION_BY_PB:
            raise invalid(f"group_by[{index}]", "must be one of the dimensions that are defined")
    return frozenset(DIMENSION_BY_PB[value] for value in values)


def _require_hour(stamp: Timestamp, field: str) -> None:
    if stamp.nanos or stamp.seconds % HOUR_S:
        raise invalid(field, "must be a whole hour, UTC")


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
