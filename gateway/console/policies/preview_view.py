"""What a simulation has found, as a page shows it: who waits less or more, who is refused or let in, with pictures.

Figures of few requests are called that: one request more or less decides them. Pure.
"""

from collections import abc
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.console.charts import Bar, Chart, Frame, bar_chart
from gateway.console.charts.scale import SECONDS, amounts_of, seconds_text
from gateway.console.words import NOTHING, dimension_text
from gateway.durations import differ_notably
from gateway.words import counted, short_name

FEW_REQUESTS = 30
MAX_BARS = 10
MAX_ROWS = 50
SIDES = ("now", "proposed")
MEDIANS = Frame(
    "preview-medians", "Wait for the first token", SECONDS, "What half of the requests stay within (median)."
)
WAITS = Frame("preview-waits", "Longest waits for it", SECONDS, "What 99 of 100 requests stay within (p99).")


class Wait(StrEnum):
    """How a team's wait for first tokens would have changed."""

    LESS = "less"
    MORE = "more"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class TeamView:
    """One team under the present and the proposed policies; of each pair the present comes first.

    `more_refused` is negative where fewer are. Waits in seconds, None where nobody had a first token.
    """

    name: str
    admitted: tuple[int, int]
    refused: tuple[int, int]
    p50_s: tuple[float | None, float | None]
    p99_s: tuple[float | None, float | None]
    wait: Wait
    refused_by_limit: tuple[tuple[str, int], ...]

    @property
    def more_refused(self) -> int:
        return self.refused[1] - self.refused[0]

    @property
    def num_requests(self) -> int:
        return sum(self.admitted[:1] + self.refused[:1])

    @property
    def is_as_now(self) -> bool:
        return self.wait is Wait.SAME and not self.more_refused

    @property
    def has_few(self) -> bool:
        return self.num_requests < FEW_REQUESTS

    @property
    def wait_texts(self) -> tuple[str, str, str, str]:
        """The median now and proposed, then the 99th percentile."""
        p50, p50_then, p99, p99_then = (
            NOTHING if each is None else seconds_text(each) for each in (*self.p50_s, *self.p99_s)
        )
        return p50, p50_then, p99, p99_then


@dataclass(frozen=True, slots=True)
class PreviewView:
    """`teams`: what changes first, then by how much they asked for; `num_left_out` are as now and not among them."""

    num_requests: int
    num_denials: int
    scheduling_policy: str
    notes: tuple[str, ...]
    teams: tuple[TeamView, ...]
    num_left_out: int
    has_own_traffic: bool
    median_chart: Chart
    wait_chart: Chart
    refusal_chart: Chart | None

    @property
    def num_total(self) -> int:
        return self.num_requests + self.num_denials

    @property
    def count_text(self) -> str:
        return counts_text(self.num_requests, self.num_denials)

    @property
    def has_few(self) -> bool:
        return self.num_total < FEW_REQUESTS

    @property
    def waits_less(self) -> list[TeamView]:
        return [team for team in self.teams if team.wait is Wait.LESS]

    @property
    def waits_more(self) -> list[TeamView]:
        return [team for team in self.teams if team.wait is Wait.MORE]

    @property
    def is_refused(self) -> list[TeamView]:
        return [team for team in self.teams if team.more_refused > 0]

    @property
    def is_admitted(self) -> list[TeamView]:
        return [team for team in self.teams if team.more_refused < 0]

    @property
    def is_as_now(self) -> bool:
        return all(team.is_as_now for team in self.teams)


def counts_text(num_requests: int, num_denials: int) -> str:
    """`1,234 requests and 1 refusal`"""
    return f"{counted(num_requests, 'request')} and {counted(num_denials, 'refusal')}"


def view_of(response: pb.SimulateQuotaPoliciesResponse, node: str) -> PreviewView:
    """What is shown of `response` after a change at `node`, the resource name of an organization, team or key."""
    teams = sorted(map(_team, response.tenants), key=lambda team: (team.is_as_now, -team.num_requests, team.name))
    num_changed = sum(not team.is_as_now for team in teams)
    shown = teams[: max(MAX_ROWS, num_changed)]
    waiting = _waiting(teams)
    own = short_name("/".join(node.split("/")[:4]))
    return PreviewView(
        num_requests=response.num_requests,
        num_denials=response.num_denials,
        scheduling_policy=response.scheduling_policy,
        notes=tuple(response.notes),
        teams=tuple(shown),
        num_left_out=len(teams) - len(shown),
        has_own_traffic=any(team.name == own or team.name.startswith(f"{own}/") for team in teams),
        median_chart=bar_chart(MEDIANS, SIDES, [Bar(team.name, team.p50_s) for team in waiting]),
        wait_chart=bar_chart(WAITS, SIDES, [Bar(team.name, team.p99_s) for team in waiting]),
        refusal_chart=_refusal_chart(teams),
    )


def _team(tenant: pb.SimulatedTenant) -> TeamView:
    now, then = tenant.current, tenant.proposed
    p50_s = _wait_s(now, "ttft_p50"), _wait_s(then, "ttft_p50")
    p99_s = _wait_s(now, "ttft_p99"), _wait_s(then, "ttft_p99")
    return TeamView(
        name=short_name(tenant.team),
        admitted=(now.admitted, then.admitted),
        refused=(now.refused, then.refused),
        p50_s=p50_s,
        p99_s=p99_s,
        wait=_wait(p99_s, p50_s),
        refused_by_limit=tuple(sorted((_limit_text(limit), count) for limit, count in then.refused_by_limit.items())),
    )


def _wait(*waits_s: tuple[float | None, float | None]) -> Wait:
    """By the first of the pairs that differs: weights alone move the median and leave the longest waits."""
    for before_s, after_s in waits_s:
        if before_s is not None and after_s is not None and differ_notably(before_s, after_s):
            return Wait.MORE if after_s > before_s else Wait.LESS
    return Wait.SAME


def _wait_s(outcome: pb.SimulatedOutcome, field: str) -> float | None:
    length: Duration = getattr(outcome, field)
    return length.ToNanoseconds() / 1e9 if outcome.HasField(field) else None  # type: ignore[arg-type]  # one of two names


def _limit_text(limit: str) -> str:
    """`requests of acme/search`; what is no limit's name, as it is."""
    node, _, dimension = limit.rpartition(" ")
    return f"{dimension_text(dimension)} of {short_name(node)}" if node else limit


def _waiting(teams: abc.Sequence[TeamView]) -> abc.Sequence[TeamView]:
    """Of whom waits are drawn: whose change or, where nobody's does, who asked for most."""
    waiting = [team for team in teams if team.p99_s != (None, None)]
    return ([team for team in waiting if team.wait is not Wait.SAME] or waiting)[:MAX_BARS]


def _refusal_chart(teams: abc.Sequence[TeamView]) -> Chart | None:
    """None where nobody is refused anything."""
    refused = [team for team in teams if any(team.refused)]
    if not refused:
        return None
    refused.sort(key=lambda team: -abs(team.more_refused))
    frame = Frame("preview-refusals", "Refused at the door", amounts_of("requests"))
    return bar_chart(frame, SIDES, [Bar(team.name, team.refused) for team in refused[:MAX_BARS]])
