"""Usage reports: what an address asks for, and the file that a spreadsheet opens."""

import csv
import io
from datetime import UTC, datetime

import pytest

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.usage import UsageLine, recent_usage, usage_chart, usage_question
from gateway.console.usage_csv import csv_head, csv_lines, csv_name
from gateway.console.words import resource_name
from gateway.errors import InvalidFieldError
from gateway.words import short_name

NOW = datetime(2026, 11, 30, 10, 40, tzinfo=UTC)


def question(**sent: str | list[str]):
    values = {name.rstrip("_"): [value] if isinstance(value, str) else value for name, value in sent.items()}
    return usage_question(values, NOW, "organizations/acme")


def test_an_address_without_a_question_asks_for_the_teams_of_this_month():
    asked = question()

    assert (asked.parent, asked.by, asked.per) == ("organizations/acme", ("team",), "")
    assert (asked.begin, asked.end) == (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 30, 11, tzinfo=UTC))


def test_a_link_to_a_report_asks_the_same():
    asked = question(tenant="acme/search", by=["team", "model"], per="day", from_="2026-11-02T03", to="2026-11-20")
    pairs = dict.fromkeys(("tenant", "by", "per", "from", "to"), ())
    for name, value in [each.split("=") for each in asked.address().replace("%2F", "/").split("&")]:
        pairs[name] = (*pairs[name], value)

    assert usage_question(pairs, NOW, "") == asked
    assert asked.request().parent == "organizations/acme/teams/search"


@pytest.mark.parametrize(
    ("sent", "fields"),
    [
        ({"by": ["team", "color"]}, ["by"]),
        ({"per": "week"}, ["per"]),
        ({"from_": "yesterday", "to": "2026-11-30T10:30"}, ["from", "to"]),
        ({"from_": "2026-11-30", "to": "2026-11-30"}, ["to"]),
    ],
)
def test_what_cannot_be_asked_is_told_by_field(sent, fields):
    with pytest.raises(InvalidFieldError) as refused:
        question(**sent)

    assert [violation.field for violation in refused.value.field_violations] == fields


@pytest.mark.parametrize(
    ("begin", "end", "interval", "num_columns"),
    [("2026-11-29", "2026-11-30T10", "hour", 34), ("2026-11-01", "2026-11-30T10", "day", 30)],
)
def test_times_without_usage_are_columns_of_nothing(begin, end, interval, num_columns):
    asked = question(from_=begin, to=end)
    row = pb.UsageSum(input_tokens=9, cached_input_tokens=4, output_tokens=2)
    row.start_time.FromDatetime(asked.begin)
    chart = usage_chart([row], asked)

    assert asked.series_interval == interval
    assert chart.table.count("<tr>") - 1 == num_columns
    assert "Nothing to draw" in usage_chart([], asked).figure


def test_of_decades_only_the_months_that_have_usage_are_drawn():
    asked = question(from_="1970-01-01", to="9998-01-01")
    rows = [pb.UsageSum(output_tokens=1), pb.UsageSum(output_tokens=2)]
    for row, month in zip(rows, (10, 12), strict=True):
        row.start_time.FromDatetime(datetime(2025, month, 1, tzinfo=UTC))

    assert usage_chart(rows, asked).table.count("<tr>") - 1 == 3


def test_the_last_days_end_with_today():
    asked = recent_usage("organizations/acme", NOW, 2)

    assert (asked.begin, asked.end) == (datetime(2026, 11, 29, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx"])
def test_no_cell_is_a_formula(name):
    line = UsageLine(None, (name,), (1,) * 8)
    ((cell, *_),) = csv.reader(io.StringIO(csv_lines([line]), newline=""))

    assert cell == f"'{name}"


def test_quotes_commas_and_line_breaks_stay_in_their_cell():
    name = 'a "b", c\nd'
    lines = csv_head(question(by="model")) + csv_lines([UsageLine(None, (name,), tuple(range(8)))])

    assert list(csv.reader(io.StringIO(lines, newline="")))[1] == [name, *map(str, range(8))]


def test_a_file_is_called_by_what_is_in_it():
    assert csv_name(question(tenant="acme/search")) == "usage-acme-search-20261101T00-20261130T11.csv"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("acme", "organizations/acme"),
        ("acme/search", "organizations/acme/teams/search"),
        ("acme/search/9fKq", "organizations/acme/teams/search/apiKeys/9fKq"),
    ],
)
def test_people_write_short_names(text, name):
    assert resource_name(text) == name
    assert resource_name(name) == name
    assert short_name(name) == text


def test_what_is_no_resource_keeps_its_name():
    assert short_name("1b4e28ba-2fa1/1b4e28ba-2fa2") == "1b4e28ba-2fa1/1b4e28ba-2fa2"
    assert resource_name("a/b/c/d") == "a/b/c/d"
