"""Several choices, and several prompts, against limits: all of them are held or none, and what is told is of all."""

import asyncio

import httpx2
import openai
import pytest
from sqlalchemy import text

from gateway import admission
from gateway.quota_terms import Mode
from gateway.store.enums import Dimension
from gateway.store.records import QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.gateway.fake_engine import MODEL, hello, stalled
from tests.gateway.http.clients import Clients
from tests.gateway.world import Tenant, World, eventually

HOUR_MS = 3_600_000  # nothing refills while a test runs, however slow the machine is
FOUR_REQUESTS = QuotaLimit(Dimension.REQUESTS, 4, HOUR_MS, 4)
QUARTER_S = 900  # until one of four requests an hour is back
THREE_SLOTS = QuotaLimit(Dimension.CONCURRENCY, 3, None, None)
HI = [{"role": "user", "content": "hi"}]


def chats(number: int) -> tuple[str, dict[str, object]]:
    return "/v1/chat/completions", {"model": MODEL, "messages": HI, "max_tokens": 8, "n": number}


def prompts(number: int) -> tuple[str, dict[str, object]]:
    return "/v1/completions", {"model": MODEL, "prompt": ["hi"] * number, "max_tokens": 8}


async def post(http: httpx2.AsyncClient, asked: tuple[str, dict[str, object]]) -> httpx2.Response:
    path, body = asked
    return await http.post(path, json=body)


async def num_denials(world: World, tenant: Tenant) -> int:
    await world.denials_written()
    async with world.database.session() as session:
        asked = text("SELECT count(*) FROM denial_event WHERE team_id = :team_id")
        return await session.scalar(asked, {"team_id": tenant.team_id})


@pytest.mark.parametrize("asked", [chats, prompts])
@pytest.mark.parametrize("limit", [FOUR_REQUESTS, QuotaLimit(Dimension.CONCURRENCY, 4, None, None)])
async def test_more_choices_than_a_limit_ever_takes_are_told_that_waiting_does_not_help(
    shared_world: World, shared_clients: Clients, asked, limit: QuotaLimit
) -> None:
    tenant = await shared_world.tenant(limits=(limit,))
    response = await post(shared_clients.http(tenant), asked(5))

    error = response.json()["error"]
    assert (response.status_code, error["reason"]) == (400, "REQUEST_EXCEEDS_LIMIT")
    assert [violation["dimension"] for violation in error["violations"]] == [limit.dimension.value.lower()]
    assert "retry-after" not in response.headers
    assert (shared_world.book.num_reservations, shared_world.engine.calls, await num_denials(shared_world, tenant)) == (
        0,
        [],
        1,
    )


@pytest.mark.parametrize("asked", [chats, prompts])
async def test_choices_are_told_how_long_all_of_them_wait(shared_world: World, shared_clients: Clients, asked) -> None:
    tenant = await shared_world.tenant(limits=(FOUR_REQUESTS,))
    http = shared_clients.http(tenant)
    assert (await post(http, asked(3))).status_code == 200
    refused = await post(http, asked(3))

    assert (refused.status_code, refused.json()["error"]["reason"]) == (429, "RATE_LIMITED")
    assert QUARTER_S < int(refused.headers["retry-after"]) <= 2 * QUARTER_S
    assert refused.headers["x-ratelimit-remaining-requests"] == "1"
    assert await num_denials(shared_world, tenant) == 1
    assert (await post(http, asked(1))).status_code == 200


async def test_choices_wait_for_as_many_slots_as_they_are(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant(limits=(THREE_SLOTS,))
    http = shared_clients.http(tenant)
    shared_world.engine.script = stalled
    running = asyncio.create_task(post(http, chats(1)))
    await shared_world.engine.call()
    shared_world.engine.script = hello
    refused = await post(http, chats(3))

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert shared_world.book.num_reservations == 1
    assert (await post(http, chats(2))).status_code == 200
    running.cancel()
    await asyncio.wait([running])
    await eventually(lambda: shared_world.book.num_reservations == 0)
    assert (await post(http, chats(3))).status_code == 200


async def test_choices_over_limits_that_lend_may_borrow(world: World, sdk: openai.AsyncOpenAI, tenant: Tenant) -> None:
    one = QuotaLimit(Dimension.REQUESTS, 1, HOUR_MS, 1)
    team = ResourcePath(tenant.path.organization, tenant.path.team)
    await world.policy(team, QuotaPolicySettings(limits=(one,), mode=Mode.BORROW))
    chat = await sdk.chat.completions.create(model=MODEL, messages=HI, n=2)

    assert len(chat.choices) == 2
    assert await num_denials(world, tenant) == 0


async def test_limits_in_shadow_refuse_no_choices(shared_world: World, shared_clients: Clients) -> None:
    tenant = await shared_world.tenant()
    team = ResourcePath(tenant.path.organization, tenant.path.team)
    await shared_world.policy(team, QuotaPolicySettings(limits=(THREE_SLOTS, FOUR_REQUESTS), mode=Mode.SHADOW))

    assert (await post(shared_clients.http(tenant), chats(5))).status_code == 200


async def test_what_others_take_between_the_look_and_the_reservations_leaves_nothing_held(
    shared_world: World, shared_clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await shared_world.tenant(limits=(FOUR_REQUESTS,))
    http = shared_clients.http(tenant)

    async def sees_nothing(*_: object) -> tuple[()]:
        return ()

    monkeypatch.setattr(admission, "find_violations", sees_nothing)
    refused = await post(http, chats(5))
    monkeypatch.undo()

    assert (refused.status_code, shared_world.book.num_reservations, shared_world.engine.calls) == (429, 0, [])
    assert (await post(http, chats(4))).status_code == 200
