"""Outcomes as tables for a terminal: a column a run, a row a figure, the best of each row marked."""

from collections import abc
from dataclasses import dataclass

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.sim.metrics import GroupOutcome, Outcome, Percentiles
from engine.sim.report import units

GROUP_TITLES = {
    "all": "all tenants",
    "light": "light tenants (< 2 % of the work each)",
    "heavy": "heavy tenants (the three largest)",
    "middle": "tenants in the middle",
}
NUM_TENANT_ROWS = 10
BEST_MARK = "*"  # beside the colour, which a pipe and some eyes do not have

Figures = tuple[float | None, ...]
Format = abc.Callable[[float | None], str]
Best = abc.Callable[[abc.Iterable[float]], float]


@dataclass(frozen=True, slots=True)
class _Row:
    """Figures of a run, shown side by side; the last of them decides which run is best, by `best`, min or max. None
    where neither less nor more is better."""

    title: str
    read: abc.Callable[[Outcome], Figures]
    show: Format
    best: Best | None = None


@dataclass(frozen=True, slots=True)
class _GroupRow:
    """The same of a group of tenants."""

    title: str
    read: abc.Callable[[GroupOutcome], Figures]
    show: Format
    best: Best | None = None

    def of(self, name: str) -> _Row:
        """The row of one group of each run."""

        def read(outcome: Outcome) -> Figures:
            group = outcome.group(name)
            return (None,) if group is None else self.read(group)

        return _Row(self.title, read, self.show, self.best)


def outcome_tables(outcomes: abc.Sequence[Outcome]) -> RenderableType:
    """The runs side by side, their largest tenants, and the notes of all."""
    notes = dict.fromkeys(note for outcome in outcomes for note in outcome.notes)
    legend = [f"{BEST_MARK} the best of its row"] if len(outcomes) > 1 else []
    legend.append("– nothing to measure; for a gap: no two tenants had something to do at the same time")
    lines = (*legend, *(f"note: {note}" for note in notes))
    return Group(_run_table(outcomes), _tenant_table(outcomes), *(Text(line, style="dim") for line in lines))


def _run_table(outcomes: abc.Sequence[Outcome]) -> Table:
    table = Table(header_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("")
    for outcome in outcomes:
        table.add_column(outcome.label, justify="right", no_wrap=True)
    has_bytes = any(run.totals.bytes_out or run.totals.bytes_in for run in outcomes)
    preemption = PREEMPTION_ROWS if has_bytes else PREEMPTION_ROWS[:-1]
    for title, rows in (("run", RUN_ROWS), ("fairness", FAIRNESS_ROWS), ("preemption", preemption)):
        _add_rows(table, title, rows, outcomes)
    for name in _group_names(outcomes):
        of_group = [row.of(name) for row in (*GROUP_ROWS, *_goodput_rows(outcomes))]
        _add_rows(table, GROUP_TITLES[name], of_group, outcomes)
    return table


def _group_names(outcomes: abc.Iterable[Outcome]) -> list[str]:
    """Without those that are all tenants under another name."""
    names: dict[str, None] = {}
    for outcome in outcomes:
        num_all = max((group.num_tenants for group in outcome.groups), default=0)
        names |= dict.fromkeys(each.name for each in outcome.groups if each.name == "all" or each.num_tenants < num_all)
    return list(names)


def _tenant_table(outcomes: abc.Sequence[Outcome]) -> Table:
    """The TTFT of those with the most work."""
    table = Table(title="TTFT p50 / p99 of the tenants with the most work", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("tenant")
    table.add_column("requests", justify="right")
    for outcome in outcomes:
        table.add_column(outcome.label, justify="right", no_wrap=True)
    for tenant in outcomes[0].tenants[:NUM_TENANT_ROWS] if outcomes else ():
        found = (run.tenant(tenant.name) for run in outcomes)
        cells = (_joined(_p50_p99(each.latencies.ttft), units.seconds) if each else "–" for each in found)
        table.add_row(tenant.name, units.count(tenant.num_requests), *cells)
    return table


def _add_rows(table: Table, title: str, rows: abc.Iterable[_Row], outcomes: abc.Sequence[Outcome]) -> None:
    """A section."""
    table.add_row(Text(title, style="bold cyan"))
    for row in rows:
        figures = [row.read(outcome) for outcome in outcomes]
        best = _best(row, [each[-1] for each in figures])
        if len({row.show(each[-1]) for each in figures}) == 1:
            best = None  # what reads the same is not better
        cells = (_cell(_joined(each, row.show), is_best=best is not None and each[-1] == best) for each in figures)
        table.add_row(f"  {row.title}", *cells)
    table.add_row()


def _cell(text: str, *, is_best: bool) -> Text:
    return Text(f"{BEST_MARK} {text}", style="bold green") if is_best else Text(text)


def _best(row: _Row, values: abc.Iterable[float | None]) -> float | None:
    """None where the runs do not differ, or where nothing is better."""
    known = {value for value in values if value is not None}
    return row.best(known) if row.best is not None and len(known) > 1 else None


def _joined(figures: Figures, show: Format) -> str:
    return " / ".join(show(figure) for figure in figures)


def _p50_p99(percentiles: Percentiles) -> Figures:
    return percentiles.p50_s, percentiles.p99_s


def _goodput_rows(outcomes: abc.Sequence[Outcome]) -> abc.Iterator[_GroupRow]:
    groups = outcomes[0].groups if outcomes else ()
    for place, goodput in enumerate(groups[0].goodput if groups else ()):

        def read(group: GroupOutcome, place: int = place) -> Figures:
            return (group.goodput[place].share if group.goodput else None,)

        title = f"within {goodput.ttft_limit_ms:,} ms and {goodput.tpot_limit_ms:,} ms/token"
        yield _GroupRow(title, read, units.percent, max)


def _finished_share(outcome: Outcome) -> Figures:
    totals = outcome.totals
    return (outcome.groups[0].num_finished / totals.num_requests if totals.num_requests else None,)


def _swaps(outcome: Outcome) -> Figures:
    modes = outcome.totals.num_preemptions_by_mode
    return modes.get("pause", 0), modes.get("swap", 0), modes.get("recompute", 0)


RUN_ROWS = (
    _Row("requests", lambda run: (run.totals.num_requests,), units.count),
    _Row("served to the end", _finished_share, units.percent, max),
    _Row("refused", lambda run: (run.totals.num_refused,), units.count, min),
    _Row("unfinished", lambda run: (run.totals.num_unfinished,), units.count, min),
    _Row("makespan", lambda run: (run.totals.makespan_s,), units.seconds, min),
    _Row("output tokens/s", lambda run: (run.totals.output_tokens_per_s,), units.plain, max),
    _Row("work/s", lambda run: (run.totals.work_per_s,), units.plain, max),
    _Row("step p50 / p99", lambda run: _p50_p99(run.totals.step), units.seconds),
)
FAIRNESS_ROWS = (
    _Row("smallest part of the own share", lambda run: (run.fairness.min_share_ratio,), units.percent, max),
    _Row("Jain index", lambda run: (run.fairness.jain,), units.plain, max),
    _Row("largest gap (work per weight)", lambda run: (run.fairness.max_gap,), units.count, min),
    _Row("largest gap over fair share", lambda run: (run.fairness.max_gap_over_share,), units.percent, min),
    _Row("largest error of a weight", lambda run: (run.fairness.max_weight_error,), units.percent, min),
    _Row("service difference, mean", lambda run: (run.fairness.mean_difference,), units.plain, min),
    _Row("service difference, largest", lambda run: (run.fairness.max_difference,), units.plain, min),
    _Row("longest wait without progress", lambda run: (run.fairness.starvation_age_s,), units.seconds, min),
)
PREEMPTION_ROWS = (
    _Row("pauses / swaps / recomputes", _swaps, units.count),
    _Row("requests that lost blocks", lambda run: (run.totals.num_preempted_requests,), units.count, min),
    _Row("most losses of one request", lambda run: (run.totals.max_preemptions,), units.count, min),
    _Row("recomputed tokens", lambda run: (run.totals.recomputed_share,), units.percent, min),
    _Row("blocks out / in", lambda run: (run.totals.num_blocks_out, run.totals.num_blocks_in), units.count),
    # The last one, as it is left out where nobody told the size of a block.
    _Row("bytes out / in", lambda run: (run.totals.bytes_out, run.totals.bytes_in), units.size),
)
GROUP_ROWS = (
    _GroupRow("TTFT p50 / p99", lambda group: _p50_p99(group.latencies.ttft), units.seconds, min),
    _GroupRow("time per token p50 / p99", lambda group: _p50_p99(group.latencies.tpot), units.seconds, min),
    _GroupRow("largest token gap p50 / p99", lambda group: _p50_p99(group.latencies.max_itl), units.seconds, min),
    _GroupRow("completion p50 / p99", lambda group: _p50_p99(group.latencies.completion), units.seconds, min),
    _GroupRow("work served", lambda group: (group.served_work,), units.count),
    _GroupRow("of it borrowed", lambda group: (group.borrowed_work,), units.count),
)
