"""The quota layer in virtual time: which of the past's requests the policies of one snapshot let in.

The same book and the same limits as at the real door. A request ends when its record says it did; one that was refused
is taken to need as many output tokens, and as long for each, as the others of its team. Pure.
"""

import heapq
from collections import Counter, abc
from dataclasses import dataclass, field
from uuid import UUID

from gateway.quota import QuotaBook
from gateway.quota_limits import NodePolicy, limits_at, reservation_mode, unix_ns
from gateway.quota_terms import Charge, Denied, Limit, Mode
from gateway.store.enums import ReservationMode, State
from gateway.store.history import PastRequest
from gateway.store.snapshot import KeyRecord, TeamRecord, TenancySnapshot

DEFAULT_OUTPUT_TOKENS = 128
DEFAULT_TOKEN_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class Presented:
    """A past request with what it needs, known or estimated, at the moment that it is presented."""

    request: PastRequest
    output_tokens: int
    duration_ns: int


@dataclass(slots=True)
class TeamCounts:
    """What became of one team's requests at the door. Mutated by `Door`."""

    admitted: int = 0
    refused: int = 0
    refused_by_limit: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Passed:
    """Who came through, in the order of arrival, and everybody's counts by `acme/search`. Mutated by `Door`."""

    arrivals: list[tuple[str, Presented]] = field(default_factory=list)
    counts: dict[str, TeamCounts] = field(default_factory=dict)
    num_borrowed: int = 0


class Door:
    """One run over the past under one snapshot's policies."""

    def __init__(self, snapshot: TenancySnapshot) -> None:
        self._snapshot = snapshot
        self._keys = {key.key_id: key for key in snapshot.keys.values()}
        self._book = QuotaBook()
        self._ends: list[tuple[int, str, Charge]] = []
        self._passed = Passed()

    def run(self, presented: abc.Iterable[Presented]) -> Passed:
        """All of `presented`, in the order of arrival, was let in or refused."""
        for index, each in enumerate(presented):
            team = self._snapshot.teams[each.request.team_id]
            self._present(str(index), each, team, self._keys.get(each.request.key_id))
        return self._passed

    def _present(self, request_id: str, each: Presented, team: TeamRecord, key: KeyRecord | None) -> None:
        request, now_ns = each.request, unix_ns(each.request.arrived_at)
        self._settle_until(now_ns)
        name = f"{team.organization.slug}/{team.slug}"
        counts = self._passed.counts.setdefault(name, TeamCounts())
        if State.SUSPENDED in (team.state, team.organization.state):
            counts.refused += 1
            counts.refused_by_limit["suspended"] += 1
            return
        path = policies_over(team, key)
        limits = limits_at(path, request.model, request.arrived_at)
        is_hard = reservation_mode(path) is ReservationMode.HARD
        reserved = Charge(1, request.input_tokens, request.max_output_tokens if is_hard else each.output_tokens)
        denied = self._reserve(request_id, limits, reserved, now_ns)
        if denied is not None:
            counts.refused += 1
            counts.refused_by_limit.update(f"{one.limit.node} {one.limit.dimension}" for one in denied.violations)
            return
        counts.admitted += 1
        self._passed.arrivals.append((name, each))
        used = Charge(1, request.input_tokens, each.output_tokens)
        heapq.heappush(self._ends, (now_ns + each.duration_ns, request_id, used))

    def _reserve(self, request_id: str, limits: abc.Sequence[Limit], charge: Charge, now_ns: int) -> Denied | None:
        """None where the request is let in; over limits in BORROW it is, as if the engine always had room for it."""
        verdict = self._book.reserve(request_id, limits, charge, now_ns)
        if not isinstance(verdict, Denied):
            return None
        if any(violation.limit.mode is not Mode.BORROW for violation in verdict.violations):
            return verdict
        binding = [limit for limit in limits if limit.mode is not Mode.BORROW]
        again = self._book.reserve(request_id, binding, charge, now_ns)
        if isinstance(again, Denied):
            return again
        self._passed.num_borrowed += 1
        return None

    def _settle_until(self, now_ns: int) -> None:
        while self._ends and self._ends[0][0] <= now_ns:
            end_ns, request_id, used = heapq.heappop(self._ends)
            self._book.settle(request_id, used, end_ns)


def policies_over(team: TeamRecord, key: KeyRecord | None) -> tuple[NodePolicy, ...]:
    """The policies over the requests of a key, from the key up; of a token's bearer, from the team up."""
    organization = f"organizations/{team.organization.slug}"
    name = f"{organization}/teams/{team.slug}"
    above = (NodePolicy(name, team.policy), NodePolicy(organization, team.organization.policy))
    if key is None or key.policy is None:
        return above
    return (NodePolicy(f"{name}/apiKeys/{key.public_id}", key.policy), *above)


def estimate(requests: abc.Sequence[PastRequest]) -> list[Presented]:
    """`requests` with what each needs: known of those that ran, the mean of their team's for those that were refused.

    Where a team has none that ran, everybody's mean counts; where nobody has, a guess.
    """
    by_team: dict[UUID | None, _Means] = {None: _Means()}
    for request in requests:
        if request.output_tokens is not None and request.duration_ns is not None:
            for group in (request.team_id, None):
                by_team.setdefault(group, _Means()).add(request.output_tokens, request.duration_ns)
    return [_presented(request, by_team.get(request.team_id, by_team[None])) for request in requests]


@dataclass(slots=True)
class _Means:
    """Mutated by `add`."""

    num_requests: int = 0
    output_tokens: int = 0
    duration_ns: int = 0

    def add(self, output_tokens: int, duration_ns: int) -> None:
        self.num_requests += 1
        self.output_tokens += output_tokens
        self.duration_ns += duration_ns


def _presented(request: PastRequest, means: _Means) -> Presented:
    if request.output_tokens is not None and request.duration_ns is not None:
        return Presented(request, request.output_tokens, request.duration_ns)
    mean = means.output_tokens // means.num_requests if means.num_requests else DEFAULT_OUTPUT_TOKENS
    output_tokens = max(1, min(mean, request.max_output_tokens))
    token_ns = means.duration_ns // means.output_tokens if means.output_tokens else DEFAULT_TOKEN_NS
    return Presented(request, output_tokens, output_tokens * token_ns)
