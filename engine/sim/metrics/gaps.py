"""How far service is from even, over time.

The pairwise gap is only taken between siblings that are both backlogged for the whole window: an idle interval proves
nothing. The windowed service difference is Sheng et al., OSDI 2024, with exact times of service instead of even ones.
"""

from collections import abc
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.sim.metrics.windows import Cells, sums_by

NUM_DIFFERENCE_POINTS = 100

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Level:
    """Nodes of one depth. `node_of_tenant[i]` is the node above (or of) tenant i, `parents[n]` the node's parent."""

    node_of_tenant: Ints
    weights: Floats
    parents: Ints


@dataclass(frozen=True, slots=True)
class Backlog:
    """Intervals in which a tenant was backlogged."""

    tenants: Ints
    since_ns: Ints
    until_ns: Ints


@dataclass(frozen=True, slots=True)
class GapSeries:
    """One entry per window in which at least two siblings were backlogged.

    ends_ns      end of the window
    gaps         largest difference of work per weight between two of them
    over_share   the same over their fair share: their work in the window over the sum of their weights
    errors       largest relative error of one's work against its weighted part
    """

    ends_ns: Ints
    gaps: Floats
    over_share: Floats
    errors: Floats


def gap_series(service: Cells, backlog: Backlog, level: Level, num_windows: int) -> GapSeries:
    """Slides over the service in steps of one window, `num_windows` at a time."""
    last = service.num_windows - num_windows
    changes = _backlog_changes(backlog, level, service.window_ns, num_windows, last)
    num_nodes = len(level.weights)
    bounds = np.searchsorted(service.windows, np.arange(service.num_windows + 1))
    nodes = level.node_of_tenant[service.owners]
    work, num_backlogs = np.zeros(num_nodes), np.zeros(num_nodes, dtype=np.int64)
    rows: list[tuple[int, float, float, float]] = []
    for end in range(service.num_windows):
        _accumulate(work, nodes, service.amounts, slice(bounds[end], bounds[end + 1]), 1.0)
        first = end - num_windows + 1
        if first < 0:
            continue
        if first > 0:
            _accumulate(work, nodes, service.amounts, slice(bounds[first - 1], bounds[first]), -1.0)
        for node, change in changes.get(first, ()):
            num_backlogs[node] += change
        if found := _largest_gap(work, np.flatnonzero(num_backlogs > 0), level):
            rows.append(((end + 1) * service.window_ns, *found))
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    return GapSeries(
        np.array(columns[0], dtype=np.int64), *(np.array(column, dtype=np.float64) for column in columns[1:])
    )


def service_differences(served: Cells, requested: Cells, weights: Floats, window_ns: int) -> Floats:
    """d(t) = sum_i min(max_j s_j - s_i, |r_i - s_i|) in work per second, at 100 points; s is the work served and r the
    work requested in the window around t, each over the weight."""
    width = max(1, round(window_ns / served.window_ns))
    last = max(served.num_windows, requested.num_windows) - width
    if last < 0:
        return np.zeros(0)
    per_s = 1e9 / (width * served.window_ns) / weights
    differences = []
    for first in np.unique(np.linspace(0, last, NUM_DIFFERENCE_POINTS).round().astype(np.int64)).tolist():
        got = served.totals(first, first + width, len(weights)) * per_s
        asked = requested.totals(first, first + width, len(weights)) * per_s
        differences.append(np.minimum(got.max() - got, np.abs(asked - got)).sum())
    return np.array(differences)


def _accumulate(work: Floats, nodes: Ints, amounts: Floats, part: slice, sign: float) -> None:
    np.add.at(work, nodes[part], sign * amounts[part])


def _backlog_changes(
    backlog: Backlog, level: Level, window_ns: int, num_windows: int, last: int
) -> abc.Mapping[int, list[tuple[int, int]]]:
    """By first window of a span: whose count of covering intervals rises or falls there."""
    firsts = -(-backlog.since_ns // window_ns)
    ends = np.minimum(backlog.until_ns // window_ns - num_windows, last) + 1
    covers = ends > firsts
    changes: dict[int, list[tuple[int, int]]] = {}
    nodes = level.node_of_tenant[backlog.tenants[covers]].tolist()
    for node, first, end in zip(nodes, firsts[covers].tolist(), ends[covers].tolist(), strict=True):
        changes.setdefault(first, []).append((node, 1))
        changes.setdefault(end, []).append((node, -1))
    return changes


def _largest_gap(work: Floats, nodes: Ints, level: Level) -> tuple[float, float, float] | None:
    """Gap, gap over fair share, and weight error of the worst family; None where no two siblings are backlogged."""
    if len(nodes) < 2:
        return None
    parents, places, sizes = np.unique(level.parents[nodes], return_inverse=True, return_counts=True)
    is_family = sizes >= 2
    if not is_family.any():
        return None
    weights = level.weights[nodes]
    each = work[nodes] / weights
    most, least = np.full(len(parents), -np.inf), np.full(len(parents), np.inf)
    np.maximum.at(most, places, each)
    np.minimum.at(least, places, each)
    fair = sums_by(places, work[nodes], len(parents)) / sums_by(places, weights, len(parents))
    gaps = np.where(is_family, most - least, 0.0)
    safe = np.where(fair > 0, fair, np.inf)
    errors = np.where(is_family, np.maximum(most - fair, fair - least) / safe, 0.0)
    return float(gaps.max()), float((gaps / safe).max()), float(errors.max())
