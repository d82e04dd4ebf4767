"""From what was recorded to an outcome."""

from collections import abc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.core.evenness import jain_index
from engine.sim.metrics.accounts import IN, OUT, BacklogLog, LatencySamples, RunCounts, TenantAccount
from engine.sim.metrics.gaps import Backlog, GapSeries, Level, gap_series, service_differences
from engine.sim.metrics.groups import Groups, percentiles_of
from engine.sim.metrics.options import RecorderOptions
from engine.sim.metrics.outcome import Fairness, Outcome, Totals
from engine.sim.metrics.samples import Samples
from engine.sim.metrics.shares import tree_shares
from engine.sim.metrics.timeline import timeline_of
from engine.sim.metrics.windows import Cells, WindowTable
from engine.sim.traffic.row import NANOS_PER_S

MIN_REQUESTS_FOR_SHARE = 10  # of one request that came last nothing can have been served yet

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Records:
    """What the recorder has at the end."""

    options: RecorderOptions
    accounts: list[TenantAccount]
    counts: RunCounts
    num_unfinished: int
    backlog: BacklogLog
    served: WindowTable
    requested: WindowTable
    copied: WindowTable
    latencies: LatencySamples
    steps: Samples


@dataclass(frozen=True, slots=True)
class Tree:
    """The tenants as nodes of two levels, and the weights of both."""

    teams: Level
    organizations: Level


def summarize(records: Records) -> Outcome:
    """The outcome."""
    width = max(records.served.cells().window_ns, records.requested.cells().window_ns)
    served, requested = records.served.cells(width), records.requested.cells(width)
    tree = _tree(records.accounts, records.options.weights)
    ratios, is_asking = _share_ratios(records, tree, served, requested)
    groups = Groups(records.accounts, records.latencies, ratios, records.options)
    gaps = _gaps(records, tree, served)
    differences = service_differences(served, requested, tree.teams.weights, records.options.difference_window_ns)
    timeline = timeline_of(groups, records.options.max_listed_tenants, served, records.copied, gaps)
    return Outcome(
        label=records.options.label,
        totals=_totals(records),
        fairness=_fairness(records, gaps, served.window_ns, differences, ratios[is_asking]),
        groups=groups.outcomes(),
        tenants=tuple(groups.of_tenant(account) for account in groups.by_work[: records.options.max_listed_tenants]),
        timeline=timeline,
        notes=(*records.options.notes, *_rounding_notes(records)),
    )


def _tree(accounts: abc.Sequence[TenantAccount], weights: abc.Mapping[str, float]) -> Tree:
    paths = [account.path for account in accounts]
    organizations = [path.partition("/")[0] for path in paths]
    index = {name: place for place, name in enumerate(dict.fromkeys(organizations))}
    parents = np.array([index[name] for name in organizations], dtype=np.int64)
    team_weights = np.array([weights.get(path, 1.0) if "/" in path else 1.0 for path in paths], dtype=np.float64)
    organization_weights = np.array([weights.get(name, 1.0) for name in index], dtype=np.float64)
    everyone = np.arange(len(paths), dtype=np.int64)
    return Tree(
        Level(everyone, team_weights, parents),
        Level(parents, organization_weights, np.zeros(len(index), dtype=np.int64)),
    )


def _share_ratios(
    records: Records, tree: Tree, served: Cells, requested: Cells
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Each tenant's work until the last arrival over its max-min share of it, and who asked often enough for that."""
    num_tenants = len(records.accounts)
    end = records.counts.last_arrival_ns // served.window_ns + 1
    got, asked = served.totals(0, end, num_tenants), requested.totals(0, end, num_tenants)
    shares = tree_shares(asked, tree.teams.weights, tree.teams.parents, tree.organizations.weights, float(got.sum()))
    ratios = np.where(shares > 0, got / np.where(shares > 0, shares, 1.0), np.nan)
    num_requests = np.array([account.num_requests for account in records.accounts])
    is_judged = (shares > 0) & (num_requests >= MIN_REQUESTS_FOR_SHARE)
    return ratios, is_judged if is_judged.any() else shares > 0


def _gaps(records: Records, tree: Tree, served: Cells) -> GapSeries:
    """Of teams of one organization, and, where there are several organizations, of those: the worse of both is told."""
    log = records.backlog
    backlog = Backlog(
        tenants=np.array(log.tenants, dtype=np.int64),
        since_ns=np.array(log.since_ns, dtype=np.int64),
        until_ns=np.array(log.until_ns, dtype=np.int64),
    )
    num_windows = max(1, round(records.options.gap_window_ns / served.window_ns))
    teams = gap_series(served, backlog, tree.teams, num_windows)
    if len(tree.organizations.weights) < 2:
        return teams
    organizations = gap_series(served, backlog, tree.organizations, num_windows)
    return _worse(teams, organizations)


def _worse(left: GapSeries, right: GapSeries) -> GapSeries:
    ends = np.union1d(left.ends_ns, right.ends_ns)

    def largest(name: str) -> Floats:
        column = np.zeros(len(ends))
        for series in (left, right):
            places = np.searchsorted(ends, series.ends_ns)
            column[places] = np.maximum(column[places], getattr(series, name))
        return column

    return GapSeries(ends, gaps=largest("gaps"), over_share=largest("over_share"), errors=largest("errors"))


def _fairness(records: Records, gaps: GapSeries, window_ns: int, differences: Floats, ratios: Floats) -> Fairness:
    options = records.options
    return Fairness(
        gap_window_s=max(1, round(options.gap_window_ns / window_ns)) * window_ns / NANOS_PER_S,
        num_gap_windows=len(gaps.gaps),
        max_gap=_largest(gaps.gaps),
        mean_gap=float(gaps.gaps.mean()) if len(gaps.gaps) else None,
        max_gap_over_share=_largest(gaps.over_share),
        max_weight_error=_largest(gaps.errors),
        difference_window_s=max(1, round(options.difference_window_ns / window_ns)) * window_ns / NANOS_PER_S,
        max_difference=_largest(differences),
        mean_difference=float(differences.mean()) if len(differences) else None,
        variance_of_difference=float(differences.var()) if len(differences) else None,
        min_share_ratio=float(ratios.min()) if len(ratios) else None,
        jain=jain_index(ratios.tolist()),
        starvation_age_s=max((account.longest_wait_ns for account in records.accounts), default=0) / NANOS_PER_S,
    )


def _largest(values: Floats) -> float | None:
    return float(values.max()) if len(values) else None


@dataclass(frozen=True, slots=True)
class _TokenSums:
    """Over all tenants."""

    prefill: int
    output: int
    recomputed: int

    @classmethod
    def of(cls, accounts: abc.Sequence[TenantAccount]) -> "_TokenSums":
        return cls(
            prefill=sum(account.num_prefill_tokens for account in accounts),
            output=sum(account.num_output_tokens for account in accounts),
            recomputed=sum(account.num_recomputed_tokens for account in accounts),
        )

    @property
    def recomputed_share(self) -> float:
        return self.recomputed / max(1, self.prefill + self.output + self.recomputed)


def _totals(records: Records) -> Totals:
    counts, options, tokens = records.counts, records.options, _TokenSums.of(records.accounts)
    makespan_s = max(0, counts.last_finish_ns - (counts.first_arrival_ns or 0)) / NANOS_PER_S
    per_s = 1 / makespan_s if makespan_s else 0.0
    num_blocks_out, num_blocks_in = _num_blocks(records.copied, OUT), _num_blocks(records.copied, IN)
    return Totals(
        num_requests=counts.num_requests,
        num_refused=counts.refused_by_reason.total(),
        num_unfinished=records.num_unfinished,
        num_finished_by_reason=dict(sorted(counts.finished_by_reason.items())),
        num_refused_by_reason=dict(sorted(counts.refused_by_reason.items())),
        makespan_s=makespan_s,
        num_steps=counts.num_steps,
        busy_s=counts.busy_ns / NANOS_PER_S,
        step=percentiles_of(records.steps.all()),
        prompt_tokens_per_s=tokens.prefill * per_s,
        output_tokens_per_s=tokens.output * per_s,
        work_per_s=options.work_of(tokens.prefill, tokens.output) * per_s,
        num_preemptions_by_mode=dict(sorted(counts.preemptions_by_mode.items())),
        num_preemptions_by_reason=dict(sorted(counts.preemptions_by_reason.items())),
        num_preempted_requests=counts.num_preempted_requests,
        max_preemptions=counts.max_preemptions,
        recomputed_share=tokens.recomputed_share,
        num_copies=counts.num_copies,
        num_blocks_out=num_blocks_out,
        num_blocks_in=num_blocks_in,
        bytes_out=num_blocks_out * options.block_bytes,
        bytes_in=num_blocks_in * options.block_bytes,
    )


def _num_blocks(copied: WindowTable, owner: int) -> int:
    cells = copied.cells()
    return int(cells.amounts[cells.owners == owner].sum())


def _rounding_notes(records: Records) -> tuple[str, ...]:
    bits = records.latencies.ttft.significant_bits
    return (
        () if bits is None else (f"percentiles within {100 / 2**bits:.1g} %: there were too many samples to keep all",)
    )
