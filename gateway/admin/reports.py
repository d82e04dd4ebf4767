"""What reports of sums have in common: the time that they are about, the tenants, and the pages of one question."""

import json
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.names import invalid, parse_node
from gateway.admin.pagination import PageTokens, page_size
from gateway.store.records import ResourcePath
from gateway.store.usage_report import UsageInterval

FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
LAST_DAY = datetime(9999, 1, 1, tzinfo=UTC)

INTERVAL_BY_PB = {pb.UsageInterval.Value(f"USAGE_INTERVAL_{each.name}"): each for each in UsageInterval}

ReportRequest = pb.QueryUsageRequest | pb.QueryDenialsRequest


class Summed(Protocol):
    """A row of a report; `keys` say where it stands in the order."""

    @property
    def keys(self) -> abc.Sequence[str]: ...


Row = TypeVar("Row", bound=Summed)


@dataclass(frozen=True, slots=True)
class ReportPage:
    """The part of a report that one call asks for: up to `size` rows behind those with the keys `after`."""

    size: int
    after: tuple[str, ...] | None
    _tokens: PageTokens
    _question: str

    @classmethod
    def of(cls, request: ReportRequest, tokens: PageTokens) -> "ReportPage":
        """Raises InvalidFieldError; a token continues the same question only."""
        question = type(request)()
        question.MergeFrom(request)  # type: ignore[arg-type]  # it is of the same type
        question.ClearField("page_token")
        question.ClearField("page_size")
        text = f"{request.DESCRIPTOR.name} {question.SerializeToString(deterministic=True).hex()}"
        after = tokens.read(request.page_token, text)
        return cls(page_size(request.page_size), None if after is None else tuple(json.loads(after)), tokens, text)

    def cut(self, rows: abc.Sequence[Row]) -> tuple[abc.Sequence[Row], str]:
        """The page of rows of which one more than `size` were asked for, and the token of the next one, if any."""
        if len(rows) <= self.size:
            return rows, ""
        kept = rows[: self.size]
        return kept, self._tokens.issue(json.dumps(kept[-1].keys), self._question)


def parent_of(request: ReportRequest) -> ResourcePath:
    """Whose sums are asked for; without a word everybody's. Raises InvalidFieldError."""
    return parse_node(request.parent, "parent") if request.parent else ResourcePath(None)


def times_of(request: ReportRequest) -> tuple[datetime, datetime]:
    """Begin and end. Raises InvalidFieldError."""
    begin, end = _moment(request, "start_time"), _moment(request, "end_time")
    if begin >= end:
        raise invalid("end_time", "must be after start_time")
    return begin, end


def interval_of(request: ReportRequest) -> UsageInterval | None:
    """None where rows have no time of their own. Raises InvalidFieldError."""
    if request.interval and request.interval not in INTERVAL_BY_PB:
        raise invalid("interval", "must be one of the intervals that are defined")
    return INTERVAL_BY_PB.get(request.interval)


def _moment(request: ReportRequest, field: Literal["start_time", "end_time"]) -> datetime:
    stamp = getattr(request, field)
    assert isinstance(stamp, Timestamp)
    if not request.HasField(field):
        raise invalid(field, "is required")
    if not FIRST_DAY.timestamp() <= stamp.seconds <= LAST_DAY.timestamp() or not 0 <= stamp.nanos < 10**9:
        raise invalid(field, "must be in the years 1970 to 9998")
    return stamp.ToDatetime(UTC)
