"""What a simulation found, in words: who waits, who is refused, and how little that may rest on."""

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.policies.preview_view import FEW_REQUESTS, MAX_ROWS, Wait, view_of

TEAM = "organizations/acme/teams/search"


def outcome(admitted: int, refused: int = 0, p99_s: float | None = None, **fields) -> pb.SimulatedOutcome:
    made = pb.SimulatedOutcome(admitted=admitted, refused=refused, **fields)
    if p99_s is not None:
        made.ttft_p99.CopyFrom(Duration(seconds=int(p99_s), nanos=round(p99_s % 1 * 1e9)))
        made.ttft_p50.CopyFrom(Duration(seconds=int(p99_s / 2), nanos=round(p99_s / 2 % 1 * 1e9)))
    return made


def tenant(name: str, now: pb.SimulatedOutcome, then: pb.SimulatedOutcome) -> pb.SimulatedTenant:
    return pb.SimulatedTenant(team=f"organizations/acme/teams/{name}", current=now, proposed=then)


def view(*tenants: pb.SimulatedTenant, node: str = TEAM, **fields):
    some = {"num_requests": 100, "num_denials": 10, "scheduling_policy": "fair"} | fields
    return view_of(pb.SimulateQuotaPoliciesResponse(tenants=tenants, **some), node)


def test_everybody_who_would_notice_is_named_first():
    found = view(
        tenant("same", outcome(500, p99_s=1.0), outcome(500, p99_s=1.01)),
        tenant("search", outcome(40, 10, p99_s=4.0), outcome(30, 20, p99_s=2.0)),
        tenant("slower", outcome(90, p99_s=1.0), outcome(90, p99_s=1.5)),
        tenant("gains", outcome(10, 10), outcome(20, 0)),
    )

    assert [team.name for team in found.teams] == ["acme/slower", "acme/search", "acme/gains", "acme/same"]
    assert [team.name for team in found.waits_less] == ["acme/search"]
    assert [team.name for team in found.waits_more] == ["acme/slower"]
    assert [(team.name, team.more_refused) for team in found.is_refused] == [("acme/search", 10)]
    assert [(team.name, team.more_refused) for team in found.is_admitted] == [("acme/gains", -10)]
    assert not found.is_as_now
    assert found.teams[1].wait_texts == ("2 s", "1 s", "4 s", "2 s")
    assert "acme/slower: now 1 s, proposed 1.5 s." in found.wait_chart.picture
    assert "acme/same" not in found.wait_chart.picture
    assert found.refusal_chart is not None


def test_a_median_that_moves_alone_is_a_change():
    now, then = outcome(50, p99_s=4.0), outcome(50, p99_s=4.0)
    then.ttft_p50.FromSeconds(3)

    (team,) = view(tenant("search", now, then)).teams

    assert team.wait is Wait.MORE


def test_where_nobody_would_notice_the_pictures_show_who_asked_for_most():
    found = view(tenant("search", outcome(50, p99_s=1.0), outcome(50, p99_s=1.0)))

    assert found.is_as_now
    assert found.teams[0].wait is Wait.SAME
    assert "acme/search: now 1 s, proposed 1 s." in found.wait_chart.picture
    assert found.refusal_chart is None


def test_somebody_who_waits_for_the_first_time_or_never_is_not_compared():
    (team,) = view(tenant("search", outcome(0, 5), outcome(5, 0, p99_s=3.0))).teams

    assert team.wait is Wait.SAME
    assert team.wait_texts == ("–", "1.5 s", "–", "3 s")


def test_little_traffic_is_called_that():
    same = outcome(FEW_REQUESTS - 1, p99_s=1.0)
    found = view(tenant("search", same, same), num_requests=FEW_REQUESTS - 1, num_denials=0)
    assert found.has_few
    assert found.teams[0].has_few
    many = outcome(FEW_REQUESTS, p99_s=1.0)
    found = view(tenant("search", many, many), num_requests=FEW_REQUESTS, num_denials=0)
    assert not found.has_few
    assert not found.teams[0].has_few


def test_a_node_that_asked_for_nothing_is_called_that():
    others = tenant("ads", outcome(50), outcome(50))

    assert not view(others).has_own_traffic
    assert not view(others, node=f"{TEAM}/apiKeys/abc").has_own_traffic
    assert view(others, node="organizations/acme").has_own_traffic
    assert not view(others, node="organizations/ac").has_own_traffic
    assert view(tenant("search", outcome(1), outcome(1)), node=f"{TEAM}/apiKeys/abc").has_own_traffic


def test_many_teams_that_are_as_now_are_counted_and_not_listed():
    found = view(*(tenant(f"t{index}", outcome(50), outcome(50)) for index in range(MAX_ROWS + 7)))

    assert (len(found.teams), found.num_left_out) == (MAX_ROWS, 7)


def test_limits_that_refuse_are_named_in_words():
    refused = outcome(1, 3, refused_by_limit={f"{TEAM} TOTAL_TOKENS": 2, "suspended": 1})

    (team,) = view(tenant("search", outcome(4), refused)).teams

    assert team.refused_by_limit == (("suspended", 1), ("total tokens of acme/search", 2))
