"""The parts that charts are drawn of: elements, grid, axes, legend, the table behind the picture. Knows no one chart.

Horizontal places are shares of the width and texts keep their size, so that one picture fits a telephone and a wide
screen alike, without a script. Colours are classes (`s0` to `s7`) of the style sheet, because the content security
policy of the console allows no style in the page itself.
"""

from collections import abc
from itertools import pairwise
from xml.etree import ElementTree as ET

from gateway.console.charts.scale import Unit, moment_text, time_text, time_ticks

NUM_COLORS = 8
TOP_PX = 22  # above the plot: the label of the highest grid line
BOTTOM_PX = 22  # below it: times
WIDTH = 1000.0  # of a plot in its own units, whatever it is on the screen
MAX_TABLE_ROWS = 60
MAX_HITS = 60

Attributes = abc.Mapping[str, object]


def add(parent: ET.Element, tag: str, text: str = "", **attributes: object) -> ET.Element:
    """A child of `parent`. `class_` is written `class`, and every other `_` in a name `-`."""
    named = {name.rstrip("_").replace("_", "-"): str(value) for name, value in attributes.items()}
    child = ET.SubElement(parent, tag, named)
    child.text = text or None
    return child


def new_picture(parent: ET.Element, chart_id: str, title: str, description: str, height_px: int) -> ET.Element:
    """An image that is announced by its title and description, and whose parts are not."""
    ids = f"{chart_id}-title", f"{chart_id}-desc"
    picture = add(parent, "svg", class_="chart-picture", role="img", width="100%", height=height_px)
    picture.set("aria-labelledby", " ".join(ids))
    add(picture, "title", title, id=ids[0])
    add(picture, "desc", description, id=ids[1])
    return picture


def new_plot(picture: ET.Element, height_px: int) -> ET.Element:
    """Where the marks go: WIDTH by `height_px` units, stretched to the whole width."""
    return add(
        picture,
        "svg",
        class_="chart-plot",
        x=0,
        y=TOP_PX,
        width="100%",
        height=height_px,
        viewBox=f"0 0 {WIDTH:.0f} {height_px}",
        preserveAspectRatio="none",
    )


def draw_values(picture: ET.Element, ticks: abc.Sequence[float], height_px: int, unit: Unit) -> None:
    """A grid line for each of `ticks`, its label above it, inside the plot."""
    low, high = ticks[0], ticks[-1]
    for tick in ticks:
        y = TOP_PX + height_px * (high - tick) / (high - low)
        add(picture, "line", class_="chart-axis" if tick == 0 else "chart-grid", x1="0", x2="100%", y1=px(y), y2=px(y))


def label_values(picture: ET.Element, ticks: abc.Sequence[float], height_px: int, unit: Unit) -> None:
    """Drawn last, so that no line goes through a label."""
    low, high = ticks[0], ticks[-1]
    for tick in ticks:
        y = TOP_PX + height_px * (high - tick) / (high - low)
        add(picture, "text", unit.short(tick), class_="chart-label", x="0", y=px(y - 4))


def draw_times(picture: ET.Element, first_s: float, last_s: float, height_px: int) -> None:
    """The labels below the plot."""
    span_s = last_s - first_s
    for tick in time_ticks(first_s, last_s):
        share = (tick - first_s) / span_s if span_s else 0.5
        anchor = "start" if share < 0.04 else "end" if share > 0.96 else "middle"
        text = add(picture, "text", time_text(tick, span_s), class_="chart-label", x=percent(share))
        text.set("y", str(TOP_PX + height_px + 16))
        text.set("text-anchor", anchor)


def draw_legend(parent: ET.Element, names: abc.Sequence[str], shape: str, level: str) -> None:
    """Which colour is what, and what the level is at, if there is one; nothing where one thing only is drawn."""
    if len(names) < 2 and not level:
        return
    legend = add(parent, "ul", class_="chart-legend")
    for index, name in enumerate(names):
        item = add(legend, "li")
        swatch = add(item, "svg", class_="chart-swatch", width=22, height=12, aria_hidden="true")
        if shape == "line":
            add(swatch, "line", class_=f"chart-line {color(index)}", x1=0, x2=22, y1=6, y2=6)
        else:
            add(swatch, "rect", class_=f"chart-area {color(index)}", x=4, y=0, width=12, height=12)
        add(item, "span", name)
    if level:
        item = add(legend, "li")
        swatch = add(item, "svg", class_="chart-swatch", width=22, height=12, aria_hidden="true")
        add(swatch, "line", class_="chart-level", x1=0, x2=22, y1=6, y2=6)
        add(item, "span", level)


def draw_table(parent: ET.Element, title: str, heads: abc.Sequence[str], rows: abc.Sequence[abc.Sequence[str]]) -> None:
    """The figures, folded: the first column and the first row are headings. Of many rows, evenly chosen ones."""
    every = -(-len(rows) // MAX_TABLE_ROWS) or 1
    shown = [row for index, row in enumerate(rows) if (len(rows) - 1 - index) % every == 0]
    details = add(parent, "details", class_="chart-data")
    add(details, "summary", "Figures")
    box = add(details, "div", class_="scroll", tabindex=0, role="region", aria_label=f"Figures: {title}")
    table = add(box, "table")
    if every > 1:
        add(table, "caption", f"One of {every} points in time; there are {len(rows)}.")
    head = add(add(table, "thead"), "tr")
    for name in heads:
        add(head, "th", name, scope="col")
    body = add(table, "tbody")
    for first, *others in shown:
        row = add(body, "tr")
        add(row, "th", first, scope="row")
        for text in others:
            add(row, "td", text, class_="number")


def draw_hits(
    plot: ET.Element,
    moments_s: abc.Sequence[float],
    text_at: abc.Callable[[float], str],
    span: tuple[float, float],
    height_px: int,
) -> None:
    """What a pointer that rests over a moment is told; nothing where they would be too narrow to rest on."""
    if not 1 < len(moments_s) <= MAX_HITS:
        return
    first_s, last_s = span
    edges = [first_s, *((a + b) / 2 for a, b in pairwise(moments_s)), last_s]
    for moment_s, (left_s, right_s) in zip(moments_s, pairwise(edges), strict=True):
        x, right = (WIDTH * (edge - first_s) / (last_s - first_s) for edge in (left_s, right_s))
        hit = add(plot, "rect", class_="chart-hit", x=px(x), y=0, width=px(right - x), height=height_px)
        add(hit, "title", f"{moment_text(moment_s)} {text_at(moment_s)}")


def color(index: int) -> str:
    """The class of the series at `index`; behind the eighth the colours come again, dashed."""
    dash = " dashed" if index >= NUM_COLORS else ""
    return f"s{index % NUM_COLORS}{dash}"


def px(value: float) -> str:
    """A length with as many digits as a screen shows."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    """A place across the width."""
    return f"{px(100 * share)}%"
