"""What is around every chart: its frame, the figure that it becomes, and a canvas with a time axis to draw upon."""

from collections import abc
from dataclasses import dataclass
from operator import itemgetter
from xml.etree import ElementTree as ET

from markupsafe import Markup

from gateway.console.charts import marks
from gateway.console.charts.marks import WIDTH, add, px
from gateway.console.charts.scale import Unit, moment_text, value_ticks
from gateway.console.words import NOTHING


@dataclass(frozen=True, slots=True)
class Frame:
    """What is around every chart. `id` is unique in its page, a word of letters, digits and `-`.

    `note` is a sentence under the title. `height_px` is that of the plot; bars take what they need. `level` is a value
    that a chart over time has a line at, such as a bound, and `level_name` what it is.
    """

    id: str
    title: str
    unit: Unit
    note: str = ""
    height_px: int = 180
    level: float | None = None
    level_name: str = "bound"


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time: (Unix seconds, value), each time once. None is a gap."""

    name: str
    points: abc.Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. In a template it is the whole figure."""

    picture: Markup
    table: Markup
    figure: Markup

    def __html__(self) -> str:
        return self.figure


class Canvas:
    """A chart over time while it is drawn: grid first, then marks, then labels. Mutated by itself only."""

    def __init__(
        self,
        frame: Frame,
        moments: abc.Sequence[float],
        ticks: abc.Sequence[float],
        summary: str,
        last_step_s: float = 0.0,
    ) -> None:
        self.frame, self.moments, self.ticks = frame, moments, ticks
        self.first_s, self.last_s = moments[0], moments[-1] + last_step_s
        if self.first_s == self.last_s:  # one moment only: it is in the middle
            self.first_s, self.last_s = self.first_s - 1, self.last_s + 1
        height_px = frame.height_px
        self._figure, self._picture = new_figure(frame, height_px + marks.TOP_PX + marks.BOTTOM_PX, summary)
        marks.draw_values(self._picture, ticks, height_px, frame.unit)
        self.plot = marks.new_plot(self._picture, height_px)

    def x(self, moment_s: float) -> float:
        return WIDTH * (moment_s - self.first_s) / (self.last_s - self.first_s)

    def y(self, value: float) -> float:
        low, high = self.ticks[0], self.ticks[-1]
        return self.frame.height_px * (high - value) / (high - low)

    def point(self, moment_s: float, value: float) -> str:
        return f"{px(self.x(moment_s))},{px(self.y(value))}"

    def finish(self, series: abc.Sequence[Series], shape: str) -> Chart:
        """The chart of what was drawn."""
        known = [dict(each.points) for each in series]
        span, height_px = (self.first_s, self.last_s), self.frame.height_px
        short = self.frame.unit.short

        def told(moment_s: float) -> str:
            pairs = zip(series, (values.get(moment_s) for values in known), strict=True)
            return ", ".join(f"{one.name} {short(value)}" for one, value in pairs if value is not None)

        self._draw_level()
        marks.draw_hits(self.plot, self.moments, told, span, height_px)
        marks.label_values(self._picture, self.ticks, height_px, self.frame.unit)
        marks.draw_times(self._picture, *span, height_px)
        names = [each.name for each in series]
        rows = [
            [moment_text(moment), *(exact_text(self.frame, values.get(moment)) for values in known)]
            for moment in self.moments
        ]
        return finished(self.frame, self._figure, shape, ["UTC", *names], rows)

    def _draw_level(self) -> None:
        if self.frame.level is not None:
            y = px(self.y(self.frame.level))
            add(self.plot, "line", class_="chart-level", x1=0, x2=f"{WIDTH:.0f}", y1=y, y2=y)


def new_figure(frame: Frame, height_px: int, summary: str) -> tuple[ET.Element, ET.Element]:
    """What holds the picture and the legend, and the picture."""
    box = ET.Element("div", {"class": "chart-view", "id": f"{frame.id}-view"})
    return box, marks.new_picture(box, frame.id, frame.title, summary, height_px)


def finished(
    frame: Frame,
    box: ET.Element,
    shape: str,
    heads: abc.Sequence[str],
    rows: abc.Sequence[abc.Sequence[str]],
) -> Chart:
    """The chart whose picture is in `box`; the first of `heads` is that of the rows, the others are the series."""
    marks.draw_legend(box, heads[1:], shape, "" if frame.level is None else _level_text(frame))
    holder = ET.Element("div")
    marks.draw_table(holder, frame.title, heads, rows)
    return _chart(frame, to_markup(box), to_markup(holder[0]))


def _chart(frame: Frame, picture: Markup, table: Markup) -> Chart:
    unit = Markup(' <span class="chart-unit">{}</span>').format(frame.unit.name) if frame.unit.name else ""
    caption = Markup("<figcaption><strong>{}</strong>{}</figcaption>").format(frame.title, unit)
    note = Markup('<p class="chart-note">{}</p>').format(frame.note) if frame.note else ""
    figure = Markup('<figure class="chart" id="{}">{}{}{}{}</figure>').format(frame.id, caption, note, picture, table)
    return Chart(picture, table, figure)


def empty(frame: Frame) -> Chart:
    """Where there is nothing to draw."""
    view = Markup('<div class="chart-view" id="{}-view"><p class="empty">Nothing to draw yet.</p></div>')
    return _chart(frame, view.format(frame.id), Markup(""))


def to_markup(element: ET.Element) -> Markup:
    """`element` as it is written."""
    # Every text and attribute is escaped by the serializer. No element is closed in itself: HTML knows that of few.
    return Markup(ET.tostring(element, encoding="unicode", short_empty_elements=False))  # noqa: S704


def moments_of(series: abc.Iterable[Series]) -> list[float]:
    """All times that any of the series has a point at, rising."""
    return sorted({moment for each in series for moment, _ in each.points})


def ticks_of(frame: Frame, values: abc.Sequence[float]) -> tuple[float, ...]:
    """The grid lines that all of `values` and the level are between."""
    if frame.level is not None:
        values = [*values, frame.level]
    are_whole = all(value == int(value) for value in values)
    return value_ticks(min(values, default=0.0), max(values, default=0.0), are_whole=are_whole)


def summary_of(frame: Frame, series: abc.Iterable[Series]) -> str:
    """What a listener learns of the picture: where each line ends, and between what it was."""
    told = [_summary(frame.unit, each) for each in series]
    return " ".join(told if frame.level is None else [*told, f"{_level_text(frame)}."])


def _summary(unit: Unit, series: Series) -> str:
    values = [value for _, value in sorted(series.points, key=itemgetter(0)) if value is not None]
    if not values:
        return f"{series.name}: nothing."
    low, high, last = (unit.short(value) for value in (min(values), max(values), values[-1]))
    return f"{series.name}: {last} at the end, from {low} to {high}."


def _level_text(frame: Frame) -> str:
    return f"{frame.level_name} {exact_text(frame, frame.level)}"


def exact_text(frame: Frame, value: float | None) -> str:
    """How the value reads where nothing may be lost."""
    return NOTHING if value is None else frame.unit.exact(value)
