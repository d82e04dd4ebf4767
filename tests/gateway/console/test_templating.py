"""Figures as people read them, and templates that escape whatever they are given."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from jinja2 import DictLoader, UndefinedError

from gateway.console.statics import Statics
from gateway.console.templating import Templates, duration, last_segment, moment, percent, size
from gateway.words import counted, number


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (number(0), "0"),
        (number(1234567), "1,234,567"),
        (number(0.25), "0.25"),
        (number(1234.5), "1,234"),
        (percent(0.1234), "12.3 %"),
        (size(0), "0 B"),
        (size(1536), "1.5 KiB"),
        (size(3 * 2**40), "3.0 TiB"),
        (duration(0.25), "250 ms"),
        (duration(2.5), "2.5 s"),
        (duration(60), "1 min"),
        (duration(3725), "1 h 2 min"),
        (duration(Duration(seconds=90_000)), "1 d 1 h"),
        (counted(1, "token"), "1 token"),
        (counted(1200, "token"), "1,200 tokens"),
        (last_segment("organizations/acme/teams/search"), "search"),
    ],
)
def test_figures_are_readable(shown: str, expected: str) -> None:
    assert shown == expected


def test_a_moment_is_in_utc_and_an_unset_one_is_a_dash() -> None:
    at = datetime(2026, 11, 30, 12, 5, tzinfo=timezone(timedelta(hours=1)))
    stamp = Timestamp()
    stamp.FromDatetime(at.astimezone(UTC))

    assert moment(at) == moment(stamp) == '<time datetime="2026-11-30T11:05:00+00:00">2026-11-30 11:05 UTC</time>'
    assert moment(None) == moment(Timestamp()) == '<span class="none">–</span>'


async def test_templates_escape_and_refuse_what_nobody_gave_them() -> None:
    pages = {"whole": "{{ name }}", "lacking": "{{ name }}{% if missing %}{% endif %}"}
    templates = Templates(Statics(), DictLoader(pages))

    with pytest.raises(UndefinedError):
        await templates.render("lacking", {"name": "x"})
    assert await templates.render("whole", {"name": "<b>&'\""}) == "&lt;b&gt;&amp;&#39;&#34;"


def test_files_have_addresses_of_what_they_hold() -> None:
    statics = Statics()

    assert statics.url("console.css").startswith("/console/static/")
    assert {"console.css", "console.js", "icon.svg"} <= set(statics.names)
    with pytest.raises(KeyError):
        statics.url("../app.py")
