"""The panels of the picture. Imports matplotlib: imported by `picture` alone, when it draws."""

from collections import abc
from itertools import accumulate

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from engine.sim.metrics import Outcome, Series
from engine.sim.report import units

# Okabe and Ito's palette, told apart by people with any kind of colour vision; grey is for everyone else together.
TENANT_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
OTHERS_COLOR = "#B8B8B8"
GROUP_COLORS = {"all": "#333333", "light": "#009E73", "heavy": "#D55E00", "middle": "#56B4E9"}
GROUP_LINES = {"all": "--", "light": "-", "heavy": "-", "middle": "-."}
GAP_COLOR = "#0072B2"
OUT_COLOR, IN_COLOR = "#D55E00", "#0072B2"
INK, GRID = "#333333", "#DDDDDD"
MAX_POINTS = 120
HEADROOM = 1.2
MIN_TTFT_S = 1e-3
EMPTY_HEIGHT = 0.3
HEIGHT_INCHES_PER_UNIT = 2.8

Floats = npt.NDArray[np.float64]


def draw_panels(figure: Figure, outcomes: abc.Sequence[Outcome], title: str) -> None:
    """All panels, the legend of the tenants, and the title. A row in which no run has anything to show is low."""
    has_gaps = any(outcome.timeline.gaps for outcome in outcomes)
    has_swaps = any(outcome.totals.num_copies for outcome in outcomes)
    heights = (1.25, 0.9 if has_gaps else EMPTY_HEIGHT, 1.25, 0.8 if has_swaps else EMPTY_HEIGHT)
    figure.set_figheight(HEIGHT_INCHES_PER_UNIT * (sum(heights) + 0.4))
    grid = {"height_ratios": heights}
    rows = figure.subplots(4, len(outcomes), sharey="row", squeeze=False, gridspec_kw=grid)
    names = _named_tenants(outcomes)
    end_s = max(outcome.timeline.times_s[-1] for outcome in outcomes)
    block_mib = _block_mib(outcomes)
    for column, outcome in enumerate(outcomes):
        service, gap, ttft, swaps = (rows[row][column] for row in range(4))
        for axes in (service, gap, ttft, swaps):
            _style(axes)
        for axes in (service, gap, swaps):
            axes.set_xlim(0, end_s)
            axes.set_xlabel("time (s)")
        _draw_service(service, outcome, names)
        _draw_gap(gap, outcome, is_empty=not has_gaps)
        _draw_ttft(ttft, outcome)
        _draw_swaps(swaps, outcome, block_mib, is_empty=not has_swaps)
        service.set_title(outcome.label, fontsize=14, fontweight="bold", color=INK, pad=10)
    _share_axes(rows, outcomes, "MiB/s" if block_mib else "blocks/s")
    _legend(figure, names, outcomes, title)


def _named_tenants(outcomes: abc.Sequence[Outcome]) -> list[str]:
    """Those that get a color: the ones with the most work in the first run."""
    return [tenant.name for tenant in outcomes[0].tenants[: len(TENANT_COLORS)]]


def _short_names(names: abc.Sequence[str]) -> list[str]:
    """Without the organization where it is the same for all."""
    organizations = {name.partition("/")[0] for name in names}
    return [name.partition("/")[2] or name for name in names] if len(organizations) == 1 else list(names)


def _draw_service(axes: Axes, outcome: Outcome, names: abc.Sequence[str]) -> None:
    """Stacked, so that the height is the whole engine's service."""
    timeline = outcome.timeline
    curves = {series.name: np.array(series.values) for series in timeline.service}
    others = sum((curve for name, curve in curves.items() if name not in names), np.zeros(len(timeline.times_s)))
    stacked = [curves.get(name, np.zeros(len(timeline.times_s))) for name in names]
    edges, values = _steps(timeline.window_s, [*stacked, others])
    colors = (*TENANT_COLORS[: len(names)], OTHERS_COLOR)
    bottom = np.zeros(len(edges))
    for top, color in zip(accumulate(values), colors, strict=True):
        axes.fill_between(edges, bottom, top, color=color, linewidth=0)
        bottom = top


def _draw_gap(axes: Axes, outcome: Outcome, *, is_empty: bool) -> None:
    timeline, fairness = outcome.timeline, outcome.fairness
    if not timeline.gaps:
        _say(axes, f"no two tenants are backlogged for {fairness.gap_window_s:g} s together", is_empty=is_empty)
        return
    times, gaps = _with_breaks(timeline.gap_times_s, timeline.gaps)
    axes.fill_between(times, 0, gaps, color=GAP_COLOR, alpha=0.25, linewidth=0)
    axes.plot(times, gaps, color=GAP_COLOR, linewidth=1.4)
    over = "" if fairness.max_gap_over_share is None else f", {units.percent(fairness.max_gap_over_share)} of the share"
    _note(axes, f"largest {units.count(fairness.max_gap)}{over}")


def _draw_ttft(axes: Axes, outcome: Outcome) -> None:
    """A curve a tenant where there are few, a group of tenants otherwise; the dot is the p99."""
    timeline = outcome.timeline
    levels = np.array(timeline.quantiles)
    for series, color, line, name in _ttft_curves(outcome):
        values = np.maximum(np.array(series.values), MIN_TTFT_S)
        p99 = values[int(np.argmin(np.abs(levels - 0.99)))]
        label = f"{name}: p99 {units.seconds(float(p99))}"
        axes.plot(values, levels, color=color, linestyle=line, linewidth=1.8, label=label)
        axes.plot([p99], [0.99], color=color, marker="o", markersize=5)
    axes.set_xscale("log")
    axes.set_xlabel("time to first token (s)")
    if not timeline.ttft:
        _say(axes, "nothing was answered", is_empty=False)
        return
    axes.legend(loc="best", fontsize=9, framealpha=0.9, edgecolor=GRID)


def _ttft_curves(outcome: Outcome) -> abc.Iterator[tuple[Series, str, str, str]]:
    """Series, color, line style and name."""
    number_of = {group.name: group.num_tenants for group in outcome.groups}
    if number_of.get("all", 0) <= len(TENANT_COLORS):
        names = [tenant.name for tenant in outcome.tenants]
        looks = dict(zip(names, zip(TENANT_COLORS, _short_names(names), strict=False), strict=False))
        for series in outcome.timeline.tenant_ttft:
            color, name = looks[series.name]
            yield series, color, "-", name
        return
    for series in outcome.timeline.ttft:
        name = f"{series.name} ({number_of[series.name]:,})"
        yield series, GROUP_COLORS[series.name], GROUP_LINES[series.name], name


def _draw_swaps(axes: Axes, outcome: Outcome, block_mib: float, *, is_empty: bool) -> None:
    """Out upwards, in downwards."""
    timeline, totals = outcome.timeline, outcome.totals
    if not totals.num_copies:
        _say(axes, "nothing was swapped", is_empty=is_empty)
        return
    out, back = (np.array(series.values) / timeline.window_s * (block_mib or 1.0) for series in timeline.copies)
    edges, (out, back) = _steps(timeline.window_s, [out, back])
    axes.fill_between(edges, 0, out, color=OUT_COLOR, linewidth=0, label="out")
    axes.fill_between(edges, 0, -back, color=IN_COLOR, linewidth=0, label="in")
    axes.axhline(0, color=INK, linewidth=0.8)
    moved = units.size(totals.bytes_out + totals.bytes_in) if block_mib else f"{totals.num_blocks_out:,} blocks out"
    _note(axes, f"{totals.num_preemptions_by_mode.get('swap', 0):,} swaps, {moved}")
    axes.legend(loc="lower right", fontsize=9, ncols=2, framealpha=0.9, edgecolor=GRID)


def _share_axes(rows: npt.NDArray[np.object_], outcomes: abc.Sequence[Outcome], swap_unit: str) -> None:
    """The same scale for each row of panels, and its name once; room above the curves for what is written there."""
    titles = (
        "service (work/s)",
        "gap between tenants\n(work per weight)" if _is_drawn(rows[1]) else "gap",
        "share of requests",
        f"swaps ({swap_unit})" if _is_drawn(rows[3]) else "swaps",
    )
    for row, title in zip(rows, titles, strict=True):
        row[0].set_ylabel(title, fontsize=11)
    values = [value for run in outcomes for series in run.timeline.ttft for value in series.values]
    low, high = max(MIN_TTFT_S, min(values, default=MIN_TTFT_S)), max([10 * MIN_TTFT_S, *values])
    for service, gap, ttft, swaps in zip(*rows, strict=True):
        service.set_ylim(bottom=0)
        gap.set_ylim(bottom=0)
        ttft.set_xlim(low / 1.3, high * 1.5)
        ttft.set_ylim(0, 1.02)
        ttft.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
        ttft.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        for axes in (service, gap):
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        swaps.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{abs(value):g}"))
        swaps.yaxis.set_major_locator(MaxNLocator(5))
    for row in (rows[1], rows[3]):
        low_y, high_y = row[0].get_ylim()
        row[0].set_ylim(low_y * HEADROOM, high_y * HEADROOM)


def _legend(figure: Figure, names: abc.Sequence[str], outcomes: abc.Sequence[Outcome], title: str) -> None:
    num_others = outcomes[0].groups[0].num_tenants - len(names) if outcomes[0].groups else 0
    short = _short_names(names)
    handles = [Patch(color=color, label=name) for name, color in zip(short, TENANT_COLORS, strict=False)]
    if num_others > 0:
        handles.append(Patch(color=OTHERS_COLOR, label=f"{num_others:,} others"))
    if not handles:
        return
    columns = min(len(handles), 4 * len(outcomes))
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=max(1, columns),
        fontsize=10,
        frameon=False,
        title=title or None,
        title_fontsize=15,
    )


def _steps(window_s: float, curves: abc.Sequence[Floats]) -> tuple[Floats, list[Floats]]:
    """Edges and values of curves that are constant in each window, of at most MAX_POINTS windows."""
    num_windows = len(curves[0])
    stride = -(-num_windows // MAX_POINTS)
    starts = np.arange(0, num_windows, stride)
    widths = np.minimum(starts + stride, num_windows) - starts
    edges = np.repeat(np.append(starts, num_windows) * window_s, 2)[1:-1]
    return edges, [np.repeat(np.add.reduceat(curve, starts) / widths, 2) for curve in curves]


def _with_breaks(times: abc.Sequence[float], values: abc.Sequence[float]) -> tuple[Floats, Floats]:
    """The curve with a hole wherever times jump: there, nothing was measured."""
    at, value = np.array(times), np.array(values)
    jumps = np.diff(at)
    holes = np.flatnonzero(jumps > 2.5 * np.median(jumps)) + 1 if len(jumps) else np.zeros(0, dtype=np.int64)
    return np.insert(at, holes, np.nan), np.insert(value, holes, np.nan)


def _block_mib(outcomes: abc.Sequence[Outcome]) -> float:
    """The size of a block in MiB, 0 where no run knows it."""
    return max(
        (run.totals.bytes_out / run.totals.num_blocks_out / 2**20 for run in outcomes if run.totals.num_blocks_out),
        default=0.0,
    )


def _is_drawn(row: abc.Iterable[Axes]) -> bool:
    return any(axes.get_xlabel() for axes in row)


def _say(axes: Axes, words: str, *, is_empty: bool) -> None:
    """What there is to say instead of a curve; without axes where no run of the row has one."""
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color="#777777", fontsize=10)
    if is_empty:
        axes.tick_params(left=False, bottom=False, labelleft=False, labelbottom=False)
        axes.grid(visible=False)
        axes.set_xlabel("")


def _note(axes: Axes, words: str) -> None:
    box = {"facecolor": "white", "alpha": 0.85, "edgecolor": "none", "pad": 2.0}
    axes.text(0.98, 0.95, words, transform=axes.transAxes, ha="right", va="top", color=INK, fontsize=9, bbox=box)


def _style(axes: Axes) -> None:
    axes.grid(visible=True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
    axes.tick_params(colors=INK, labelsize=9)
