"""Lines and stacks over time, and bars: what each kind of chart draws inside its frame."""

from collections import abc
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal
from xml.etree import ElementTree as ET

from markupsafe import Markup

from gateway.console.charts import marks
from gateway.console.charts.figure import (
    Canvas,
    Chart,
    Frame,
    Series,
    empty,
    exact_text,
    finished,
    moments_of,
    new_figure,
    summary_of,
    ticks_of,
    to_markup,
)
from gateway.console.charts.marks import add, px
from gateway.console.charts.scale import share_text
from gateway.console.words import NOTHING

MAX_NAME_CHARS = 44  # of a bar; a telephone shows so many
BAR_PX, LINE_PX, GAP_PX = 14, 18, 14
LONGEST_BAR = 0.8  # of the width, so that its figure fits behind it
LONE_S = 0.02  # of the two seconds that are drawn around a lone moment
COLUMN_SHARE = 0.8  # of the time between two columns

Kind = Literal["area", "columns"]


@dataclass(frozen=True, slots=True)
class Bar:
    """One thing that is measured, with a value of each series. None: there is none to show."""

    name: str
    values: abc.Sequence[float | None]


def line_chart(frame: Frame, series: abc.Sequence[Series]) -> Chart:
    """A line of each series over one time axis. The values axis begins at 0."""
    moments = moments_of(series)
    if not moments:
        return empty(frame)
    values = [value for each in series for _, value in each.points if value is not None]
    canvas = Canvas(frame, moments, ticks_of(frame, values), summary_of(frame, series))
    for index, each in enumerate(series):
        path = _line_path(canvas, each.points)
        if path:
            add(canvas.plot, "path", class_=f"chart-line {marks.color(index)}", d=path)
    return canvas.finish(series, "line")


def stacked_chart(frame: Frame, series: abc.Sequence[Series], kind: Kind = "area") -> Chart:
    """The series upon each other over one time axis; a gap counts as 0. `columns` for sums of days or hours.

    A column's time is where its interval begins.
    """
    moments = moments_of(series)
    if not moments:
        return empty(frame)
    known = [dict(each.points) for each in series]
    levels = [[0.0] * len(moments)]
    for values in known:
        levels.append([low + (values.get(at) or 0.0) for low, at in zip(levels[-1], moments, strict=True)])
    step_s = _step_s(moments) if kind == "columns" else 0.0
    canvas = Canvas(frame, moments, ticks_of(frame, levels[-1]), summary_of(frame, series), step_s)
    for index, (low, high) in enumerate(pairwise(levels)):
        draw = _column_path if kind == "columns" else _area_path
        add(canvas.plot, "path", class_=f"chart-area {marks.color(index)}", d=draw(canvas, moments, low, high))
    return canvas.finish(series, "area")


def bar_chart(frame: Frame, names: abc.Sequence[str], bars: abc.Sequence[Bar]) -> Chart:
    """A group of horizontal bars for each of `bars`, one bar for each of `names`; longest is longest."""
    if not bars:
        return empty(frame)
    highest = max((value for bar in bars for value in bar.values if value is not None), default=0.0) or 1.0
    group_px = LINE_PX + len(names) * BAR_PX + GAP_PX
    figure, picture = new_figure(frame, len(bars) * group_px, _bar_summary(frame, names, bars))
    for row, bar in enumerate(bars):
        top = row * group_px
        label = add(picture, "text", _shortened(bar.name), class_="chart-name", x="0", y=top + 13)
        if len(bar.name) > MAX_NAME_CHARS:
            add(label, "title", bar.name)
        for index, value in enumerate(bar.values):
            length = LONGEST_BAR * (value or 0.0) / highest
            y = top + LINE_PX + index * BAR_PX
            shape: dict[str, Any] = {"x": 0, "y": y, "width": marks.percent(length), "height": BAR_PX - 2}
            add(picture, "rect", class_=f"chart-area {marks.color(index)}", **shape)
            text = NOTHING if value is None else frame.unit.short(value)
            add(picture, "text", text, class_="chart-label", x=marks.percent(length), dx="6", y=y + 10)
    rows = [[bar.name, *(exact_text(frame, value) for value in bar.values)] for bar in bars]
    return finished(frame, figure, "area", ["", *names], rows)


def share_bar(share: float, fair: float, *, label: str) -> Markup:
    """One small bar for a row of a table: `share` of the whole, and a mark where `fair` is. Both are from 0 to 1."""
    text = f"{label}: {share_text(share)}, fair share {share_text(fair)}"
    bar = ET.Element(
        "svg", {"class": "chart-share", "role": "img", "aria-label": text, "width": "100%", "height": "14"}
    )
    add(bar, "title", text)
    add(bar, "rect", class_="chart-trough", x=0, y=2, width="100%", height=10)
    add(bar, "rect", class_=f"chart-area {marks.color(0)}", x=0, y=2, width=marks.percent(_part(share)), height=10)
    add(bar, "line", class_="chart-mark", x1=marks.percent(_part(fair)), x2=marks.percent(_part(fair)), y1=0, y2=14)
    return to_markup(bar)


def _line_path(canvas: Canvas, points: abc.Sequence[tuple[float, float | None]]) -> str:
    """A lone point between two gaps is a line of no length, which has round ends; a lone moment is a dash."""
    if len(canvas.moments) == 1:
        known = ((at, value) for at, value in points if value is not None)
        return "".join(f"M{canvas.point(at - LONE_S, value)}L{canvas.point(at + LONE_S, value)}" for at, value in known)
    parts, is_drawing = [], False
    for moment_s, value in sorted(points, key=itemgetter(0)):
        if value is not None:
            point = canvas.point(moment_s, value)
            parts.append(f"L{point}" if is_drawing else f"M{point}h0")
        is_drawing = value is not None
    return "".join(parts)


def _area_path(
    canvas: Canvas, moments: abc.Sequence[float], low: abc.Sequence[float], high: abc.Sequence[float]
) -> str:
    """A lone moment is a narrow column, so that there is something to see."""
    if len(moments) == 1:
        moments = [moments[0] - LONE_S / 2, moments[0] + LONE_S / 2]
        low, high = [*low, *low], [*high, *high]
    top = [canvas.point(at, value) for at, value in zip(moments, high, strict=True)]
    bottom = [canvas.point(at, value) for at, value in zip(moments, low, strict=True)]
    return f"M{'L'.join([*top, *reversed(bottom)])}Z"


def _column_path(
    canvas: Canvas, moments: abc.Sequence[float], low: abc.Sequence[float], high: abc.Sequence[float]
) -> str:
    width = COLUMN_SHARE * (canvas.x(canvas.first_s + _step_s(moments)) - canvas.x(canvas.first_s))
    parts = []
    for at, bottom, top in zip(moments, low, high, strict=True):
        x, y, height = canvas.x(at), canvas.y(top), canvas.y(bottom) - canvas.y(top)
        if height > 0:
            parts.append(f"M{px(x)},{px(y)}h{px(width)}v{px(height)}h{px(-width)}Z")
    return "".join(parts)


def _step_s(moments: abc.Sequence[float]) -> float:
    """The shortest time between two of them; a second where there is one only."""
    return min((after - before for before, after in pairwise(moments)), default=1.0)


def _bar_summary(frame: Frame, names: abc.Sequence[str], bars: abc.Iterable[Bar]) -> str:
    told = []
    for bar in bars:
        values = (f"{name} {exact_text(frame, value)}" for name, value in zip(names, bar.values, strict=True))
        told.append(f"{bar.name}: {', '.join(values)}.")
    return " ".join(told)


def _part(share: float) -> float:
    return min(1.0, max(0.0, share))


def _shortened(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"
