"""SimulateQuotaPolicies: the past, presented at the door and to the engine under the present and the proposed policies.

Changes nothing and is no change: what is proposed is checked like a dry run of ApplyPolicies. One at a time.
"""

import asyncio
from collections import abc
from datetime import UTC, datetime, timedelta

from google.protobuf.duration_pb2 import Duration

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.apply import as_entry_error, parse_entries
from gateway.admin.backend import Backend
from gateway.admin.names import invalid
from gateway.admin.what_if.door import Door, Passed, Presented, TeamCounts, estimate
from gateway.admin.what_if.engine import EngineChoice, Served, simulate
from gateway.admin.what_if.progress import Progress, Stage, tell
from gateway.errors import NoEngineError
from gateway.status import SystemReport
from gateway.store.history import PastRequest, past_requests
from gateway.store.policy_set import preview
from gateway.store.snapshot import TenancySnapshot

DEFAULT_WINDOW = timedelta(hours=24)
MAX_WINDOW = timedelta(days=7)
MAX_REQUESTS = 200_000

Outcomes = tuple[Passed, dict[str, Served]]


class WhatIf:
    """The method of AdminService on policies that are not in force. `status` tells what the engines are."""

    def __init__(self, backend: Backend, status: abc.Callable[[], abc.Awaitable[SystemReport]]) -> None:
        self._backend = backend
        self._status = status
        self._turn = asyncio.Lock()

    async def simulate(self, request: pb.SimulateQuotaPoliciesRequest) -> pb.SimulateQuotaPoliciesResponse:
        window = _parse_window(request)
        wanted = parse_entries(request.entries)
        if self._turn.locked():
            tell(Progress(Stage.WAITING))
        async with self._turn:
            tell(Progress(Stage.READING))
            choice = _engine(await self._status())
            change = self._backend.change(request, "", validate_only=True)
            with as_entry_error():
                current, proposed = await preview(self._backend.database, change, wanted)
            until = datetime.now(UTC)
            past = await self._backend.read(past_requests(self._backend.database, until - window, until, MAX_REQUESTS))
            known = [each for each in past if each.team_id in proposed.teams]
            num_denials = sum(each.output_tokens is None for each in past)
            num_requests = len(past) - num_denials
            presented = await asyncio.to_thread(estimate, known)
            tell(Progress(Stage.CURRENT, num_requests, num_denials))
            before = await _outcomes(presented, current, choice)
            tell(Progress(Stage.PROPOSED, num_requests, num_denials))
            after = await _outcomes(presented, proposed, choice) if wanted else before
        return pb.SimulateQuotaPoliciesResponse(
            tenants=_tenants(before, after),
            num_requests=num_requests,
            num_denials=num_denials,
            notes=_notes(past, known, choice, after[0]),
            scheduling_policy=choice.stats.policies.scheduling_policy,
        )


async def _outcomes(presented: abc.Sequence[Presented], snapshot: TenancySnapshot, choice: EngineChoice) -> Outcomes:
    passed = await asyncio.to_thread(Door(snapshot).run, presented)
    return passed, await simulate(passed.arrivals, snapshot, choice)


def _parse_window(request: pb.SimulateQuotaPoliciesRequest) -> timedelta:
    if not request.HasField("window"):
        return DEFAULT_WINDOW
    try:
        window = request.window.ToTimedelta()
    except (ValueError, OverflowError) as error:
        raise invalid("window", "is no length of time") from error
    if not timedelta() < window <= MAX_WINDOW:
        raise invalid("window", f"must be above 0 and at most {MAX_WINDOW.days} days")
    return window


def _engine(report: SystemReport) -> EngineChoice:
    """Raises NoEngineError where none answers: what its steps cost is not known then."""
    answering = [engine.stats for engine in report.engines if engine.stats is not None]
    if not answering:
        raise NoEngineError
    return EngineChoice(len(answering), answering[0])


def _tenants(before: Outcomes, after: Outcomes) -> list[pb.SimulatedTenant]:
    names = sorted({*before[0].counts, *after[0].counts})
    return [
        pb.SimulatedTenant(
            team="organizations/{}/teams/{}".format(*name.split("/")),
            current=_outcome(name, before),
            proposed=_outcome(name, after),
        )
        for name in names
    ]


def _outcome(name: str, outcomes: Outcomes) -> pb.SimulatedOutcome:
    passed, by_team = outcomes
    counts, served = passed.counts.get(name, TeamCounts()), by_team.get(name)
    return pb.SimulatedOutcome(
        admitted=counts.admitted,
        refused=counts.refused,
        refused_by_limit=counts.refused_by_limit,
        output_tokens=0 if served is None else served.output_tokens,
        ttft_p50=None if served is None else _duration(served.ttft_p50_s),
        ttft_p99=None if served is None else _duration(served.ttft_p99_s),
    )


def _duration(length_s: float | None) -> Duration | None:
    if length_s is None:
        return None
    duration = Duration()
    duration.FromMicroseconds(round(length_s * 1e6))
    return duration


def _notes(
    past: abc.Sequence[PastRequest], known: abc.Sequence[PastRequest], choice: EngineChoice, passed: Passed
) -> list[str]:
    """What the figures do not cover, in words."""
    notes = [
        "Each request is presented once, when it came; a client that was refused and tried again counts each time.",
        "What a refused request would have generated is its team's mean.",
    ]
    if len(past) >= MAX_REQUESTS:
        notes.append(f"Only the newest {MAX_REQUESTS} requests of the window are in it.")
    if len(known) < len(past):
        notes.append(f"{len(past) - len(known)} requests of teams that are gone are left out.")
    if passed.num_borrowed:
        notes.append(f"{passed.num_borrowed} requests run over limits in BORROW, as if there were always room.")
    if not choice.stats.prices.are_measured:
        notes.append("The engine has not measured its steps yet: times follow from defaults.")
    if len({each.model for each in known}) > 1:
        notes.append("All models are simulated on the same engines.")
    return notes
