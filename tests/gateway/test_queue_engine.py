"""A queue in a real engine, as its tenants, an administrator and another gateway see it."""

import asyncio
from collections import abc
from pathlib import Path
from uuid import UUID

import grpc
import pytest
import pytest_asyncio

from engine.server import queue_reports
from engine.server.backend import Backend
from engine.server.engine_server import EngineServer
from engine.server.serve import load_policies
from engine.settings import read_settings
from evenflow.admin.v1 import admin_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from tests.engine.fake_runner import FakeRunner
from tests.gateway.calls import get, rest_of, watch
from tests.gateway.test_queue_admin import EVERY_TEAM, admin_of, cancel, queue
from tests.gateway.test_request_ids import ID, on
from tests.gateway.world import Tenant, World, refused
from tests.ledger.engine_process import FAKE_CONFIG, FAKE_MODEL

SLOW_S, FAST_S = 0.1, 0.002
NUM_ROWS = 16
NUM_TOKENS = 240
TEAM = "organizations/acme/teams/search"


@pytest.fixture
def runner() -> FakeRunner:
    """Slow enough for whatever a test does meanwhile, until it says otherwise."""
    return FakeRunner(SLOW_S)


@pytest_asyncio.fixture
async def target(runner: FakeRunner, tmp_path: Path) -> abc.AsyncIterator[str]:
    """A real engine in this process, with a fake model; its address."""
    settings = read_settings({"listen": f"unix:{tmp_path}/e.sock", "scheduling_policy": "fcfs"})
    server = EngineServer(settings, load_policies(settings), None)
    await server.listen()
    await server.open(lambda: Backend(runner, FAKE_MODEL, FAKE_CONFIG))
    yield settings.listen
    runner._step_s = 0.0
    await server.drain(grace_s=1)
    await server.close()


@pytest_asyncio.fixture
async def real(closed_world: World, target: str) -> World:
    """A gateway over it."""
    closed_world.options = {"engine": target}
    await closed_world.open()
    await closed_world.serving()
    return closed_world


@pytest_asyncio.fixture
async def second(real: World, target: str, tmp_path: Path) -> abc.AsyncIterator[World]:
    """Another gateway over the same engine and database."""
    other = World(real.engine, real.database, real.database_url, real.telemetry, tmp_path / "second")
    other.options = {"engine": target}
    await other.open()
    await other.serving()
    yield other
    await other.close()


def stream(tenant: Tenant, **fields):
    return tenant.stream(stopping={"max_output_tokens": NUM_TOKENS, "ignore_eos": True}, **fields)


async def test_who_waits_is_told_where_until_it_is_taken_in(real: World, runner: FakeRunner) -> None:
    tenant = await real.tenant()
    crowd = []
    for _ in range(2 * NUM_ROWS):
        crowd.append(stream(tenant))
        await crowd[-1].read()
    last = stream(tenant)
    generation_id = (await last.read()).admission.generation_id
    reading = asyncio.create_task(rest_of(last))
    admin = await real.administrator()

    entries = await queue(admin)
    states = {entry.generation_id: entry.state for entry in entries}
    told = await admin_of(admin).ExplainRequest(
        admin_pb2.ExplainRequestRequest(generation_id=generation_id), metadata=admin.metadata
    )
    await asyncio.sleep(queue_reports.REPORT_EVERY_S)
    runner._step_s = FAST_S
    messages = await reading
    for each in crowd:
        assert (await rest_of(each))[-1].finish.usage.output_tokens == NUM_TOKENS

    assert list(states.values()).count("running") == NUM_ROWS
    assert states[generation_id] == "waiting"
    assert told.blocked_by == "order"
    assert 0 < told.position == len(told.ahead) <= NUM_ROWS
    assert {entry.team for entry in told.ahead} == {"organizations/acme/teams/search"}
    positions = [message.queue_update.position for message in messages if message.HasField("queue_update")]
    assert positions
    assert positions == sorted(positions, reverse=True)
    assert positions[0] <= NUM_ROWS
    kinds = [message.WhichOneof("event") for message in messages]
    assert kinds.index("token_delta") > kinds.index("queue_update")
    assert "queue_update" not in kinds[kinds.index("token_delta") :]
    estimates = [m.queue_update.estimated_wait.ToNanoseconds() for m in messages if m.HasField("queue_update")]
    assert all(0 < estimate < 60e9 for estimate in estimates)


async def test_another_gateway_knows_where_a_generation_stands(real: World, second: World) -> None:
    tenant, stranger = await real.tenant(), await real.tenant("globex")
    running = stream(tenant)
    generation_id = (await running.read()).admission.generation_id

    found = await get(await on(second, tenant), generation_id=generation_id)
    refusal = await refused(get(await on(second, stranger), generation_id=generation_id))
    entries = await queue(await second.administrator(), EVERY_TEAM)
    running.cancel()

    assert refusal.info.reason == "GENERATION_NOT_FOUND"
    assert found.state in (pb.GENERATION_STATE_QUEUED, pb.GENERATION_STATE_RUNNING)
    assert found.usage.input_tokens == 2
    assert [entry.generation_id for entry in entries] == [generation_id]


async def test_a_stream_of_another_gateway_is_said_to_be_there_and_how_it_stands(real: World, second: World) -> None:
    tenant, stranger = await real.tenant(), await real.tenant("globex")
    named, nameless = stream(tenant, request_id=ID), stream(tenant)
    named_id = (await named.read()).admission.generation_id
    nameless_id = (await nameless.read()).admission.generation_id
    there = await on(second, tenant)

    by_request = await refused(watch(there, 1, request_id=ID))
    by_generation = await refused(watch(there, 1, generation_id=nameless_id))
    of_another = await refused(watch(await on(second, stranger), 1, generation_id=nameless_id))
    found = await get(there, request_id=ID)
    for each in (named, nameless):
        each.cancel()

    assert (by_request.code, by_request.info.reason) == (grpc.StatusCode.UNAVAILABLE, "GENERATION_ELSEWHERE")
    assert by_request.info.metadata["gateway"] == real.live.address
    assert by_generation.info.reason == "GENERATION_ELSEWHERE"
    assert by_generation.info.metadata["generation_id"] == nameless_id
    assert by_generation.info.metadata["state"] in ("QUEUED", "RUNNING")
    assert of_another.info.reason == "GENERATION_NOT_FOUND"
    assert found.generation_id == named_id


async def test_a_stream_that_ended_on_another_gateway_is_said_to_be_gone(
    real: World, second: World, runner: FakeRunner
) -> None:
    tenant = await real.tenant()
    runner._step_s = FAST_S
    generation_id = (await tenant.generate()).generation_id
    await real.usage_rows()

    gone = await refused(watch(await on(second, tenant), 1, generation_id=generation_id))

    assert (gone.code, gone.info.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REPLAY_EXPIRED")


@pytest.mark.parametrize("by", ["client", "stranger", "administrator", "team", "key"])
async def test_a_generation_can_be_ended_through_another_gateway(
    real: World, second: World, runner: FakeRunner, by: str
) -> None:
    tenant, stranger = await real.tenant(), await real.tenant("globex")
    running = stream(tenant)
    generation_id = (await running.read()).admission.generation_id
    if by in ("client", "stranger"):
        there = await on(second, tenant if by == "client" else stranger)
        told = (await there.cancel(generation_id, str(UUID(int=9)))).cancelled_count
    else:
        selection = {
            "administrator": {"generation_ids": [generation_id]},
            "team": {"team": TEAM},
            "key": {"api_key": f"organizations/-/teams/-/apiKeys/{tenant.public_id}"},
        }
        told = len(await cancel(await second.administrator(), **selection[by]))
    runner._step_s = FAST_S
    if by in ("administrator", "team", "key"):
        refusal = await refused(rest_of(running))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.ABORTED, "GENERATION_CANCELLED")
        assert told == 1
    else:
        end = (await rest_of(running))[-1].finish
        reason = pb.FINISH_REASON_CANCELLED if by == "client" else pb.FINISH_REASON_LENGTH
        assert (end.finish_reason, told) == (reason, by == "client")
    (row,) = await real.usage_rows()
    assert row["source"] == "ENGINE"


async def test_what_other_keys_run_on_another_gateway_goes_on(real: World, second: World, runner: FakeRunner) -> None:
    tenant = await real.tenant()
    colleague = await real.key(tenant.path, tenant.organization_id, tenant.team_id)
    running, others = stream(tenant), stream(colleague)
    for each in (running, others):
        await each.read()

    told = await cancel(
        await second.administrator(), api_key=f"organizations/-/teams/-/apiKeys/{tenant.public_id}", reason="loop"
    )
    runner._step_s = FAST_S

    assert len(told) == 1
    assert (await refused(rest_of(running))).info.reason == "GENERATION_CANCELLED"
    assert (await rest_of(others))[-1].finish.finish_reason == pb.FINISH_REASON_LENGTH
