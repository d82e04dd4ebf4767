"""From the engines' totals to what happens now: rates over the last seconds, shares over the last minute.

Totals count since an engine began; one that began anew takes nothing of its past along. With several engines a team's
figures are those of all of them together.
"""

from collections import abc, deque
from dataclasses import dataclass, field
from enum import StrEnum

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.fair_shares import Path, Weights, shares_of_sharing
from gateway.served import Served, Totals, served_between

RATE_WINDOW_S = 5.0
SHARE_WINDOW_S = 60.0


class SortKey(StrEnum):
    """What teams are in order of."""

    SHARE = "share"
    LEAD = "lead"
    TOKENS = "tokens"
    WAITING = "waiting"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Sample:
    """A report, and when it came by a clock that never goes back."""

    at_s: float
    status: pb.SystemStatus


@dataclass(slots=True)
class TeamFigures:
    """One team now; added up by `_team_figures` while it goes through the engines.

    tokens_per_s  None: not known before there is a second report
    share, fair   of the work of the last minute, 0 to 1, and what the weights give it of that among those that were
                  served any or have work
    lead          in cost units by weight, ahead of the least served sibling that has work
    borrowed, num_pauses, num_swaps  since the engines began
    num_found, num_prompt            prompt tokens since then: in the prefix cache, and of all prompts
    """

    team: str
    weight: float
    tokens_per_s: float | None = None
    share: float = 0.0
    fair: float = 0.0
    lead: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_paused: int = 0
    num_swapped: int = 0
    num_blocks: int = 0
    borrowed: int = 0
    num_pauses: int = 0
    num_swaps: int = 0
    num_found: int = 0
    num_prompt: int = 0


@dataclass(frozen=True, slots=True)
class Figures:
    """Everything that a frame shows."""

    status: pb.SystemStatus
    tokens_per_s: float | None
    teams: tuple[TeamFigures, ...]

    @property
    def largest_lead(self) -> float:
        """Of a team that has work over the least served sibling that has some: the gap that the engines hold down."""
        tenants = (tenant for engine in self.status.engines for tenant in engine.tenants)
        return max((tenant.lead for tenant in tenants if _has_work(tenant)), default=0.0)


@dataclass(slots=True)
class History:
    """The reports of the last minute, oldest first. Changed by `add` only."""

    samples: deque[Sample] = field(default_factory=deque)

    def add(self, sample: Sample) -> Figures:
        """What is known with this report, too."""
        if any(_has_restarted(older.status, sample.status) for older in self.samples):
            self.samples.clear()
        self.samples.append(sample)
        while sample.at_s - self.samples[0].at_s > SHARE_WINDOW_S:
            self.samples.popleft()
        teams = _team_figures(sample.status, self.samples[0].status)
        since = self._first_within(RATE_WINDOW_S)
        length_s = sample.at_s - since.at_s
        if not length_s:
            return Figures(sample.status, None, tuple(teams.values()))
        served = served_between(_totals(since.status), _totals(sample.status))
        for name, team in teams.items():
            team.tokens_per_s = served.get(_path(name), Served()).tokens / length_s
        total = sum(team.tokens_per_s or 0.0 for team in teams.values())
        return Figures(sample.status, total, tuple(teams.values()))

    def _first_within(self, window_s: float) -> Sample:
        newest_s = self.samples[-1].at_s
        return next(sample for sample in self.samples if newest_s - sample.at_s <= window_s)


def ordered(teams: abc.Iterable[TeamFigures], key: SortKey, *, is_reversed: bool) -> list[TeamFigures]:
    """Most first, by name where they are equal; names from the first letter on."""
    values: dict[SortKey, abc.Callable[[TeamFigures], float]] = {
        SortKey.SHARE: lambda team: -team.share,
        SortKey.LEAD: lambda team: -team.lead,
        SortKey.TOKENS: lambda team: -(team.tokens_per_s or 0.0),
        SortKey.WAITING: lambda team: -team.num_waiting,
        SortKey.NAME: lambda _: 0.0,
    }
    return sorted(teams, key=lambda team: (values[key](team), team.team), reverse=is_reversed)


def _has_restarted(before: pb.SystemStatus, now: pb.SystemStatus) -> bool:
    """Whether an engine counts from zero again. One that did not answer has not told."""
    steps = {engine.address: engine.num_steps for engine in before.engines if engine.reachable}
    return any(engine.reachable and engine.num_steps < steps.get(engine.address, 0) for engine in now.engines)


def _totals(status: pb.SystemStatus) -> Totals:
    return {
        engine.address: {
            _path(tenant.team): Served(tenant.prefill_tokens, tenant.output_tokens, tenant.served_work)
            for tenant in engine.tenants
        }
        for engine in status.engines
        if engine.reachable
    }


def _team_figures(now: pb.SystemStatus, then: pb.SystemStatus) -> dict[str, TeamFigures]:
    """By the team's name. Where nothing was served since `then`, the shares are those since the engines began."""
    teams: dict[str, TeamFigures] = {}
    in_all: dict[Path, float] = {}
    are_busy: dict[Path, bool] = {}
    for tenant in (tenant for engine in now.engines for tenant in engine.tenants):
        _add(teams.setdefault(tenant.team, TeamFigures(tenant.team, tenant.weight)), tenant)
        path = _path(tenant.team)
        in_all[path] = in_all.get(path, 0.0) + tenant.served_work
        are_busy[path] = are_busy.get(path, False) or _has_work(tenant)
    lately = {path: served.work for path, served in served_between(_totals(then), _totals(now)).items()}
    work = lately if sum(lately.values()) else in_all
    total = sum(work.values())
    fair = shares_of_sharing(are_busy, {path for path in work if work[path]}, _weights(now))
    for name, team in teams.items():
        team.share = work.get(_path(name), 0.0) / total if total else 0.0
        team.fair = fair.get(_path(name), 0.0)
    return teams


def _has_work(tenant: pb.TenantStatus) -> bool:
    return any((tenant.running, tenant.waiting, tenant.paused, tenant.swapped))


def _weights(status: pb.SystemStatus) -> Weights:
    """An older gateway does not tell an organization's: it counts as 1."""
    weights: dict[Path, float] = {}
    for tenant in (tenant for engine in status.engines for tenant in engine.tenants):
        path = _path(tenant.team)
        weights[path[:1]], weights[path] = tenant.organization_weight, tenant.weight
    return weights


def _path(team: str) -> Path:
    """`organizations/a/teams/b` as organization and team; of one that no gateway knows, its ids are the name."""
    organization, _, own = team.partition("/teams/")
    return (organization, own) if own else tuple(team.split("/"))


def _add(team: TeamFigures, tenant: pb.TenantStatus) -> None:
    team.lead = max(team.lead, tenant.lead)
    team.num_running += tenant.running
    team.num_waiting += tenant.waiting
    team.num_paused += tenant.paused
    team.num_swapped += tenant.swapped
    team.num_blocks += tenant.device_blocks
    team.borrowed += tenant.borrowed_tokens
    team.num_pauses += tenant.num_pauses
    team.num_swaps += tenant.num_swaps_out
    team.num_found += tenant.cached_prompt_tokens
    team.num_prompt += tenant.cached_prompt_tokens + tenant.prefill_tokens
