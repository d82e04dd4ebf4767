"""What the engines saw, inside a gateway: dead gateways' requests are billed, its own are left to itself."""

import asyncio
import time
from collections import abc

import pytest
from sqlalchemy import text
from uuid_utils.compat import uuid7

from evenflow.engine.v1 import engine_pb2 as pb
from gateway import witness as witness_module
from gateway.engine_client import WitnessedUsage, wire
from gateway.witness import UsageTag
from tests.gateway.fake_engine import FakeCall, FakeEngine
from tests.gateway.world import Tenant, World, eventually
from tests.ledger.events import KEY, ORGANIZATION, TEAM


def told(ledger_id: str, sequence: int = 1, **fields: object) -> pb.StreamUsageResponse:
    tag = UsageTag(ledger_id, ORGANIZATION, TEAM, KEY, "bytes", "default", 20, 30, 4, "r1", {"cost-center": "42"})
    usage = pb.StreamUsageResponse(
        sequence=sequence,
        generation_id=str(uuid7()),
        usage_tag=tag.encode(),
        reason=pb.FINISH_REASON_CANCELLED,
        usage=pb.Usage(prompt_tokens=20, output_tokens=7, cached_prompt_tokens=5),
        timings=pb.Timings(queue_ns=1, prefill_ns=2, decode_ns=3),
        scheduled=True,
        finished_unix_ns=time.time_ns(),
    )
    usage.MergeFrom(pb.StreamUsageResponse(**fields))
    return usage


async def test_a_dead_gateways_request_is_billed_by_the_engines_word(closed_world: World, engine: FakeEngine) -> None:
    plain = told("dead")
    stopped = told("dead", 2, kept_output_tokens=5, reason=pb.FINISH_REASON_LENGTH)
    waiting = told("dead", 3)
    waiting.scheduled = False
    waiting.usage.Clear()
    engine.usages = [plain, stopped, waiting]
    await closed_world.open()
    await eventually(lambda: 3 in engine.acknowledged)
    rows = {str(row["generation_id"]): row for row in await closed_world.usage_rows()}

    names = ("input_tokens", "output_tokens", "billed_tokens", "discarded_tokens", "finish_reason", "source")
    billed = {generation_id: tuple(row[name] for name in names) for generation_id, row in rows.items()}
    assert billed == {
        plain.generation_id: (20, 7, 27, 0, "CANCELLED", "ENGINE"),
        stopped.generation_id: (20, 5, 25, 2, "STOP", "ENGINE"),
        waiting.generation_id: (0, 0, 0, 0, "CANCELLED", "ENGINE"),
    }
    row = rows[plain.generation_id]
    assert (row["request_id"], row["reserved_tokens"], row["labels"]) == ("r1", 30, {"cost-center": "42"})
    assert (row["organization_id"], row["team_id"], row["key_id"]) == (ORGANIZATION, TEAM, KEY)


async def test_what_this_gateway_recorded_itself_is_acknowledged_and_not_recorded_again(
    world: World, tenant: Tenant, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(witness_module, "RETRY_S", 0.01)
    answer = await tenant.generate()
    (row,) = await world.usage_rows()
    start = engine.calls[0].start
    usage = told(world.ledger.id)
    usage.generation_id, usage.usage_tag = start.generation_id, start.usage_tag
    engine.usages = [usage]
    await engine.stop()
    await engine.start()
    await eventually(lambda: 1 in engine.acknowledged)

    assert start.ledger_id == world.ledger.id == engine.ledger_ids[-1]
    assert await world.usage_rows() == [row]
    assert world.ledger.num_duplicates == 0
    assert str(row["generation_id"]) == answer.generation_id


async def test_a_request_that_still_runs_here_is_acknowledged_after_its_end_and_holds_up_no_dead_one(
    world: World, tenant: Tenant, engine: FakeEngine
) -> None:
    may_end, live = asyncio.Event(), world.live._live

    async def held(call: FakeCall) -> None:
        await call.accept()
        await may_end.wait()
        await call.finish()

    engine.script = held
    calling = asyncio.create_task(_ended(tenant))
    call = await engine.call()
    await eventually(lambda: live.is_live(call.start.generation_id))
    own, dead = told(world.ledger.id), told("dead", 2)
    own.generation_id, own.usage_tag = call.start.generation_id, call.start.usage_tag
    witness, usages = world.live._witness, UsageStream(own, dead)
    told_to = asyncio.create_task(witness._listen(usages))
    await until_in_table(world, dead.generation_id)
    before_its_end = list(usages.acknowledged)
    may_end.set()
    await calling
    await eventually(lambda: usages.acknowledged)
    told_to.cancel()
    await asyncio.wait((told_to,))

    assert before_its_end == []
    assert usages.acknowledged == [2]
    assert len(await world.usage_rows()) == 2


async def until_in_table(world: World, generation_id: str) -> None:
    statement = text("SELECT count(*) FROM usage_event WHERE generation_id = :id")
    num_rows = 0
    while not num_rows:
        async with world.database.session() as session:
            num_rows = (await session.execute(statement, {"id": generation_id})).scalar_one()


class UsageStream:
    """What one engine tells, and then nothing more."""

    def __init__(self, *usages: pb.StreamUsageResponse) -> None:
        self._usages = usages
        self.acknowledged: list[int] = []

    async def told(self) -> abc.AsyncGenerator[WitnessedUsage, None]:
        for usage in self._usages:
            yield wire.witnessed_from_pb(usage)
        await asyncio.Event().wait()

    def acknowledge(self, sequence: int) -> None:
        self.acknowledged.append(sequence)


async def _ended(tenant: Tenant) -> None:
    await tenant.generate()


async def test_usage_of_nobody_is_said_and_holds_up_nothing(closed_world: World, engine: FakeEngine) -> None:
    engine.usages = [told("dead", usage_tag=b"no tag"), told("dead", 2)]
    engine.usages[0].usage_tag = b"no tag"
    await closed_world.open()
    await eventually(lambda: 2 in engine.acknowledged)

    assert [str(row["generation_id"]) for row in await closed_world.usage_rows()] == [engine.usages[1].generation_id]


async def test_the_tag_names_the_tenant_and_holds_no_prompt(world: World, tenant: Tenant, engine: FakeEngine) -> None:
    await tenant.generate(text="the secret of the prompt", admission={"labels": {"cost-center": "42"}})
    tag = UsageTag.decode(engine.calls[0].start.usage_tag)

    assert (tag.organization_id, tag.team_id, tag.key_id) == (tenant.organization_id, tenant.team_id, tenant.key_id)
    assert tag.num_input_tokens == 24
    assert tag.labels == {"cost-center": "42"}
    assert b"secret" not in engine.calls[0].start.usage_tag
