"""Charts: what is drawn, what is told to those who do not see it, and that nothing in them is a style or a script."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from gateway.console.charts import Bar, Chart, Frame, Series, bar_chart, line_chart, share_bar, stacked_chart
from gateway.console.charts.scale import (
    SECONDS,
    SHARES,
    amount_text,
    amounts_of,
    exact_amount,
    seconds_text,
    share_text,
    time_text,
    time_ticks,
    value_ticks,
)

TEN = 1_796_032_800.0  # 2026-11-30 10:00 UTC
TOKENS = amounts_of("tokens/s")
HOSTILE = '<img src=x onerror="alert(1)">'


class Reading(HTMLParser):
    """Everything that a browser would make of a text."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.texts = ""

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}

    def handle_data(self, data):
        self.texts += data


def minutes(*values: float | None) -> list[tuple[float, float | None]]:
    return [(TEN + 60 * index, value) for index, value in enumerate(values)]


def tree(chart: Chart) -> ET.Element:
    return ET.fromstring(re.sub(r"<(line|rect|path)([^>]*)></\1>", r"<\1\2/>", str(chart.figure)))


def paths(chart: Chart) -> list[str]:
    return [each.get("d") for each in tree(chart).iter("path")]


def cells(chart: Chart) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in tree(chart).iter("tr")]


@pytest.mark.parametrize(
    ("lowest", "highest", "are_whole", "ticks"),
    [
        (0, 0, True, (0, 1)),
        (0, 3, True, (0, 1, 2, 3)),
        (0, 97, True, (0, 50, 100)),
        (0, 400, True, (0, 100, 200, 300, 400)),
        (0, 0.09, False, (0, 0.05, 0.1)),
        (-40, 35, True, (-40, -20, 0, 20, 40)),
    ],
)
def test_ticks_of_values_are_round_and_hold_all_of_them(lowest, highest, are_whole, ticks):
    assert value_ticks(lowest, highest, are_whole=are_whole) == pytest.approx(ticks)


@pytest.mark.parametrize("span_s", [1, 59, 60, 300, 3600, 86_400, 7 * 86_400, 366 * 86_400])
def test_ticks_of_times_are_few_round_and_inside(span_s):
    ticks = time_ticks(TEN + 7, TEN + 7 + span_s)

    assert 1 <= len(ticks) <= 6
    assert all(TEN + 7 <= tick <= TEN + 7 + span_s for tick in ticks)
    texts = [time_text(tick, span_s) for tick in ticks]
    assert len(set(texts)) == len(texts), texts


def test_figures_read_as_people_write_them():
    assert [amount_text(value) for value in (0, 0.25, 12, 999.6, 3400, 1_234_567, -5000)] == [
        *("0", "0.25", "12", "1k", "3.4k", "1.23M", "-5k")
    ]
    assert [exact_amount(value) for value in (1_234_567, 0.5, 1 / 3)] == ["1,234,567", "0.5", "0.3333"]
    assert [seconds_text(value) for value in (0, 0.0021, 0.25, 1.5, 61, 600, 10_800)] == [
        *("0", "2.1 ms", "250 ms", "1.5 s", "61 s", "10 min", "3 h")
    ]
    assert share_text(0.125) == "12.5 %"


def test_a_line_begins_anew_after_a_gap():
    chart = line_chart(Frame("speed", "Tokens per second", TOKENS), [Series("acme", minutes(0, 100, None, 50, 100))])

    (path,) = paths(chart)
    assert path == "M0,180h0L250,0M750,90h0L1000,0"
    assert "acme: 100 at the end, from 0 to 100." in str(chart.picture)


def test_points_are_drawn_in_the_order_of_their_times():
    mixed = [(TEN + 60, 100.0), (TEN, 0.0), (TEN + 120, 50.0)]

    assert paths(line_chart(Frame("mixed", "Mixed", TOKENS), [Series("acme", mixed)])) == ["M0,180h0L500,0L1000,90"]


def test_a_single_moment_is_drawn_in_the_middle():
    assert paths(line_chart(Frame("one", "One", TOKENS), [Series("acme", minutes(4))])) == ["M490,0L510,0"]


def test_a_single_moment_of_a_stack_is_a_narrow_column():
    chart = stacked_chart(Frame("one", "One", TOKENS), [Series("a", minutes(4)), Series("b", minutes(1))])

    assert paths(chart) == ["M495,60L505,60L505,180L495,180Z", "M495,30L505,30L505,60L495,60Z"]


def test_series_are_stacked_upon_each_other_and_a_gap_is_nothing():
    series = [Series("a", minutes(1, 1)), Series("b", minutes(1, None))]

    assert paths(stacked_chart(Frame("sum", "Sum", TOKENS), series)) == [
        "M0,90L1000,90L1000,180L0,180Z",
        "M0,0L1000,90L1000,90L0,90Z",
    ]


def test_columns_have_the_width_of_their_interval():
    chart = stacked_chart(Frame("sum", "Sum", TOKENS), [Series("a", minutes(2, 1))], kind="columns")

    assert paths(chart) == ["M0,0h400v180h-400ZM500,90h400v90h-400Z"]


def test_a_level_is_a_line_within_the_chart_and_has_its_name_in_the_legend():
    frame = Frame("gap", "Gap", TOKENS, level=400, level_name="bound")
    chart = line_chart(frame, [Series("acme", minutes(10, 20))])

    (level,) = [
        line for line in tree(chart).iter("line") if line.get("class") == "chart-level" and line.get("x2") == "1000"
    ]
    assert level.get("y1") == "0"
    assert "bound 400" in str(chart.picture)


def test_bars_are_as_long_as_their_values_and_none_has_no_figure():
    bars = [Bar("acme/search", (2.0, 1.0)), Bar("acme/ads", (None, 0.5))]
    chart = bar_chart(Frame("waits", "Waits", SECONDS), ("now", "proposed"), bars)

    widths = [rect.get("width") for rect in tree(chart).iter("rect") if rect.get("x") == "0"]
    assert widths == ["80%", "40%", "0%", "20%"]
    assert cells(chart) == [["", "now", "proposed"], ["acme/search", "2 s", "1 s"], ["acme/ads", "–", "500 ms"]]
    assert "acme/search: now 2 s, proposed 1 s." in str(chart.picture)


def test_the_table_has_every_figure_or_says_which_it_has():
    chart = line_chart(Frame("long", "Long", TOKENS), [Series("acme", minutes(*range(150)))])

    rows = cells(chart)
    assert "One of 3 points in time; there are 150." in str(chart)
    assert len(rows) == 51
    assert rows[-1] == ["2026-11-30 12:29:00", "149"]


def test_a_picture_is_announced_by_its_title_and_description():
    chart = line_chart(
        Frame("share", "Shares", SHARES), [Series("a", minutes(0.5, 0.25)), Series("b", minutes(0.5, 0.75))]
    )

    picture = next(tree(chart).iter("svg"))
    assert (picture.get("role"), picture.get("aria-labelledby")) == ("img", "share-title share-desc")
    told = {each.get("id"): each.text for each in picture if each.tag in ("title", "desc")}
    assert told["share-title"] == "Shares"
    assert "b: 75 % at the end, from 50 % to 75 %." in told["share-desc"]


def test_nothing_to_draw_is_said():
    frame = Frame("none", "None", TOKENS)

    for chart in (line_chart(frame, []), stacked_chart(frame, [Series("a", [])]), bar_chart(frame, ("now",), [])):
        assert "Nothing to draw yet" in str(chart.figure)


def test_names_cannot_be_markup_and_nothing_needs_a_policy_exception():
    frame = Frame("names", HOSTILE, TOKENS, note=HOSTILE, level=1, level_name=HOSTILE)
    charts = [
        line_chart(frame, [Series(HOSTILE, minutes(1, 2)), Series("b", minutes(1, 2))]),
        stacked_chart(frame, [Series(HOSTILE, minutes(1, 2))], kind="columns"),
        bar_chart(frame, (HOSTILE, "b"), [Bar(HOSTILE + "x" * 50, (1, 2))]),
        share_bar(0.5, 0.4, label=HOSTILE),
    ]

    for chart in charts:
        used = Reading()
        used.feed(str(chart.__html__()))
        assert not used.tags & {"img", "script", "style"}
        assert not any(name == "style" or name.startswith("on") for name in used.attributes)
        assert HOSTILE in used.texts
