"""A client's request id: however often and wherever a request is sent, it runs once and is billed once."""

import asyncio

import grpc
import pytest
from sqlalchemy import text

from evenflow.engine.v1 import engine_pb2
from evenflow.inference.v1 import generation_pb2 as pb
from gateway.servicer import live
from gateway.store.enums import StoreLossAction
from gateway.store.errors import DatabaseUnavailableError
from gateway.store.generations import REMEMBERED, purge_requests
from gateway.store.records import QuotaPolicySettings, ResourcePath
from tests.gateway.calls import rest_of, text_of
from tests.gateway.fake_engine import END_TOKEN, FakeCall, begun, hello
from tests.gateway.world import Tenant, World, eventually, refused

ID = "8f1b4f2e-3f3c-4e0a-9d4e-0b6f8e6a1c11"


class Gate:
    """A script whose output stops in the middle until the gate is opened."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, call: FakeCall) -> None:
        await call.accept()
        await call.admit()
        await call.emit(b"hel")
        await self.opened.wait()
        await call.emit(b"lo")
        await call.emit([END_TOKEN])
        await call.finish(engine_pb2.FINISH_REASON_STOP)


async def forget_ended(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute has passed for what has ended here."""
    await world.settled()
    await eventually(lambda: not world.live._request_ids.num_waiting)
    ended = world.live._live._ended
    monkeypatch.setattr(ended, "_clock_s", lambda clock=ended._clock_s: clock() + live.KEPT_S)


async def rows(world: World) -> list[dict[str, object]]:
    await eventually(lambda: not world.live._request_ids.num_waiting)
    async with world.database.session() as session:
        found = await session.execute(text("SELECT * FROM generation_request"))
        return [dict(row) for row in found.mappings()]


async def test_a_repeated_stream_joins_the_running_one(shared_world: World, own_tenant: Tenant) -> None:
    gate = shared_world.engine.script = Gate()
    first = own_tenant.stream(request_id=ID)
    begin = [await first.read(), await first.read()]
    second = own_tenant.stream(request_id=ID)
    joined = [await second.read(), await second.read()]
    gate.opened.set()
    one = [*begin, *await rest_of(first)]
    two = [*joined, *await rest_of(second)]

    assert (begin[0].admission.replayed, joined[0].admission.replayed) == (False, True)
    assert one[1:] == two[1:]
    assert begin[0].admission.generation_id == joined[0].admission.generation_id
    assert [message.sequence for message in one] == list(range(1, len(one) + 1))
    assert text_of(one) == "hello"
    assert len(shared_world.engine.calls) == len(await shared_world.usage_rows(own_tenant)) == 1


async def test_a_unary_call_joins_a_stream_and_a_stream_a_unary_call(shared_world: World, own_tenant: Tenant) -> None:
    gate = shared_world.engine.script = Gate()
    stream = own_tenant.stream(request_id=ID)
    await stream.read()
    unary = asyncio.ensure_future(own_tenant.generate(request_id=ID))
    await eventually(lambda: next(iter(shared_world.live._live)).journal.num_readers == 2)
    gate.opened.set()
    answer = await unary
    rest = await rest_of(stream)

    assert answer.outputs[0].text == text_of(rest) == "hello"
    assert answer.replayed
    assert answer.usage == rest[-1].finish.usage
    late = [message async for message in own_tenant.stream(request_id=ID)]
    assert text_of(late) == "hello"
    assert len(shared_world.engine.calls) == 1


async def test_the_one_that_leaves_does_not_end_it_for_the_other(shared_world: World, own_tenant: Tenant) -> None:
    gate = shared_world.engine.script = Gate()
    first, second = own_tenant.stream(request_id=ID), own_tenant.stream(request_id=ID)
    for stream in (first, second):
        await stream.read()
        await stream.read()
    first.cancel()
    generation = next(iter(shared_world.live._live))
    await eventually(lambda: generation.journal.num_readers == 1)
    gate.opened.set()

    assert text_of(await rest_of(second)) == "hello"[3:]


async def test_two_hundred_at_once_run_once(shared_world: World, own_tenant: Tenant) -> None:
    answers = await asyncio.gather(*(own_tenant.generate(request_id=ID) for _ in range(200)))

    assert {answer.outputs[0].text for answer in answers} == {"hello"}
    assert len({answer.generation_id for answer in answers}) == 1
    assert sum(not answer.replayed for answer in answers) == 1
    assert len(shared_world.engine.calls) == len(await shared_world.usage_rows(own_tenant)) == 1


async def test_another_request_under_the_same_id_is_refused_running_or_finished(
    shared_world: World, own_tenant: Tenant
) -> None:
    gate = shared_world.engine.script = Gate()
    running = own_tenant.stream(request_id=ID)
    await running.read()
    while_running = await refused(own_tenant.stream(request_id=ID, text="something else"))
    gate.opened.set()
    await rest_of(running)
    when_finished = await refused(own_tenant.generate(request_id=ID, stopping={"max_output_tokens": 7}))

    for refusal in (while_running, when_finished):
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "REQUEST_ID_REUSED")
    assert len(shared_world.engine.calls) == 1


async def test_an_id_is_the_teams_own(world: World, tenant: Tenant) -> None:
    other = await world.tenant("globex")
    mine, theirs = await tenant.generate(request_id=ID), await other.generate(request_id=ID, text="else")

    assert mine.generation_id != theirs.generation_id
    assert len(await rows(world)) == 2


async def test_a_finished_one_is_answered_from_the_ledger_when_its_output_is_gone(
    shared_world: World, own_tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await own_tenant.generate(request_id=ID)
    await forget_ended(shared_world, monkeypatch)

    again = await own_tenant.generate(request_id=ID)
    admission, finish = [message async for message in own_tenant.stream(request_id=ID)]
    other = await refused(own_tenant.generate(request_id=ID, text="something else"))

    assert again.replayed
    assert not again.outputs
    assert again.usage == first.usage == finish.finish.usage
    assert (again.generation_id, again.model) == (first.generation_id, first.model)
    assert admission.admission.replayed
    assert again.finish_reason == finish.finish.finish_reason == pb.FINISH_REASON_STOP
    assert other.info.reason == "REQUEST_ID_REUSED"
    assert len(await shared_world.usage_rows(own_tenant)) == 1


async def test_an_end_that_cost_nothing_frees_the_id(world: World, tenant: Tenant) -> None:
    async def refuse(call: FakeCall) -> None:
        await call.refuse(grpc.StatusCode.UNAVAILABLE, "NOT_READY")

    world.engine.script = refuse
    assert (await refused(tenant.generate(request_id=ID))).info.reason == "NO_ENGINE"
    await world.serving()
    assert await rows(world) == []
    world.engine.script = hello

    answer = await tenant.generate(request_id=ID)

    assert answer.outputs[0].text == "hello"
    assert not answer.replayed


async def test_a_request_that_is_turned_away_at_the_door_frees_the_id(world: World, tenant: Tenant) -> None:
    assert (await refused(tenant.generate(request_id=ID, model="no-such-model"))).info.reason == "MODEL_NOT_FOUND"
    assert await rows(world) == []
    assert (await tenant.generate(request_id=ID)).outputs[0].text == "hello"


async def test_requests_without_an_id_write_nothing(world: World, tenant: Tenant) -> None:
    await tenant.generate()
    assert await rows(world) == []


async def test_what_has_expired_is_purged_unless_it_runs(world: World, tenant: Tenant) -> None:
    await tenant.generate(request_id=ID)
    world.engine.script = begun
    running = tenant.stream(request_id=ID.replace("8f", "9f"))
    await running.read()
    await eventually(lambda: not world.live._request_ids.num_waiting)
    async with world.database.session() as session:
        days = REMEMBERED.days + 1
        await session.execute(text(f"UPDATE generation_request SET expires_at = expires_at - interval '{days} days'"))

    assert await purge_requests(world.database) == 1
    assert len(await rows(world)) == 1
    running.cancel()


async def test_running_ones_say_that_they_still_run(world: World, tenant: Tenant) -> None:
    world.engine.script = begun
    running = tenant.stream(request_id=ID)
    await running.read()
    (before,) = await rows(world)
    await world.live._request_ids._keep()
    (after,) = await rows(world)
    running.cancel()

    assert after["seen_at"] > before["seen_at"]
    assert after["finished_at"] is None


@pytest.mark.parametrize("action", list(StoreLossAction))
async def test_without_the_database_the_team_decides(
    shared_world: World, own_tenant: Tenant, monkeypatch: pytest.MonkeyPatch, action: StoreLossAction
) -> None:
    team = ResourcePath(own_tenant.path.organization, own_tenant.path.team)
    await shared_world.policy(team, QuotaPolicySettings(on_store_loss=action))

    async def lost(*_: object) -> None:
        raise DatabaseUnavailableError("the server is gone")

    monkeypatch.setattr("gateway.servicer.request_ids.claim_request", lost)
    if action is StoreLossAction.FAIL_CLOSED:
        refusal = await refused(own_tenant.generate(request_id=ID))
        assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE")
        assert not shared_world.engine.calls
        assert (await own_tenant.generate()).outputs[0].text == "hello"
        return
    answers = [await own_tenant.generate(request_id=ID) for _ in range(2)]
    assert [answer.replayed for answer in answers] == [False, True]
    assert len(shared_world.engine.calls) == 1


async def raising(error: BaseException) -> None:
    raise error


async def on(world: World, tenant: Tenant) -> Tenant:
    """The same tenant, asking another gateway."""
    await world.cache.refresh()
    fields = {name: getattr(tenant, name) for name in tenant.__dataclass_fields__}
    return Tenant(**fields | {"channel": world.channel()})
