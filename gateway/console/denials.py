"""Refusals as values for their template: how often each limit refused, and when. Pure."""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.charts import Chart, Frame, Series, stacked_chart
from gateway.console.charts.scale import amounts_of
from gateway.console.words import dimension_text
from gateway.words import short_name

MAX_SHOWN_DIMENSIONS = 8
TIMES = Frame("denials-over-time", "Refusals over time", amounts_of("violated limits"))
SPANS = {"1h": timedelta(hours=1), "24h": timedelta(hours=24), "7d": timedelta(days=7), "30d": timedelta(days=30)}
"""By the word in the page's address; refusals are kept for the longest of them."""
DEFAULT_SPAN = "24h"


@dataclass(frozen=True, slots=True)
class LimitLine:
    """One limit. `longest_wait_s` None: of no request is it known, or it never ends."""

    node: str
    dimension: str
    is_shadow: bool
    num_requests: int
    num_teams: int
    input_tokens: int
    reserved_tokens: int
    last_at: datetime
    longest_wait_s: float | None


@dataclass(frozen=True, slots=True)
class DenialsPage:
    """Limits in ENFORCE and BORROW, which refused, and those in SHADOW, which would have."""

    refusing: tuple[LimitLine, ...]
    shadows: tuple[LimitLine, ...]
    next_page_token: str

    @property
    def num_requests(self) -> int:
        """Of this page; a request that several limits refused counts at each."""
        return sum(line.num_requests for line in self.refusing)


def denials_page(response: pb.QueryDenialsResponse) -> DenialsPage:
    lines = tuple(map(_line, response.rows))
    return DenialsPage(
        tuple(line for line in lines if not line.is_shadow),
        tuple(line for line in lines if line.is_shadow),
        response.next_page_token,
    )


def denials_chart(rows: abc.Sequence[pb.DenialSum], begin: datetime, end: datetime, step: timedelta) -> Chart:
    """Columns by dimension of what was refused; times without a refusal are 0. `begin` is on a step."""
    times = [begin + index * step for index in range(-(-(end - begin) // step))]
    counts: dict[str, dict[datetime, int]] = {}
    for row in rows:
        if not row.shadow:
            by_time = counts.setdefault(row.dimension, {})
            at = row.start_time.ToDatetime(UTC)
            by_time[at] = by_time.get(at, 0) + row.request_count
    order = sorted(counts, key=lambda dimension: -sum(counts[dimension].values()))[:MAX_SHOWN_DIMENSIONS]
    series = [
        Series(dimension_text(dimension), [(at.timestamp(), counts[dimension].get(at, 0)) for at in times])
        for dimension in order
    ]
    return stacked_chart(TIMES, series, "columns")


def _line(row: pb.DenialSum) -> LimitLine:
    return LimitLine(
        node=short_name(row.node),
        dimension=dimension_text(row.dimension),
        is_shadow=row.shadow,
        num_requests=row.request_count,
        num_teams=row.team_count,
        input_tokens=row.input_tokens,
        reserved_tokens=row.reserved_tokens,
        last_at=row.last_time.ToDatetime(UTC),
        longest_wait_s=row.longest_wait.ToNanoseconds() / 1e9 if row.HasField("longest_wait") else None,
    )
