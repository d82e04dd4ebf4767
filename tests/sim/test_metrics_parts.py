"""The pieces that measurements are made of, each against a plain calculation."""

import random

import numpy as np
import pytest

from engine.sim.metrics.gaps import Backlog, Level, gap_series, service_differences
from engine.sim.metrics.samples import Samples
from engine.sim.metrics.shares import max_min_shares, tree_shares
from engine.sim.metrics.step_gaps import StepGaps
from engine.sim.metrics.windows import MAX_WINDOWS, WindowTable

SECOND = 1_000_000_000


def nearest_rank(values, percent):
    return sorted(values)[max(1, -(-len(values) * percent // 100)) - 1]


def test_percentiles_are_values_that_were_seen():
    draw = random.Random(1)
    values = [draw.randrange(10**9) for _ in range(1_000)]
    samples = Samples()
    for value in values:
        samples.add(0, value)

    distribution = samples.all()

    for percent in (1, 50, 90, 99, 100):
        assert distribution.percentile(percent) == nearest_rank(values, percent)


def test_nothing_has_no_percentile():
    assert Samples().all().percentile(50) is None
    assert Samples().all().mean() is None


def test_many_samples_are_rounded_and_stay_close():
    draw = random.Random(2)
    samples, values = Samples(exact_limit=2_000), []
    for _ in range(50_000):
        values.append(int(draw.lognormvariate(18, 2)))
        samples.add(draw.randrange(3), values[-1])

    distribution = samples.all()

    assert distribution.num_samples == 50_000
    assert len(distribution.values) < 10_000
    for percent in (50, 90, 99):
        assert distribution.percentile(percent) == pytest.approx(nearest_rank(values, percent), rel=0.016)


def test_samples_of_some_owners_are_told_apart():
    samples = Samples()
    for owner, value in ((0, 5), (1, 7), (0, 9), (2, 1)):
        samples.add(owner, value)

    assert samples.of(np.array([True, False, True])).values.tolist() == [1, 5, 9]


def test_a_count_stands_for_as_many_equal_samples():
    samples = Samples()
    samples.add(0, 10, count=99)
    samples.add(0, 1_000)

    assert samples.all().percentile(99) == 10
    assert samples.all().percentile(100) == 1_000
    assert samples.all().mean() == pytest.approx(19.9)


def test_longest_step_since_a_moment_agrees_with_a_plain_search():
    draw = random.Random(3)
    gaps, steps = StepGaps(), []
    for end in range(1, 400):
        steps.append((end, draw.randrange(50)))
        gaps.add(*steps[-1])
        since = draw.randrange(end + 1)
        assert gaps.longest_after(since) == max((length for at, length in steps if at > since), default=0)


def test_work_is_kept_by_window_and_owner():
    table = WindowTable(SECOND)
    table.add(100, 0, 5)
    table.add(SECOND - 1, 0, 6)
    table.add(SECOND, 1, 7)

    cells = table.cells()

    assert cells.totals(0, 1, 2).tolist() == [11, 0]
    assert cells.totals(0, 2, 2).tolist() == [11, 7]


def test_work_that_is_spread_keeps_its_sum_and_its_rate():
    table = WindowTable(SECOND)
    table.spread(SECOND // 2, 3 * SECOND, 0, 10)

    cells = table.cells()

    assert [float(cells.totals(window, window + 1, 1)[0]) for window in range(3)] == pytest.approx([2, 4, 4])


def test_windows_double_in_a_long_run_and_keep_every_sum():
    table = WindowTable(SECOND)
    for second in range(0, 40_000, 3):
        table.add(second * SECOND, second % 7, 1)

    cells = table.cells()

    assert cells.num_windows <= MAX_WINDOWS
    assert cells.window_ns == 16 * SECOND
    assert cells.amounts.sum() == len(range(0, 40_000, 3))


def test_max_min_gives_nobody_more_than_the_demand_and_the_rest_by_weight():
    shares = max_min_shares(np.array([10.0, 100.0, 100.0]), np.array([1.0, 1.0, 2.0]), 100.0)

    assert shares.tolist() == pytest.approx([10, 30, 60])


def test_max_min_leaves_capacity_unused_where_demand_is_low():
    assert max_min_shares(np.array([1.0, 2.0]), np.array([1.0, 1.0]), 100.0).tolist() == [1.0, 2.0]


def test_organizations_share_before_their_teams_do():
    parents, demands = np.array([0, 0, 0, 1]), np.full(4, 100.0)

    assert tree_shares(demands, np.ones(4), parents, np.ones(2), 120.0).tolist() == [20, 20, 20, 60]


def level(num_tenants, weights=None):
    everyone = np.arange(num_tenants)
    return Level(everyone, np.ones(num_tenants) if weights is None else weights, np.zeros(num_tenants, dtype=np.int64))


def backlog(*intervals):
    return Backlog(*(np.array(column, dtype=np.int64) for column in zip(*intervals, strict=True)))


def table_of(*rows):
    """One row a window, one amount a tenant."""
    table = WindowTable(SECOND)
    for window, row in enumerate(rows):
        for owner, amount in enumerate(row):
            table.add(window * SECOND, owner, amount)
    return table.cells()


def test_gap_is_taken_over_each_window_in_which_both_are_backlogged():
    service = table_of((5, 5), (9, 1), (1, 9), (7, 3))

    gaps = gap_series(service, backlog((0, 0, 4 * SECOND), (1, 0, 4 * SECOND)), level(2), 2)

    assert gaps.gaps.tolist() == [8, 0, 4]
    assert gaps.ends_ns.tolist() == [2 * SECOND, 3 * SECOND, 4 * SECOND]
    assert gaps.over_share.tolist() == pytest.approx([0.8, 0, 0.4])


def test_idle_tenant_is_in_no_gap():
    service = table_of((10, 0, 5), (10, 0, 5), (10, 5, 5))

    gaps = gap_series(service, backlog((0, 0, 3 * SECOND), (1, 2 * SECOND + 1, 3 * SECOND)), level(3), 1)

    assert gaps.gaps.tolist() == []


def test_gap_is_per_weight():
    service = table_of((10, 20), (10, 30))

    gaps = gap_series(service, backlog((0, 0, 2 * SECOND), (1, 0, 2 * SECOND)), level(2, np.array([1.0, 2.0])), 1)

    assert gaps.gaps.tolist() == [0, 5]
    assert gaps.errors.tolist() == pytest.approx([0, 0.25])


def test_gap_is_between_siblings_only():
    service = table_of((10, 10, 90))
    tree = Level(np.arange(3), np.ones(3), np.array([0, 0, 1]))

    assert gap_series(service, backlog(*((tenant, 0, SECOND) for tenant in range(3))), tree, 1).gaps.tolist() == [0]


def test_service_difference_counts_what_was_asked_for_and_not_given():
    served, requested = table_of((60, 0), (60, 0)), table_of((60, 10), (60, 10))

    assert service_differences(served, requested, np.ones(2), 2 * SECOND).tolist() == pytest.approx([10])
