"""The past under other policies: the door by the same arithmetic, the engine by the real simulator."""

import asyncio
from collections import abc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import grpc
import pytest
import pytest_asyncio
from typer.testing import CliRunner
from uuid_utils.compat import uuid7

from engine.commands import sim
from evenflow.admin.v1 import admin_pb2 as pb
from gateway.admin.what_if import engine as what_if_engine
from gateway.admin.what_if.engine import EngineChoice, engine_options
from gateway.status import PoliciesInForce
from gateway.store.denials import DenialEvent, insert_denials
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent, insert_usage
from tests.admin.service import AdminService, Refused, engine_stats

TEAM = "organizations/acme/teams/search"
OTHER = "organizations/acme/teams/ads"
SECOND_NS = 1_000_000_000


def id_at(moment: datetime) -> UUID:
    """A UUIDv7 of that millisecond."""
    unix_ms = round(moment.timestamp() * 1000)
    return UUID(int=(unix_ms << 80) | (uuid7().int & ((1 << 80) - 1)))


class History:
    """What happened to the service's teams, ten minutes ago and later."""

    def __init__(self, service: AdminService, keys: dict[str, pb.ApiKey]) -> None:
        self._service = service
        self._keys = keys
        self.began = datetime.now(UTC) - timedelta(minutes=10)

    def _ids(self, team: str) -> tuple[UUID, UUID, UUID]:
        key = self._service.cache.current.keys[self._keys[team].name.rpartition("/")[2]]
        return key.team.organization.id, key.team.id, key.key_id

    async def served(self, team: str, at_s: float, num_input: int = 100, num_output: int = 50) -> None:
        moment = self.began + timedelta(seconds=at_s)
        organization_id, team_id, key_id = self._ids(team)
        event = UsageEvent(
            generation_id=id_at(moment),
            organization_id=organization_id,
            team_id=team_id,
            key_id=key_id,
            model="m",
            priority_class="default",
            input_tokens=num_input,
            output_tokens=num_output,
            billed_tokens=num_input + num_output,
            reserved_tokens=num_input + 2 * num_output,
            finish_reason="STOP",
            source=UsageSource.ENGINE,
            finished_at=moment + timedelta(seconds=1),
            policy_revision=1,
            decode_ns=SECOND_NS,
        )
        await insert_usage(self._service.database, [event])

    async def refused(self, team: str, at_s: float, num_input: int = 100, *, is_shadow: bool = False) -> None:
        organization_id, team_id, key_id = self._ids(team)
        event = DenialEvent(
            id=uuid7(),
            denied_at=self.began + timedelta(seconds=at_s),
            organization_id=organization_id,
            team_id=team_id,
            key_id=key_id,
            model="m",
            priority_class="default",
            input_tokens=num_input,
            max_output_tokens=100,
            reserved_tokens=num_input + 100,
            reason="RATE_LIMITED",
            is_shadow=is_shadow,
            nodes=(team,),
            dimensions=("REQUESTS",),
            waits_ms=(1000,),
            policy_revision=1,
        )
        await insert_denials(self._service.database, [event])


@pytest_asyncio.fixture
async def history(service: AdminService) -> History:
    await service.create_org()
    await service.create_team()
    await service.create_team("ads")
    return History(service, {team: await service.create_key(team) for team in (TEAM, OTHER)})


@pytest.fixture
def simulator_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator runs in this process: starting two for each question takes longer than what they do."""

    async def run(command: abc.Sequence[str]) -> bytes:
        start = (*what_if_engine.NICE, *what_if_engine.EVENFLOW, "sim")
        assert tuple(command[: len(start)]) == start
        ran = CliRunner().invoke(sim.app, command[len(start) :])
        assert ran.exit_code == 0, ran.output
        return ran.stdout_bytes

    monkeypatch.setattr(what_if_engine, "_run", run)


def limited(team: str, num_requests: int, **fields) -> pb.PolicyEntry:
    """At most so many requests an hour, all of them at once if need be."""
    limit = pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_REQUESTS, limit=num_requests, burst=num_requests)
    limit.period.FromTimedelta(timedelta(hours=1))
    return pb.PolicyEntry(quota_policy=pb.QuotaPolicy(name=f"{team}/quotaPolicies/default", limits=[limit], **fields))


async def simulate(service: AdminService, *entries: pb.PolicyEntry, **fields) -> pb.SimulateQuotaPoliciesResponse:
    request = pb.SimulateQuotaPoliciesRequest(entries=entries, **fields)
    return await service.call(service.stub.SimulateQuotaPolicies, request)


async def test_who_would_have_failed_and_who_gained(service: AdminService, history: History):
    for index in range(6):
        await history.served(TEAM, index)
        await history.refused(OTHER, index)
    await service.call(service.stub.ApplyPolicies, pb.ApplyPoliciesRequest(entries=[limited(OTHER, 2)]))

    response = await simulate(service, limited(TEAM, 4), limited(OTHER, 5))

    ads, search = response.tenants
    assert (response.num_requests, response.num_denials) == (6, 6)
    assert (search.team, ads.team) == (TEAM, OTHER)
    assert [(one.admitted, one.refused) for one in (search.current, search.proposed)] == [(6, 0), (4, 2)]
    assert [(one.admitted, one.refused) for one in (ads.current, ads.proposed)] == [(2, 4), (5, 1)]
    assert dict(search.proposed.refused_by_limit) == {f"{TEAM} REQUESTS": 2}
    assert (search.current.output_tokens, search.proposed.output_tokens) == (300, 200)
    assert ads.proposed.output_tokens == 5 * 50  # nobody of the team ran, so everybody's mean
    assert search.current.ttft_p99.ToTimedelta() >= search.current.ttft_p50.ToTimedelta() > timedelta()
    assert response.scheduling_policy == "fair"


@pytest.mark.usefixtures("simulator_here")
async def test_nothing_is_changed_by_it(service: AdminService, history: History):
    await history.served(TEAM, 0)
    revision = service.cache.current.revision

    await simulate(service, limited(TEAM, 4))

    policy = await service.call(
        service.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=f"{TEAM}/quotaPolicies/default")
    )
    assert list(policy.limits) == []
    assert (await service.cache.refresh()).revision == revision


@pytest.mark.usefixtures("simulator_here")
async def test_without_entries_both_sides_are_the_present(service: AdminService, history: History):
    for index in range(3):
        await history.served(TEAM, index)

    (tenant,) = (await simulate(service)).tenants

    assert tenant.current == tenant.proposed
    assert tenant.current.admitted == 3


@pytest.mark.usefixtures("simulator_here")
async def test_only_the_window_counts_and_shadow_refusals_are_no_refusals(service: AdminService, history: History):
    await history.served(TEAM, 0)
    await history.served(TEAM, 590)
    await history.refused(TEAM, 595, is_shadow=True)
    request = pb.SimulateQuotaPoliciesRequest()
    request.window.FromTimedelta(timedelta(minutes=1))

    response = await service.call(service.stub.SimulateQuotaPolicies, request)

    assert (response.num_requests, response.num_denials) == (1, 0)


@pytest.mark.usefixtures("simulator_here")
async def test_slots_are_held_as_long_as_requests_ran(service: AdminService, history: History):
    for at_s in (0.0, 0.5, 2.0):  # each ran for a second
        await history.served(TEAM, at_s)
    limit = pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_CONCURRENCY, limit=1)
    policy = pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default", limits=[limit])

    (tenant,) = (await simulate(service, pb.PolicyEntry(quota_policy=policy))).tenants

    assert (tenant.proposed.admitted, tenant.proposed.refused) == (2, 1)


@pytest.mark.usefixtures("simulator_here")
async def test_modes_do_what_they_do_at_the_door(service: AdminService, history: History):
    for index in range(5):
        await history.served(TEAM, index)

    (shadow,) = (await simulate(service, limited(TEAM, 2, mode=pb.QUOTA_MODE_SHADOW))).tenants
    response = await simulate(service, limited(TEAM, 2, mode=pb.QUOTA_MODE_BORROW))

    assert (shadow.proposed.admitted, shadow.proposed.refused) == (5, 0)
    assert response.tenants[0].proposed.admitted == 5
    assert any("3 requests run over limits in BORROW" in note for note in response.notes)


@pytest.mark.usefixtures("simulator_here")
async def test_requests_of_teams_that_are_gone_are_left_out_and_said_so(service: AdminService, history: History):
    await history.served(TEAM, 0)
    gone = UsageEvent(
        generation_id=id_at(history.began),
        organization_id=uuid4(),
        team_id=uuid4(),
        key_id=uuid4(),
        model="m",
        priority_class="default",
        input_tokens=1,
        output_tokens=1,
        billed_tokens=2,
        finish_reason="STOP",
        source=UsageSource.ENGINE,
        finished_at=history.began,
        policy_revision=1,
    )
    await insert_usage(service.database, [gone])

    response = await simulate(service)

    assert [tenant.team for tenant in response.tenants] == [TEAM]
    assert any("1 requests of teams that are gone" in note for note in response.notes)


async def test_bad_entries_and_windows_are_refused(service: AdminService, history: History):
    bad = pb.PolicyEntry(quota_policy=pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default", weight=-1))
    refused = await service.refused(service.stub.SimulateQuotaPolicies, pb.SimulateQuotaPoliciesRequest(entries=[bad]))
    assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("entries[0].quota_policy.weight",))
    for seconds in (0, -1, 8 * 86400, 2**60):
        request = pb.SimulateQuotaPoliciesRequest()
        request.window.seconds = seconds
        refused = await service.refused(service.stub.SimulateQuotaPolicies, request)
        assert refused.fields == ("window",)


async def test_simulation_that_takes_too_long_is_ended(service: AdminService, history: History, monkeypatch):
    await history.served(TEAM, 0)
    monkeypatch.setattr(what_if_engine, "EVENFLOW", ("sh", "-c", "sleep 60"))
    monkeypatch.setattr(what_if_engine, "TIME_LIMIT_S", 0.2)

    async with asyncio.timeout(30):
        with pytest.raises(grpc.aio.AioRpcError, match="choose a shorter window") as refused:
            await simulate(service)

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_simulator_that_fails_says_why(service: AdminService, history: History, monkeypatch):
    await history.served(TEAM, 0)
    monkeypatch.setattr(what_if_engine, "EVENFLOW", ("sh", "-c", "echo no such policy >&2; exit 1"))

    with pytest.raises(grpc.aio.AioRpcError, match="no such policy") as refused:
        await simulate(service)

    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_simulated_engine_is_the_live_one():
    policies = PoliciesInForce("fair", "over_served", {"mode": "strict", "slack": "4"}, {}, "auto", policy_fault="")
    stats = engine_stats(policies=policies, max_num_seqs=4, max_num_batched_tokens=256)

    options = engine_options(Path("t.jsonl"), Path("c.json"), EngineChoice(2, stats))

    given = dict(zip(options[::2], options[1::2], strict=True))
    assert given["--policy"] == "fair:mode=strict,slack=4"
    assert (given["--engines"], given["--max-num-seqs"], given["--max-num-batched-tokens"]) == ("2", "4", "256")
    assert (given["--block-size"], given["--num-device-blocks"], given["--num-host-blocks"]) == ("16", "64", "32")
