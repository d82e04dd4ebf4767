"""The overview's values: what the platform's readers see, and what nobody else does."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.console.overview.charts import overview_charts
from gateway.console.overview.sampler import Moment, Reading
from gateway.console.overview.served_history import ServedByTenant
from gateway.console.overview.view import overview
from gateway.served import Served
from tests.admin.service import tenant_stats
from tests.gateway.console.test_readings import ACME, GLOBEX, report

AT = datetime(2026, 11, 30, 10, tzinfo=UTC)
ADS, GONE = ("acme", "ads"), ("x", "gone")
IDLE = {"num_running": 0, "num_waiting": 0, "num_paused": 0, "num_swapped": 0, "num_swapping": 0}
MOMENT = Moment(
    AT, Served(30, 10, 50), ServedByTenant({ACME: Served(20, 10, 40), GLOBEX: Served(10, 0, 10)}), 3, 4, 9.0, 0.9
)


def name_of(path: tuple[str, ...]) -> str:
    return "/".join(path) if path == GONE else f"organizations/{path[0]}/teams/{path[1]}"


def sees_acme(name: str) -> bool:
    return name.startswith("organizations/acme/")


def reading(*tenants, now=None, lately=None, now_s=5.0) -> Reading:
    return Reading(
        at=AT,
        report=report(("unix:/e.sock", tuple(tenants))),
        now=now or {},
        now_s=now_s,
        lately=lately or {},
        lately_s=60.0,
        weights={("acme",): 3.0},
        gap=31.0,
        jain=0.8,
        history=(MOMENT,),
    )


BUSY = reading(
    tenant_stats(ACME),
    tenant_stats(ADS, **IDLE),
    tenant_stats(GLOBEX),
    tenant_stats(GONE),
    now={ACME: Served(40, 10, 60), GLOBEX: Served(5, 0, 5)},
    lately={ACME: Served(0, 0, 30), GLOBEX: Served(0, 0, 10)},
)


def test_shares_are_of_what_was_served_lately_and_compare_with_the_weights():
    seen = overview(BUSY, name_of, sees_acme, sees_all=True)

    assert [(line.team, line.share) for line in seen.tenants] == [
        ("acme/search", 0.75),
        ("globex/search", 0.25),
        ("x/gone", 0.0),
        ("acme/ads", 0.0),
    ]
    assert [line.fair for line in seen.tenants] == [pytest.approx(0.6), pytest.approx(0.2), pytest.approx(0.2), None]
    assert seen.tenants[0].tokens_per_s == 10.0
    assert (seen.per_second.tokens, seen.gap, seen.jain) == (11.0, 31.0, 0.8)
    assert [line.is_known for line in seen.tenants] == [True, True, False, True]


def test_an_organization_sees_its_own_teams_and_nothing_that_tells_of_others():
    seen = overview(BUSY, name_of, sees_acme, sees_all=False)
    charts = overview_charts(BUSY.history, name_of, sees_acme, sees_all=False)

    assert [(line.team, line.share, line.fair, line.lead) for line in seen.tenants] == [
        ("acme/search", 1.0, 1.0, None),
        ("acme/ads", 0.0, None, None),
    ]
    assert seen.per_second.tokens == 10.0
    assert (seen.engines, seen.gap, seen.jain, seen.report) == ((), None, None, None)
    assert set(charts) == {"tokens", "shares"}
    told = " ".join(chart.figure for chart in charts.values())
    assert "globex" not in told
    assert "acme/search" in told


def test_a_team_far_below_the_busiest_sees_what_it_was_served():
    busier = {("globex", f"t{number}"): Served(50, 50, 150 + number) for number in range(60)}
    served = ServedByTenant(busier | {ACME: Served(20, 10, 40)})
    moments = [Moment(AT + timedelta(seconds=5 * number), Served(), served, 0, 0, 0.0, None) for number in range(3)]
    own = overview_charts(moments, name_of, sees_acme, sees_all=False)
    all_of_it = overview_charts(
        [replace(moment, total=sum(served.values(), Served())) for moment in moments],
        name_of,
        sees_acme,
        sees_all=True,
    )

    assert "prompt: 20 at the end" in own["tokens"].picture
    assert "acme/search: 100" in own["shares"].picture
    assert "globex" not in own["shares"].figure
    assert "others: 8" in all_of_it["shares"].picture


def test_blocks_are_told_by_state():
    (engine,) = overview(BUSY, name_of, sees_acme, sees_all=True).engines

    assert [(each.state, each.num_blocks) for each in engine.device_blocks] == [
        ("in use", 51),
        ("being copied", 3),
        ("free", 10),
    ]
    assert [(each.state, each.num_blocks) for each in engine.host_blocks] == [("in use", 12), ("free", 20)]


def test_what_the_cache_and_guesses_save_is_told_by_engine_and_team():
    other = tenant_stats(GLOBEX, num_found_tokens=0, num_drafted_tokens=0, num_accepted_tokens=0)
    fresh = tenant_stats(ADS, num_found_tokens=0, num_prefill_tokens=0)
    seen = overview(reading(tenant_stats(ACME), other, fresh), name_of, sees_acme, sees_all=True)

    (engine,) = seen.engines
    assert (engine.found, engine.drafts) == (0.6, 0.25)
    lines = {line.team: (line.found, line.drafts) for line in seen.tenants}
    assert lines == {"acme/search": (0.75, 0.75), "globex/search": (0.0, None), "acme/ads": (None, 0.75)}


def test_nothing_is_told_before_anything_was_measured():
    seen = overview(reading(tenant_stats(ACME), now_s=0.0), name_of, sees_acme, sees_all=True)

    assert seen.per_second is None
    assert (seen.tenants[0].share, seen.tenants[0].fair, seen.tenants[0].tokens_per_s) == (None, None, 0.0)


def test_of_many_teams_the_most_served_are_shown():
    tenants = [tenant_stats(("acme", f"t{number}")) for number in range(60)]
    lately = {("acme", f"t{number}"): Served(0, 0, number) for number in range(1, 60)}
    seen = overview(reading(*tenants, lately=lately), name_of, sees_acme, sees_all=True)

    assert len(seen.tenants) == 50
    assert seen.num_left_out == 10
    assert seen.tenants[0].team == "acme/t59"
