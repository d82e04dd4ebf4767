"""What a tenant used in the last weeks, and what its requests spent their time on: the pictures on its page."""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.servicer import AdminServicer
from gateway.console.charts import Chart, Frame, Series, stacked_chart
from gateway.console.charts.scale import SECONDS
from gateway.console.usage import recent_usage, usage_chart
from gateway.console.visit import Visit

DAYS = 30
LATENCY = Frame(
    "latency",
    "Time of a request",
    SECONDS,
    "Of an average request that began on the day.",
)
PARTS = (
    ("waiting", "queue_time"),
    ("prompt", "prefill_time"),
    ("output", "decode_time"),
    ("set aside", "preempted_time"),
)
DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TenantUse:
    """`num_requests` 0: there is nothing to draw."""

    num_requests: int
    num_tokens: int
    tokens: Chart
    latency: Chart


async def read_use(visit: Visit, parent: str) -> TenantUse:
    """Of an organization or a team, by its resource name. Raises GatewayError."""
    question = recent_usage(parent, datetime.now(UTC), DAYS)
    rows = (await visit.call(AdminServicer.QueryUsage, question.series_request())).rows
    return TenantUse(
        num_requests=sum(row.request_count for row in rows),
        num_tokens=sum(row.billed_tokens for row in rows),
        tokens=usage_chart(rows, question),
        latency=latency_chart(rows, question.begin),
    )


def latency_chart(rows: abc.Iterable[pb.UsageSum], begin: datetime) -> Chart:
    """What an average request of each day from `begin` on spent its time on; a day without requests has no column."""
    found = {row.start_time.ToDatetime(UTC): row for row in rows if row.request_count}
    days = [begin + index * DAY for index in range(DAYS)]
    series = [
        Series(name, [(day.timestamp(), _mean_s(found.get(day), field)) for day in days]) for name, field in PARTS
    ]
    return stacked_chart(LATENCY, series if found else [], "columns")


def _mean_s(row: pb.UsageSum | None, field: str) -> float:
    if row is None:
        return 0.0
    length = getattr(row, field)
    assert isinstance(length, Duration)
    return length.ToNanoseconds() / 1e9 / row.request_count
