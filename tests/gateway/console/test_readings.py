"""Figures that move: what counters rose by, fair shares, and how even the shares are."""

from dataclasses import replace

import pytest

from gateway.console.overview.readings import (
    bound_of,
    counters_of,
    denied_throughout,
    fairness_of,
    gap_of,
    jain_index,
)
from gateway.fair_shares import fair_shares, shares_of_sharing
from gateway.served import Served
from gateway.status import EngineReport, SystemReport
from tests.admin.service import engine_stats, tenant_stats

ACME, GLOBEX = ("acme", "search"), ("globex", "search")
NOT_DENIED = {"num_waiting": 0, "num_paused": 0, "num_swapped": 0, "num_swapping": 0}


def report(*engines: tuple[str, tuple | None]) -> SystemReport:
    """Engines by address, each with its tenants; None: it does not answer."""
    return SystemReport(
        uptime_s=1.0,
        is_store_reachable=True,
        policy_revision=1,
        engines=tuple(
            EngineReport(address, "m", None if tenants is None else engine_stats(tenants))
            for address, tenants in engines
        ),
        num_live_requests=0,
    )


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        ([ACME], [1.0]),
        ([ACME, GLOBEX], [0.75, 0.25]),
        ([ACME, ("acme", "ads"), GLOBEX], [0.25, 0.5, 0.25]),
    ],
)
def test_fair_shares_are_given_level_by_level_among_those_that_have_work(paths, expected):
    weights = {("acme",): 3.0, ("globex",): 1.0, ACME: 1.0, ("acme", "ads"): 2.0}

    assert list(fair_shares(paths, weights).values()) == pytest.approx(expected)


@pytest.mark.parametrize("weight", [0.0, -1.0])
def test_weight_that_is_none_counts_as_one(weight: float):
    assert fair_shares([ACME, GLOBEX], {("acme",): weight, ("globex",): weight}) == {ACME: 0.5, GLOBEX: 0.5}


def test_team_that_starves_and_one_that_was_served_have_a_fair_share_and_an_idle_one_has_none():
    has_work = {ACME: True, GLOBEX: False, ("idle", "search"): False}

    assert shares_of_sharing(has_work, {GLOBEX}, {}) == {ACME: 0.5, GLOBEX: 0.5}


def test_jain_index_of_equals_is_one_and_of_one_hog_is_its_share():
    assert jain_index([0.5, 0.5]) == pytest.approx(1)
    assert jain_index([1.0, 0, 0, 0]) == pytest.approx(0.25)
    assert jain_index([0.0, 0.0]) is None


def test_only_tenants_that_were_denied_something_are_compared():
    served = {ACME: Served(0, 0, 30.0), GLOBEX: Served(0, 0, 10.0)}

    assert fairness_of([ACME, GLOBEX], served, {("acme",): 3.0}) == pytest.approx(1)
    assert fairness_of([ACME, GLOBEX], served, {}) == pytest.approx(0.8)
    assert fairness_of([ACME], served, {}) is None


def test_tenant_that_came_or_went_meanwhile_was_not_denied_throughout():
    other = "other", "search"
    before = report(("e", (tenant_stats(ACME), tenant_stats(GLOBEX, **NOT_DENIED), tenant_stats(other))))
    after = report(("e", (tenant_stats(ACME), tenant_stats(GLOBEX), tenant_stats(other, **NOT_DENIED))))

    assert denied_throughout(counters_of(before, 0.0), counters_of(after, 60.0)) == [ACME]


def test_the_gap_is_the_largest_lead_of_a_tenant_that_has_work_at_any_engine_that_answers():
    idle = tenant_stats(GLOBEX, lead=99.0, num_running=0, **NOT_DENIED)
    leads = report(("a", (tenant_stats(ACME, lead=3.0), idle)), ("b", (tenant_stats(GLOBEX, lead=8.0),)), ("c", None))

    assert gap_of(leads) == 8.0
    assert gap_of(report(("c", None))) == 0.0


def test_there_is_a_bound_where_every_engine_that_answers_has_one():
    def bounded(*bounds: float | None) -> SystemReport:
        engines = [EngineReport("e", "m", engine_stats(gap_bound=bound)) for bound in bounds]
        return replace(report(), engines=(*engines, EngineReport("gone", "m", None)))

    assert bound_of(bounded(500.0, 900.0)) == 900.0
    assert bound_of(bounded(500.0, None)) is None
    assert bound_of(bounded()) is None
