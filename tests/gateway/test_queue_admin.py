"""Queues and generations as an administrator sees them, through a gateway in front of a scripted engine."""

import grpc
import pytest
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1 import admin_pb2_grpc
from evenflow.engine.v1 import engine_pb2
from gateway.store.enums import KeyScope
from gateway.store.records import ApiKeySettings
from tests.gateway.calls import rest_of
from tests.gateway.fake_engine import FakeCall
from tests.gateway.world import Tenant, World, eventually, refused

EVERY_TEAM = "organizations/-/teams/-"
FIRST, SECOND, THIRD, NOBODYS = (f"0190a000-0000-7000-8000-{number:012}" for number in range(4))


def admin_of(caller: Tenant):
    return admin_pb2_grpc.AdminServiceStub(caller.channel)


async def running(call: FakeCall) -> None:
    await call.accept()
    await call.admit()
    await call.emit(b"ab")
    await call.until_cancelled()


def waiting_in(world: World, *tenants: Tenant) -> None:
    """The engine says that each of them has a request that waits."""
    world.engine.requests = [
        engine_pb2.RequestSummary(
            generation_id=generation_id,
            path=[
                engine_pb2.WeightedNode(id=str(tenant.organization_id), weight=1),
                engine_pb2.WeightedNode(id=str(tenant.team_id), weight=1),
            ],
            priority_class="default",
            state="waiting",
            prompt_tokens=7,
            max_output_tokens=9,
            waited_ns=1_500_000_000,
            age_ns=1_500_000_000,
        )
        for generation_id, tenant in zip((FIRST, SECOND, THIRD), tenants, strict=False)
    ]


async def queue(caller: Tenant, parent: str = EVERY_TEAM, **fields) -> list[pb.QueueEntry]:
    entries, request = [], pb.ListQueueRequest(parent=parent, **fields)
    while True:
        page = await admin_of(caller).ListQueue(request, metadata=caller.metadata)
        entries += page.entries
        if not page.next_page_token:
            return entries
        request.page_token = page.next_page_token


async def test_the_queue_names_tenants_and_comes_in_pages(world: World, tenant: Tenant) -> None:
    other = await world.tenant("globex")
    waiting_in(world, tenant, other, tenant)
    admin = await world.administrator()

    entries = await queue(admin, page_size=1)

    assert [entry.generation_id for entry in entries] == [FIRST, SECOND, THIRD]
    assert [entry.team for entry in entries[:2]] == [
        "organizations/acme/teams/search",
        "organizations/globex/teams/search",
    ]
    assert entries[0].engine == world.engine.address
    assert entries[0].wait.ToMilliseconds() == 1500
    assert [e.generation_id for e in await queue(admin, "organizations/globex/teams/-")] == [SECOND]
    assert await queue(admin, state="running") == []
    admin_call = admin_of(admin).ListQueue(pb.ListQueueRequest(parent=EVERY_TEAM, state="odd"), metadata=admin.metadata)
    assert (await refused(admin_call)).fields == ["state"]


async def test_an_engine_that_does_not_answer_is_named(world: World) -> None:
    admin = await world.administrator()
    await world.engine.stop()
    page = await admin_of(admin).ListQueue(pb.ListQueueRequest(parent=EVERY_TEAM), metadata=admin.metadata)

    assert list(page.unreachable) == [world.engine.address]


async def test_a_team_sees_its_own_requests_only(world: World, tenant: Tenant) -> None:
    other = await world.tenant("globex")
    waiting_in(world, tenant, other)
    reader = await world.key(
        tenant.path, tenant.organization_id, tenant.team_id, ApiKeySettings(scopes=(KeyScope.ADMIN_READ,))
    )
    refusal = await refused(queue(reader, "organizations/globex/teams/search"))
    explained = await refused(
        admin_of(reader).ExplainRequest(pb.ExplainRequestRequest(generation_id=FIRST), metadata=reader.metadata)
    )

    assert refusal.code is grpc.StatusCode.PERMISSION_DENIED
    assert explained.code is grpc.StatusCode.PERMISSION_DENIED


async def test_why_a_request_waits(world: World, tenant: Tenant) -> None:
    waiting_in(world, tenant, tenant)
    admin = await world.administrator()

    told = await admin_of(admin).ExplainRequest(pb.ExplainRequestRequest(generation_id=SECOND), metadata=admin.metadata)
    unknown = admin_of(admin).ExplainRequest(pb.ExplainRequestRequest(generation_id=NOBODYS), metadata=admin.metadata)

    assert (told.position, told.blocked_by) == (1, "order")
    assert [entry.generation_id for entry in told.ahead] == [FIRST]
    assert told.request.team == "organizations/acme/teams/search"
    assert (await refused(unknown)).info.reason == "GENERATION_NOT_FOUND"
    await world.engine.stop()
    lost = admin_of(admin).ExplainRequest(pb.ExplainRequestRequest(generation_id=SECOND), metadata=admin.metadata)
    assert (await refused(lost)).info.reason == "NO_ENGINE"


async def cancel(admin: Tenant, **fields) -> list[str]:
    request = pb.CancelGenerationsRequest(**fields)
    return list((await admin_of(admin).CancelGenerations(request, metadata=admin.metadata)).generation_ids)


async def start(tenant: Tenant):
    stream = tenant.stream()
    return stream, (await stream.read()).admission.generation_id


@pytest.mark.parametrize("by", ["id", "key", "team"])
async def test_what_is_named_ends_and_the_rest_goes_on(world: World, tenant: Tenant, by: str) -> None:
    world.engine.script = running
    other = await world.tenant("globex")
    colleague = await world.key(tenant.path, tenant.organization_id, tenant.team_id)
    admin = await world.administrator()
    streams = [await start(each) for each in (tenant, colleague, other)]
    for stream, _ in streams:
        await stream.read()
    ids = [generation_id for _, generation_id in streams]
    named = {
        "id": ({"generation_ids": [ids[0], NOBODYS]}, ids[:1]),
        "key": ({"api_key": f"organizations/-/teams/-/apiKeys/{tenant.public_id}"}, ids[:1]),
        "team": ({"team": "organizations/acme/teams/search"}, ids[:2]),
    }
    fields, expected = named[by]

    would = await cancel(admin, **fields, validate_only=True)
    assert world.live.num_live_requests == 3
    told = await cancel(admin, **fields, reason="maintenance")
    again = await cancel(admin, **fields)

    assert would == told == expected
    assert again == []
    for stream, generation_id in streams:
        if generation_id in expected:
            refusal = await refused(rest_of(stream))
            assert (refusal.code, refusal.info.reason) == (grpc.StatusCode.ABORTED, "GENERATION_CANCELLED")
    assert world.live.num_live_requests == 3 - len(expected)
    for stream, _ in streams:
        stream.cancel()
    rows = await world.usage_rows()
    assert {row["billed_tokens"] for row in rows} == {4}
    async with world.database.session() as session:
        found = await session.execute(
            text("SELECT after FROM audit_event WHERE action = 'generations.cancel' ORDER BY id")
        )
    assert [row.after["generation_ids"] for row in found] == [expected, []]


@pytest.mark.parametrize("text", ["", "x", "g1\0", "x" * 2**20])
async def test_what_is_no_id_is_neither_explained_nor_ended(shared_world: World, text: str) -> None:
    admin = await shared_world.administrator()
    explained = admin_of(admin).ExplainRequest(pb.ExplainRequestRequest(generation_id=text), metadata=admin.metadata)

    assert (await refused(explained)).fields == ["generation_id"]
    assert (await refused(cancel(admin, generation_ids=[NOBODYS, text]))).fields == ["generation_ids[1]"]


@pytest.mark.parametrize("reason", ["\0", "two\nlines", "x" * 501])
async def test_a_reason_is_one_line(shared_world: World, reason: str) -> None:
    admin = await shared_world.administrator()

    assert (await refused(cancel(admin, generation_ids=[NOBODYS], reason=reason))).fields == ["reason"]


async def test_what_is_to_end_must_be_said_once(world: World, tenant: Tenant) -> None:
    admin = await world.administrator()
    nothing = await refused(cancel(admin))
    twice = await refused(cancel(admin, generation_ids=[NOBODYS], team="organizations/acme/teams/search"))
    unknown = await refused(cancel(admin, team="organizations/acme/teams/none"))
    tenants_own = await refused(cancel(tenant, generation_ids=[NOBODYS]))

    assert (nothing.code, twice.code) == (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INVALID_ARGUMENT)
    assert unknown.code is grpc.StatusCode.NOT_FOUND
    assert tenants_own.code is grpc.StatusCode.PERMISSION_DENIED
    await eventually(lambda: not world.live.num_live_requests)
