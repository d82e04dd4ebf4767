"""From reports to what `evenflow top` shows, and to lines that fit a terminal."""

import io

import pytest
from rich.console import Console

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.top.figures import Figures, History, Sample, SortKey, ordered
from gateway.cli.top.frame import compact, frame


def tenant(team: str = "search", **fields) -> pb.TenantStatus:
    return pb.TenantStatus(
        team=f"organizations/acme/teams/{team}", **({"weight": 1.0, "organization_weight": 1.0} | fields)
    )


def engine(*tenants: pb.TenantStatus, address: str = "unix:/e.sock", **fields) -> pb.EngineStatus:
    some = {"reachable": True, "model": "smollm2", "scheduling_policy": "fair", "preemption_policy": "over_served"}
    return pb.EngineStatus(address=address, tenants=tenants, **(some | {"num_device_blocks": 64} | fields))


def status(*engines: pb.EngineStatus, **fields) -> pb.SystemStatus:
    return pb.SystemStatus(version="0.1.0", engines=engines, **({"store_reachable": True} | fields))


def figures_of(*reports: tuple[float, pb.SystemStatus]) -> Figures:
    """What is known after the last of them, each with its second."""
    history = History()
    return [history.add(Sample(at_s, report)) for at_s, report in reports][-1]


def lines_of(figures: Figures, width: int = 80, key: SortKey = SortKey.SHARE) -> list[str]:
    shown = io.StringIO()
    Console(file=shown, width=width, color_system=None).print(frame(figures, "127.0.0.1:50051", width, key))
    return shown.getvalue().splitlines()


def team_line(lines: list[str], name: str) -> dict[str, str]:
    """The cells of a team, by heading."""
    (headings,) = [line.split() for line in lines if line.startswith("TEAM")]
    (cells,) = [line.split() for line in lines if line.startswith(name)]
    return dict(zip(headings, cells, strict=True))


def test_tokens_per_second_are_those_of_the_last_seconds():
    tokens = {0: 0, 10: 5000, 14: 5200, 15: 5250}
    reports = [(at_s, status(engine(tenant(prefill_tokens=n, output_tokens=n)))) for at_s, n in tokens.items()]

    assert figures_of(reports[0]).tokens_per_s is None
    (team,) = figures_of(*reports).teams
    assert team.tokens_per_s == pytest.approx(100.0)
    assert figures_of(*reports).tokens_per_s == pytest.approx(100.0)


def test_share_is_of_the_last_minute():
    def report(a: float, b: float) -> pb.SystemStatus:
        return status(engine(tenant("a", served_work=a), tenant("b", served_work=b)))

    reports = (0, report(900, 100)), (50, report(900, 200)), (100, report(920, 260))

    assert [team.share for team in figures_of(reports[0]).teams] == [0.9, 0.1]
    assert [team.share for team in figures_of(*reports[:2]).teams] == [0.0, 1.0]
    assert [team.share for team in figures_of(*reports).teams] == [0.25, 0.75]


def test_idle_minute_shows_the_shares_since_the_engine_began():
    report = status(engine(tenant("a", served_work=30.0), tenant("b", served_work=10.0)))

    assert [team.share for team in figures_of((0, report), (1, report)).teams] == [0.75, 0.25]


def test_engine_that_began_anew_takes_no_past_along():
    before = status(engine(tenant(prefill_tokens=5000, served_work=5000), num_steps=900))
    gone = status(engine(reachable=False))
    again = status(engine(tenant(prefill_tokens=10, served_work=10), num_steps=3))

    figures = figures_of((0, before), (1, gone), (2, again))

    assert figures.tokens_per_s is None
    assert figures.teams[0].share == 1.0


def test_engine_that_was_away_for_a_moment_makes_no_jump():
    busy = engine(tenant(prefill_tokens=100), num_steps=10)
    other = engine(tenant(prefill_tokens=7000), address="unix:/other.sock", num_steps=10)
    away = engine(address="unix:/other.sock", reachable=False)

    assert figures_of((0, status(busy, away)), (1, status(busy, other))).tokens_per_s == 0


def test_fair_is_what_weights_give_among_teams_that_had_work():
    idle = tenant("idle", weight=8.0)
    two = tenant("two", weight=2.0, served_work=5.0), tenant("three", weight=3.0, served_work=5.0)
    foreign = pb.TenantStatus(team="organizations/globex/teams/a", weight=1.0, organization_weight=3.0, served_work=1.0)

    teams = {team.team: team.fair for team in figures_of((0, status(engine(idle, *two, foreign)))).teams}

    assert teams == {
        "organizations/acme/teams/idle": 0.0,
        "organizations/acme/teams/two": pytest.approx(0.25 * 2 / 5),
        "organizations/acme/teams/three": pytest.approx(0.25 * 3 / 5),
        "organizations/globex/teams/a": pytest.approx(0.75),
    }


def test_team_that_starves_has_its_fair_share():
    flooder, starved = tenant("flooder", served_work=900.0, running=4), tenant("starved", waiting=5)

    assert [team.fair for team in figures_of((0, status(engine(flooder, starved)))).teams] == [0.5, 0.5]


def test_older_gateway_tells_no_weight_of_an_organization_and_it_counts_as_one():
    figures = figures_of((0, status(engine(tenant(served_work=1.0, organization_weight=0.0)))))

    assert [team.fair for team in figures.teams] == [1.0]


def test_largest_lead_is_that_of_a_team_that_has_work():
    report = status(engine(tenant("idle", lead=99.0), tenant("busy", lead=5.0, waiting=1)))

    assert figures_of((0, report)).largest_lead == 5.0


def test_team_on_two_engines_is_one_line():
    one = engine(tenant(running=1, lead=5.0, weight=4.0, served_work=30.0))
    two = engine(
        tenant(running=2, lead=9.0, weight=4.0, served_work=10.0), tenant("batch", served_work=10.0), address="b"
    )

    search, batch = figures_of((0, status(one, two))).teams

    assert (search.num_running, search.lead, search.fair) == (3, 9.0, pytest.approx(0.8))
    assert (batch.share, batch.fair) == (pytest.approx(0.2), pytest.approx(0.2))


@pytest.mark.parametrize(
    ("key", "names"),
    [
        (SortKey.SHARE, ["b", "c", "a"]),
        (SortKey.LEAD, ["a", "c", "b"]),
        (SortKey.TOKENS, ["c", "a", "b"]),
        (SortKey.WAITING, ["b", "a", "c"]),
        (SortKey.NAME, ["a", "b", "c"]),
    ],
)
def test_teams_are_in_the_order_that_was_asked_for(key: SortKey, names: list[str]):
    def report(tokens: dict[str, int]) -> pb.SystemStatus:
        figures = {"a": (3, 8.0, 1), "b": (5, 0.0, 7), "c": (4, 2.0, 0)}
        return status(
            engine(
                *(
                    tenant(name, served_work=work, lead=lead, waiting=waiting, prefill_tokens=tokens.get(name, 0))
                    for name, (work, lead, waiting) in figures.items()
                )
            )
        )

    teams = figures_of((0, report({})), (1, report({"c": 50, "a": 10}))).teams

    found = [team.team.rpartition("/")[2] for team in ordered(teams, key, is_reversed=False)]
    assert found == names
    assert ordered(teams, key, is_reversed=True) == ordered(teams, key, is_reversed=False)[::-1]


@pytest.mark.parametrize("width", [60, 80, 100, 132, 200])
def test_frame_is_as_wide_as_its_terminal_and_loses_the_least_columns_first(width: int):
    long = "a-team-with-a-very-long-name-" + "x" * 30
    figures = figures_of((0, status(engine(tenant(long, running=12345, borrowed_tokens=10**7), tenant("b")))))

    lines = lines_of(figures, width)

    (headings,) = [line.split() for line in lines if line.startswith("TEAM")]
    assert max(len(line.rstrip()) for line in lines) <= width
    assert {"SHARE", "FAIR", "TOK/S", "RUN", "WAIT"} <= set(headings)
    assert set(headings) <= set(lines_headings(lines_of(figures, 200)))
    assert ({"LEAD", "BORROWED", "PAUSES", "SWAPS"} <= set(headings)) == (width >= 80)
    assert "BLOCKS" in headings or width < 100
    assert team_line(lines, "acme/a-" if width < 132 else "acme/a-team")["RUN"] == "12k"


def lines_headings(lines: list[str]) -> list[str]:
    return next(line.split() for line in lines if line.startswith("TEAM"))


def test_frame_tells_everything_of_the_overview():
    busy = engine(
        tenant(weight=2.5, running=3, waiting=4, lead=31, borrowed_tokens=17, num_pauses=6, num_swaps_out=5),
        running=3,
        waiting=4,
        paused=1,
        swapped=2,
        free_device_blocks=16,
        fenced_device_blocks=8,
        block_size=16,
        num_host_blocks=32,
        free_host_blocks=30,
        num_preemptions=9,
        num_swaps=5,
        num_pauses=6,
        mean_step_ms=41.5,
        scheduling_options={"mode": "strict"},
    )

    shown = "\n".join(lines := lines_of(figures_of((0, status(busy, live_requests=7, live_gateways=2))), 132))

    for text in (
        "127.0.0.1:50051",
        "7 live requests, 2 gateways",
        "store    reachable",
        "largest lead 31, 1 team",
        "policy fair (mode=strict), preemption over_served",
        "3 running, 4 waiting, 1 paused, 2 swapped, 0 moving",
        "█" * 15 + "▓" * 3 + "░" * 6 + " 48 of 64 blocks of 16, 8 copied; host 2 of 32",
        "steps of 41.5 ms; 9 preemptions, 5 swaps, 6 pauses",
    ):
        assert text in shown
    row = team_line(lines, "acme/search")
    assert (row["WEIGHT"], row["LEAD"], row["RUN"], row["WAIT"]) == ("2.5", "31", "3", "4")
    assert (row["BORROWED"], row["PAUSES"], row["SWAPS"], row["TOK/S"]) == ("17", "6", "5", "-")


def test_what_the_cache_and_guesses_save_is_shown_where_the_engine_has_them():
    saving = engine(
        tenant("a", cached_prompt_tokens=300, prefill_tokens=100),
        tenant("b"),
        prefix_caching=True,
        cached_prompt_tokens=900,
        computed_prompt_tokens=600,
        cached_device_blocks=6,
        cached_host_blocks=2,
        evicted_blocks=12_345,
        speculation="ngram",
        drafted_tokens=400,
        accepted_draft_tokens=100,
    )
    again = engine(tenant("a", cached_prompt_tokens=100, prefill_tokens=0), address="b", speculation="off")

    lines = lines_of(figures_of((0, status(saving, again))), 132)

    told = [line.strip() for line in lines if "found" in line or "drafts" in line]
    assert told == ["prefix cache 60.0% found, 8 kept, 12k evicted; drafts 25.0% of 400 right"]
    assert (team_line(lines, "acme/a")["FOUND"], team_line(lines, "acme/b")["FOUND"]) == ("80.0%", "-")


def test_what_is_broken_is_said():
    broken = status(
        engine(reachable=False),
        engine(address="b", policy_fault="fair raised KeyError", draining=True, lost_steps=1, requeues=1),
        store_reachable=False,
        ledger=pb.LedgerStatus(waiting_events=4, dropped_events=2),
    )

    shown = "\n".join(lines_of(figures_of((0, broken)), 132))

    for text in (
        "NOT REACHABLE, policy",
        "unix:/e.sock: NOT REACHABLE",
        "POLICY REPLACED by the order of arrival: fair raised KeyError",
        "OUT OF MEMORY in 1 step since its start, 1 request was sent back",
        "DRAINING",
        "4 events wait for the ledger; LOST: 2 events",
        "no team has asked for anything",
    ):
        assert text in shown


def test_one_is_told_in_the_singular():
    one = status(engine(num_preemptions=1, num_swaps=1, num_pauses=1), live_requests=1)
    one.ledger.waiting_events = 1

    shown = "\n".join(lines_of(figures_of((0, one)), 132))

    assert "1 live requests" not in shown
    for text in ("1 live request", "1 event waits for the ledger", "1 preemption, 1 swap, 1 pause"):
        assert text in shown


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9999, "9999"), (10_000, "10k"), (123_456, "123k"), (1_234_567, "1.2M"), (5e9, "5.0G"), (5e12, "5T")],
)
def test_numbers_take_four_places_at_most(number: float, text: str):
    assert compact(number) == text
