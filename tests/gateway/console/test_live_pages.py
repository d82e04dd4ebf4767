"""Overview and queue: what they show is what the Admin API says, to those who may see it, for as long as they may."""

import re
from collections import abc
from contextlib import AsyncExitStack

import httpx2
import pytest
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1 import admin_pb2_grpc
from gateway.console import live
from gateway.console.live import KEEP_ALIVE_S
from gateway.store.enums import KeyScope, Role
from gateway.store.records import ApiKeySettings, ResourcePath
from gateway.store.roles import create_binding
from tests.gateway.console.busy import IDS, be_busy, forget_reading
from tests.gateway.console.visitors import Visitor, Visitors, texts
from tests.gateway.fake_engine import begun
from tests.gateway.world import CHANGE, Tenant, World, eventually


async def admin_of(world: World) -> tuple[admin_pb2_grpc.AdminServiceStub, Tenant]:
    caller = await world.administrator()
    return admin_pb2_grpc.AdminServiceStub(caller.channel), caller


async def manager(world: World, visitors: Visitors, tenant: Tenant, *scopes: KeyScope) -> Visitor:
    """Somebody who administrates the tenant's organization, as far as the scopes go."""
    settings = ApiKeySettings(scopes=(KeyScope.ADMIN_READ, *scopes))
    key = await world.key(ResourcePath("acme", "search"), tenant.organization_id, tenant.team_id, settings)
    await create_binding(world.database, CHANGE, ResourcePath("acme"), f"apiKeys/{key.public_id}", Role.ORG_ADMIN)
    await world.cache.refresh()
    return await visitors.signed_in(key.key)


@pytest.fixture
def busy(world: World, tenant: Tenant) -> Tenant:
    be_busy(world, tenant)
    return tenant


async def test_the_overview_says_what_the_status_says(world: World, visitors: Visitors, tenant: Tenant):
    be_busy(world, tenant, await world.tenant("globex"))
    ada = await visitors.administrator()
    stub, caller = await admin_of(world)

    page = await ada.get("/console/overview")
    status = await stub.GetSystemStatus(pb.GetSystemStatusRequest(), metadata=caller.metadata)

    told = texts(page)
    (engine,) = status.engines
    assert f"KV blocks on the device {engine.num_device_blocks} 0 in use 0.0 % 0 being copied" in told
    (cost,) = engine.scheduling_options.values()
    assert f"Policy {engine.scheduling_policy} (output_cost={cost}), preemption {engine.preemption_policy}" in told
    for team in engine.tenants:
        name = "/".join(team.team.split("/")[1::2])
        assert f"{name} {team.prefill_tokens:,} {team.output_tokens:,}" in told
        counts = " ".join(map(str, (team.running, team.waiting, team.paused, team.swapped)))
        assert re.search(rf"{name} {team.weight:g} .{{0,40}} {team.lead:g} {counts} ", told)
    assert f"Gap between teams {max(team.lead for team in engine.tenants):g}" in told


async def test_the_overview_tells_of_steps_that_found_no_memory(world: World, visitors: Visitors, busy: Tenant):
    ada = await visitors.administrator()
    assert "OUT OF MEMORY" not in texts(await ada.get("/console/overview"))

    world.engine.lost_steps, world.engine.requeues = 2, 1
    forget_reading(world)

    assert "OUT OF MEMORY in 2 steps since its start, 1 request was sent back" in texts(
        await ada.get("/console/overview")
    )


async def test_an_overview_of_nothing_says_so(world: World, visitors: Visitors):
    ada = await visitors.administrator()
    await world.engine.stop()
    forget_reading(world)
    page = await ada.get("/console/overview")

    assert page.status_code == 200
    assert "does not answer" in texts(page)
    assert "No engine answers" in texts(page)
    assert "No team has sent a request" in texts(page)


async def test_an_organization_sees_its_own_and_nobody_elses(world: World, visitors: Visitors, busy: Tenant):
    other = await world.tenant("globex")
    be_busy(world, busy, other)
    boss = await manager(world, visitors, busy)

    pages = [await boss.get(path) for path in ("/console/overview", "/console/queue", "/console/queue?state=running")]
    forbidden = [
        await boss.get(path)
        for path in (
            "/console/audit",
            f"/console/queue/{IDS[0]}",
            "/console/queue?team=globex/search",
            "/console/audit/1",
        )
    ]

    for page in pages:
        assert page.status_code == 200
        assert "acme/search" in texts(page)
        assert "globex" not in page.text
        assert "KV blocks on the device" not in page.text
    assert [page.status_code for page in forbidden] == [403] * 4


async def test_the_queue_says_what_the_engines_have(world: World, visitors: Visitors, busy: Tenant):
    ada = await visitors.administrator()

    everything = texts(await ada.get("/console/queue"))
    waiting = texts(await ada.get("/console/queue?team=acme&state=waiting"))
    nothing = texts(await ada.get("/console/queue?state=swapped"))

    assert "1 running, 1 waiting, in order of arrival" in everything
    assert f"{IDS[0]} acme/search default running 70 7 of 90 1.5 s 2.5 s" in everything
    assert IDS[0] not in waiting
    assert f"{IDS[1]} acme/search default waiting 70 0 of 90" in waiting
    assert "Nothing runs or waits" in nothing


async def test_why_a_request_waits(world: World, visitors: Visitors, busy: Tenant):
    ada = await visitors.administrator()
    page = await ada.get(f"/console/queue/{IDS[1]}")
    running = await ada.get(f"/console/queue/{IDS[0]}")
    unknown = await ada.get(f"/console/queue/{IDS[9]}")
    no_id = await ada.get("/console/queue/%3Cscript%3E")

    assert "Where this request stands" in texts(running)
    assert "Why this request waits" not in texts(running)
    assert "Why this request waits" in texts(page)
    assert "Others are served first." in texts(page)
    assert "1 before it" in texts(page)
    assert IDS[0] in texts(page)
    assert (unknown.status_code, no_id.status_code) == (404, 400)
    assert "<script>" not in no_id.text


async def test_a_question_that_makes_no_sense_is_told_beside_its_field(visitors: Visitors):
    ada = await visitors.administrator()
    pages = {
        field: await ada.get(f"/console/queue?{question}")
        for field, question in {"team": "team=globex!", "state": "state=odd"}.items()
    }
    deep, forged = await ada.get("/console/queue?team=a/b/c"), await ada.get("/console/queue?page=forged")

    for field, page in pages.items():
        assert f'id="{field}-problem"' in page.text
    assert {page.status_code for page in (*pages.values(), deep, forged)} == {400}


async def test_a_team_ends_what_is_its_own_after_it_was_asked(world: World, visitors: Visitors, busy: Tenant):
    world.engine.script = begun
    stream = busy.stream()
    await stream.read()
    boss = await manager(world, visitors, busy, KeyScope.ADMIN_OPERATE)

    asked = await boss.get("/console/queue/end?team=acme/search")
    assert world.live.num_live_requests == 1
    answer = await boss.send("/console/queue/end", {"team": "acme/search", "reason": "runaway <job>"})
    await eventually(lambda: not world.live.num_live_requests)
    notice = await boss.get(answer.headers["location"])
    foreign = await boss.send("/console/queue/end", {"team": "globex/search"})
    by_id = await boss.send("/console/queue/end", {"id": IDS[0]})

    assert "End everything that acme/search has running?" in texts(asked)
    assert (answer.status_code, answer.headers["location"]) == (303, "/console/queue")
    assert "One request was told to stop." in texts(notice)
    assert (foreign.status_code, by_id.status_code) == (403, 403)
    async with world.database.session() as session:
        found = await session.execute(text("SELECT after FROM audit_event WHERE action = 'generations.cancel'"))
        assert [row.after["reason"] for row in found] == ["runaway <job>"]


async def test_whoever_only_reads_ends_nothing(world: World, visitors: Visitors, busy: Tenant):
    world.engine.script = begun
    stream = busy.stream()
    await stream.read()
    reader = await manager(world, visitors, busy)

    queue = await reader.get("/console/queue?team=acme/search")
    asked = await reader.get("/console/queue/end?team=acme/search")
    answer = await reader.send("/console/queue/end", {"team": "acme/search"})

    assert "End all of" not in texts(queue)
    assert (asked.status_code, answer.status_code) == (403, 403)
    assert world.live.num_live_requests == 1
    stream.cancel()


async def test_what_is_to_end_is_said_once_and_why_in_one_line(visitors: Visitors):
    ada = await visitors.administrator()
    wrong = ({}, {"id": IDS[0], "team": "acme/search"}, {"id": IDS[0], "reason": "two\nlines"})

    for fields in wrong:
        answer = await ada.send("/console/queue/end", fields)
        assert answer.status_code == 400, fields
        assert 'role="alert"' in answer.text


async def events(response: httpx2.Response) -> abc.AsyncIterator[tuple[str, str]]:
    """(name, data) of each event."""
    name, data = "", []
    async for line in response.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data.append(line.removeprefix("data: "))
        elif not line and data:
            yield name, "\n".join(data)
            name, data = "", []


async def test_what_changes_comes_by_itself_and_ends_with_the_key(world: World, visitors: Visitors, busy: Tenant):
    other = await world.tenant("globex")
    be_busy(world, busy, other)
    boss = await manager(world, visitors, busy)
    stub, caller = await admin_of(world)
    keys = await stub.ListApiKeys(
        pb.ListApiKeysRequest(parent="organizations/acme/teams/search"), metadata=caller.metadata
    )
    told = []
    async with boss.client.stream("GET", "/console/live/overview") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        async for name, data in events(response):
            told.append(name)
            if name == "end":
                break
            assert 'id="overview-now"' in data
            assert "globex" not in data
            if len(told) == 1:
                world.engine.tenants[0].waiting = 4321
                continue
            if "4,321" in data:
                for key in keys.api_keys:
                    await stub.RevokeApiKey(pb.RevokeApiKeyRequest(name=key.name), metadata=caller.metadata)

    assert told[-1] == "end"
    assert len(told) <= 6


async def test_pages_that_are_left_leave_nothing_behind(
    world: World, visitors: Visitors, busy: Tenant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    ada = await visitors.administrator()
    async with AsyncExitStack() as open_pages:
        followed = []  # what nobody holds any more is closed
        for path in ("overview", "queue", "queue"):
            response = await open_pages.enter_async_context(ada.client.stream("GET", f"/console/live/{path}"))
            followed.append(events(response))
            assert (await anext(followed[-1]))[0] == "fragment"
        refused = await ada.get("/console/live/queue")
        assert refused.status_code == 503

    for _ in range(100):
        async with ada.client.stream("GET", "/console/live/queue") as response:
            if response.status_code == 200:
                assert (await anext(events(response)))[0] == "fragment"
                break
    else:
        raise AssertionError("the pages that were left are still counted")


def test_streams_are_never_silent_for_as_long_as_proxies_wait():
    assert KEEP_ALIVE_S <= 30
