"""Usage as values for its templates: what is asked for in the page's address, the rows, and their sums. Pure.

Numbers and names are those of `evenflow usage report`: a generation counts in the hour in which it began, in UTC.
"""

from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.charts import Chart, Frame, Series, stacked_chart
from gateway.console.charts.scale import amounts_of
from gateway.console.words import resource_name
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.words import short_name

FIELDS = {
    "organization": "organization",
    "team": "team",
    "key": "api_key",
    "model": "model",
    "class": "priority_class",
}
"""What rows can be told apart by: the word in the address, and the field of a row."""
COUNTS = {
    "request_count": "Requests",
    "input_tokens": "Input",
    "cached_input_tokens": "Cached",
    "output_tokens": "Output",
    "billed_tokens": "Billed",
    "discarded_tokens": "Discarded",
    "recomputed_tokens": "Recomputed",
    "preemption_count": "Preemptions",
}
INTERVALS = ("hour", "day", "month")
DEFAULT_BY = "team"
DATE_FORMATS = ("%Y-%m-%d", "%Y-%m-%dT%H", "%Y-%m-%dT%H:%M")
HOUR = timedelta(hours=1)
MAX_HOURLY = timedelta(days=3)
MAX_DAILY = timedelta(days=400)
PAGE_SIZE = 100
TOKENS = Frame("usage-over-time", "Tokens over time", amounts_of("tokens"), "In the hour or day in which each began.")

Parameters = abc.Mapping[str, abc.Sequence[str]]


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    """What is asked for: of `parent` (a resource name; empty: everybody), whole hours from `begin` to before `end`."""

    parent: str
    by: tuple[str, ...]
    per: str
    begin: datetime
    end: datetime

    def address(self, **further: str) -> str:
        """The query of a link to the same report."""
        parts = [("tenant", short_name(self.parent)), *(("by", each) for each in self.by), ("per", self.per)]
        times = [("from", f"{self.begin:%Y-%m-%dT%H}"), ("to", f"{self.end:%Y-%m-%dT%H}")]
        return urlencode([(name, value) for name, value in [*parts, *times, *further.items()] if value])

    def request(self, page_size: int = PAGE_SIZE, page_token: str = "") -> pb.QueryUsageRequest:
        """The rows."""
        return self._request(self.by, self.per, page_size, page_token)

    def total_request(self) -> pb.QueryUsageRequest:
        """One row for all of it."""
        return self._request((), "", 1, "")

    def series_request(self) -> pb.QueryUsageRequest:
        """A row for each hour, day or month: as many as can be told apart in a picture."""
        return self._request((), self.series_interval, 1000, "")

    @property
    def series_interval(self) -> str:
        length = self.end - self.begin
        return "hour" if length <= MAX_HOURLY else "day" if length <= MAX_DAILY else "month"

    def _request(self, by: abc.Iterable[str], per: str, page_size: int, page_token: str) -> pb.QueryUsageRequest:
        request = pb.QueryUsageRequest(
            parent=self.parent,
            group_by=[pb.UsageDimension.Value(f"USAGE_DIMENSION_{FIELDS[each].upper()}") for each in by],
            interval=interval_value(per),
            page_size=page_size,
            page_token=page_token,
        )
        request.start_time.FromDatetime(self.begin)
        request.end_time.FromDatetime(self.end)
        return request


@dataclass(frozen=True, slots=True)
class UsageForm:
    """What the fields of the form hold."""

    tenant: str
    by: tuple[str, ...]
    per: str
    begin: str
    end: str


@dataclass(frozen=True, slots=True)
class UsageLine:
    """One row: its time if rows have one, the names that tell it apart, and its counts in the order of COUNTS."""

    start: datetime | None
    names: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UsagePage:
    """`total` is of the whole report, not of this page; None: there is nothing."""

    lines: tuple[UsageLine, ...]
    total: UsageLine | None
    next_page_token: str


def interval_value(per: str) -> pb.UsageInterval.ValueType:
    """Of the word for an interval; empty: rows have no time of their own."""
    return pb.UsageInterval.Value(f"USAGE_INTERVAL_{per.upper()}") if per else pb.USAGE_INTERVAL_UNSPECIFIED


def usage_question(sent: Parameters, now: datetime, own_parent: str) -> UsageQuestion:
    """What the address asks for; by default the teams in this month, of `own_parent` where no tenant is named.

    Raises InvalidFieldError, whose violations name the fields of the form.
    """
    problems: list[FieldViolation] = []
    by = tuple(dict.fromkeys(sent.get("by", ()))) or (DEFAULT_BY,)
    if not FIELDS.keys() >= set(by):
        problems.append(FieldViolation("by", f"must be among {', '.join(FIELDS)}"))
    per = _last(sent, "per")
    if per not in ("", *INTERVALS):
        problems.append(FieldViolation("per", f"must be one of {', '.join(INTERVALS)}"))
    begin, end = _times(sent, now, problems)
    if begin >= end:
        problems.append(FieldViolation("to", "must be after the begin"))
    if problems:
        raise InvalidFieldError(*problems)
    tenant = _last(sent, "tenant")
    return UsageQuestion(resource_name(tenant) if tenant else own_parent, by, per, begin, end)


def form_of(question: UsageQuestion) -> UsageForm:
    """Times as days where they begin one."""
    tenant = short_name(question.parent)
    return UsageForm(tenant, question.by, question.per, _time_text(question.begin), _time_text(question.end))


def form_as_sent(sent: Parameters) -> UsageForm:
    """As it was filled in, for what is wrong with it to be mended."""
    by = tuple(sent.get("by", ()))
    return UsageForm(_last(sent, "tenant"), by, _last(sent, "per"), _last(sent, "from"), _last(sent, "to"))


def usage_page(response: pb.QueryUsageResponse, total: pb.QueryUsageResponse, question: UsageQuestion) -> UsagePage:
    whole = usage_line(total.rows[0], ()) if total.rows else None
    lines = tuple(usage_line(row, question.by) for row in response.rows)
    return UsagePage(lines, whole, response.next_page_token)


def usage_line(row: pb.UsageSum, by: abc.Iterable[str]) -> UsageLine:
    return UsageLine(
        start=row.start_time.ToDatetime(UTC) if row.HasField("start_time") else None,
        names=tuple(_name(row, FIELDS[each]) for each in by),
        counts=tuple(getattr(row, name) for name in COUNTS),
    )


def usage_chart(rows: abc.Iterable[pb.UsageSum], question: UsageQuestion) -> Chart:
    """Prompt tokens that were computed, those that were cached, and output tokens; times without usage are 0."""
    found = {row.start_time.ToDatetime(UTC): row for row in rows}
    times = _starts(question, min(found), max(found)) if found else []
    empty = pb.UsageSum()
    points = [(at.timestamp(), found.get(at, empty)) for at in times]
    series = [
        Series("input, computed", [(at, row.input_tokens - row.cached_input_tokens) for at, row in points]),
        Series("input, cached", [(at, row.cached_input_tokens) for at, row in points]),
        Series("output", [(at, row.output_tokens) for at, row in points]),
    ]
    return stacked_chart(TOKENS, series if points else [], "columns")


def recent_usage(parent: str, now: datetime, days: int = 30) -> UsageQuestion:
    """The last days of a tenant, today with them: what its page shows."""
    end = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return UsageQuestion(parent, (), "day", end - timedelta(days=days), end)


def _times(sent: Parameters, now: datetime, problems: list[FieldViolation]) -> tuple[datetime, datetime]:
    month_begin = now.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = _time(sent, "from", problems) or month_begin
    this_hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return begin, _time(sent, "to", problems) or this_hour + HOUR


def _time(sent: Parameters, field: str, problems: list[FieldViolation]) -> datetime | None:
    text = _last(sent, field)
    for form in DATE_FORMATS if text else ():
        try:
            found = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        if found.minute == 0:
            return found
    if text:
        problems.append(FieldViolation(field, "must be a day such as 2026-11-30, or a whole hour: 2026-11-30T14"))
    return None


def _starts(question: UsageQuestion, first: datetime, last: datetime) -> list[datetime]:
    """Where each interval begins; of months those between the first and the last that have usage."""
    interval = question.series_interval
    if interval == "month":
        months = range(first.year * 12 + first.month - 1, last.year * 12 + last.month)
        return [datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC) for month in months]
    begin = question.begin if interval == "hour" else question.begin.replace(hour=0)
    step = HOUR if interval == "hour" else timedelta(days=1)
    return [begin + index * step for index in range(-(-(question.end - begin) // step))]


def _time_text(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H}" if at.hour else f"{at:%Y-%m-%d}"


def _last(sent: Parameters, field: str) -> str:
    values = sent.get(field, ())
    return values[-1].strip() if values else ""


def _name(row: pb.UsageSum, field: str) -> str:
    """`acme/search` of a resource, the id of one that is gone."""
    value = getattr(row, field)
    assert isinstance(value, str)
    return value if field == "model" else short_name(value)
