"""Service, copies, gaps and distributions as curves of a few hundred points."""

import numpy as np
import numpy.typing as npt

from engine.sim.metrics.accounts import IN, OUT
from engine.sim.metrics.gaps import GapSeries
from engine.sim.metrics.groups import Groups
from engine.sim.metrics.outcome import Series, Timeline
from engine.sim.metrics.samples import Distribution
from engine.sim.metrics.windows import Cells, WindowTable, sums_by
from engine.sim.traffic.row import NANOS_PER_S

MAX_POINTS = 240
NUM_TENANT_TTFTS = 8
QUANTILES = (*(percent / 100 for percent in range(100)), 0.995, 0.999, 1.0)
OTHERS = "others"

Floats = npt.NDArray[np.float64]


def timeline_of(groups: Groups, num_listed: int, served: Cells, copied: WindowTable, gaps: GapSeries) -> Timeline:
    """The curves of a run."""
    copies = copied.cells(served.window_ns)
    end_ns = max(cells.num_windows * cells.window_ns for cells in (served, copies))
    stride_ns = served.window_ns * max(1, -(-end_ns // (MAX_POINTS * served.window_ns)))
    num_points = max(1, -(-end_ns // stride_ns))
    gap_times, gap_values = _thinned(gaps)
    return Timeline(
        window_s=stride_ns / NANOS_PER_S,
        times_s=tuple((point + 1) * stride_ns / NANOS_PER_S for point in range(num_points)),
        service=_service(groups, num_listed, served, stride_ns, num_points),
        copies=tuple(
            Series(name, tuple(_curve(copies, copies.owners == owner, stride_ns, num_points).tolist()))
            for owner, name in ((OUT, "out"), (IN, "in"))
        ),
        gap_times_s=gap_times,
        gaps=gap_values,
        quantiles=QUANTILES,
        ttft=_quantiles({name: groups.ttft(members) for name, members in groups.members.items()}),
        tenant_ttft=_quantiles({account.path: groups.ttft([account]) for account in groups.by_work[:NUM_TENANT_TTFTS]}),
    )


def _service(groups: Groups, num_listed: int, served: Cells, stride_ns: int, num_points: int) -> tuple[Series, ...]:
    """Work per second of the largest tenants, then of all others."""
    per_s = NANOS_PER_S / stride_ns
    curves, listed = [], [account.index for account in groups.by_work[:num_listed]]
    for account in groups.by_work[:num_listed]:
        curve = _curve(served, served.owners == account.index, stride_ns, num_points) * per_s
        curves.append(Series(account.path, tuple(curve.tolist())))
    if len(groups.by_work) > num_listed:
        curve = _curve(served, ~np.isin(served.owners, listed), stride_ns, num_points) * per_s
        curves.append(Series(OTHERS, tuple(curve.tolist())))
    return tuple(curves)


def _curve(cells: Cells, is_included: npt.NDArray[np.bool_], stride_ns: int, num_points: int) -> Floats:
    points = cells.windows[is_included] * cells.window_ns // stride_ns
    return sums_by(points, cells.amounts[is_included], num_points)


def _thinned(gaps: GapSeries) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Times and gaps; of several neighbours the largest."""
    stride = -(-len(gaps.gaps) // MAX_POINTS)
    if not stride:
        return (), ()
    starts = np.arange(0, len(gaps.gaps), stride)
    times = gaps.ends_ns[np.minimum(starts + stride, len(gaps.gaps)) - 1] / NANOS_PER_S
    return tuple(times.tolist()), tuple(np.maximum.reduceat(gaps.gaps, starts).tolist())


def _quantiles(distributions: dict[str, Distribution]) -> tuple[Series, ...]:
    """Of those that have any samples."""
    return tuple(
        Series(name, tuple((distribution.percentile(100 * quantile) or 0) / NANOS_PER_S for quantile in QUANTILES))
        for name, distribution in distributions.items()
        if distribution.num_samples
    )
