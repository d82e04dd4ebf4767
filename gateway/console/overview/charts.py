"""The overview's charts: the last minutes of the live figures, for whoever may see them. Pure."""

from collections import abc
from dataclasses import replace
from heapq import nlargest

from gateway.console.charts import Chart, Frame, Series, line_chart, stacked_chart
from gateway.console.charts.scale import SHARES, amounts_of
from gateway.console.overview.sampler import Moment
from gateway.console.overview.view import NameOf, Sees
from gateway.fair_shares import Path
from gateway.served import Served
from gateway.words import short_name

MAX_SHOWN_TENANTS = 7
"""One color less than there are: the last is for all others."""
OTHERS = "others"

Point = tuple[float, Served, abc.Mapping[Path, Served]]
"""When, what all together were served in a second, and what each was."""

TOKENS = Frame("tokens", "Tokens per second", amounts_of("tokens/s"), "Computed for the first time.")
QUEUE = Frame("requests", "Requests at the engines", amounts_of("requests"))
SHARE = Frame("shares", "Share of the work", SHARES, "Of what was served in each moment, by team.")
GAP = Frame(
    "gap", "Gap between teams", amounts_of("cost units by weight"), "The largest lead over a team that has work."
)


def overview_charts(
    history: abc.Sequence[Moment], name_of: NameOf, sees: Sees, *, sees_all: bool, bound: float | None = None
) -> dict[str, Chart]:
    """By their ids. What only the platform's readers may see is left out for others."""
    points: list[Point]
    if sees_all:
        points = [(moment.at.timestamp(), moment.total, moment.served) for moment in history]
        work = _work(moment.served.works() for moment in history)
    else:
        seen = {path for path in _paths(history) if sees(name_of(path))}
        own = [(moment, moment.served.of(seen)) for moment in history]
        points = [(moment.at.timestamp(), _sum(served), served) for moment, served in own]
        work = _work(((path, each.work) for path, each in served.items()) for _, served in own)
    charts = {TOKENS.id: _tokens(points), SHARE.id: _shares(points, work, name_of)}
    if sees_all:
        charts[QUEUE.id] = stacked_chart(QUEUE, _queue(history))
        charts[GAP.id] = line_chart(replace(GAP, level=bound), [_gap(history)])
    return charts


def _paths(history: abc.Sequence[Moment]) -> set[Path]:
    """Of all that were served in it; of moments that have the same ones, one is looked at."""
    found: set[Path] = set()
    last: tuple[Path, ...] | None = None
    for moment in history:
        if moment.served.paths is not last:
            last = moment.served.paths
            found.update(last)
    return found


def _work(moments: abc.Iterable[abc.Iterable[tuple[Path, float]]]) -> dict[Path, float]:
    """Of each in all of it."""
    found: dict[Path, float] = {}
    for moment in moments:
        for path, work in moment:
            found[path] = found.get(path, 0.0) + work
    return found


def _sum(served: abc.Mapping[Path, Served]) -> Served:
    return sum(served.values(), Served())


def _tokens(points: abc.Sequence[Point]) -> Chart:
    return stacked_chart(
        TOKENS,
        [
            Series("prompt", [(at, total.prompt_tokens) for at, total, _ in points]),
            Series("output", [(at, total.output_tokens) for at, total, _ in points]),
        ]
        if points
        else [],
    )


def _queue(history: abc.Sequence[Moment]) -> list[Series]:
    return [
        Series("running", [(m.at.timestamp(), m.num_running) for m in history]),
        Series("waiting", [(m.at.timestamp(), m.num_waiting) for m in history]),
    ]


def _gap(history: abc.Sequence[Moment]) -> Series:
    return Series("gap", [(moment.at.timestamp(), moment.gap) for moment in history])


def _shares(points: abc.Sequence[Point], work: abc.Mapping[Path, float], name_of: NameOf) -> Chart:
    """Those apart that were served most in all of it, and all others as one; nothing where nobody was served."""
    apart = nlargest(MAX_SHOWN_TENANTS, work, key=lambda path: work[path])
    shares = [[_part(own.get(path), total) for path in apart] for _, total, own in points]
    times = [at for at, _, _ in points]
    series = [
        Series(short_name(name_of(path)), list(zip(times, column, strict=True)))
        for path, column in zip(apart, zip(*shares, strict=True), strict=True)
    ]
    if len(work) > len(apart):
        rest = [None if None in parts else max(0.0, 1.0 - sum(filter(None, parts))) for parts in shares]
        series.append(Series(OTHERS, list(zip(times, rest, strict=True))))
    return stacked_chart(SHARE, series)


def _part(served: Served | None, total: Served) -> float | None:
    if not total.work:
        return None
    return served.work / total.work if served is not None else 0.0
