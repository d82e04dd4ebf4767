"""The preview of a policy: recorded traffic through the real simulator, told as it runs, with what it cannot tell."""

import asyncio
from collections import abc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from uuid_utils.compat import uuid7

from gateway.admin.what_if import engine as what_if_engine
from gateway.store.denials import DenialEvent, insert_denials
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent, insert_usage
from tests.gateway.console.visitors import Visitor, Visitors, hidden_fields, texts
from tests.gateway.world import Tenant, World, eventually

TEAM = "/console/tenants/acme/search/policy"
SECOND_NS = 1_000_000_000
TEN_REQUESTS = {
    "limits-0-dimension": "REQUESTS",
    "limits-0-amount": "10",
    "limits-0-burst": "10",
    "limits-0-period": "1h",
}


async def served(world: World, tenant: Tenant, count: int, every_s: float = 1.0) -> None:
    """Requests of a hundred tokens in and fifty out, from ten minutes ago on."""
    began = datetime.now(UTC) - timedelta(minutes=10)
    moments = [began + timedelta(seconds=index * every_s) for index in range(count)]
    await insert_usage(
        world.database,
        [
            UsageEvent(
                generation_id=UUID(int=(round(moment.timestamp() * 1000) << 80) | (uuid7().int & ((1 << 80) - 1))),
                organization_id=tenant.organization_id,
                team_id=tenant.team_id,
                key_id=tenant.key_id,
                model="m",
                priority_class="default",
                input_tokens=100,
                output_tokens=50,
                billed_tokens=150,
                reserved_tokens=200,
                finish_reason="STOP",
                source=UsageSource.ENGINE,
                finished_at=moment + timedelta(seconds=1),
                policy_revision=1,
                decode_ns=SECOND_NS,
            )
            for moment in moments
        ],
    )


async def was_refused(world: World, tenant: Tenant) -> None:
    event = DenialEvent(
        id=uuid7(),
        denied_at=datetime.now(UTC) - timedelta(minutes=9),
        organization_id=tenant.organization_id,
        team_id=tenant.team_id,
        key_id=tenant.key_id,
        model="m",
        priority_class="default",
        input_tokens=100,
        max_output_tokens=100,
        reserved_tokens=200,
        reason="RATE_LIMITED",
        is_shadow=False,
        nodes=("organizations/acme/teams/search",),
        dimensions=("REQUESTS",),
        waits_ms=(1000,),
        policy_revision=1,
    )
    await insert_denials(world.database, [event])


async def form(visitor: Visitor) -> dict[str, str]:
    return hidden_fields(await visitor.get(TEAM)) | {"action": "preview", "weight": "1", "window": "1h"}


async def test_a_time_that_is_no_choice_is_not_replayed(world: World, tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()

    page = await ada.send(TEAM, await form(ada) | TEN_REQUESTS | {"window": "2h"})

    assert page.status_code == 400
    assert 'id="window-problem"' in page.text


async def test_recorded_traffic_is_replayed_by_the_real_simulator(
    world: World, tenant: Tenant, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
):
    # Beside other tests on the same cores the lowest priority would mean minutes.
    monkeypatch.setattr(what_if_engine, "NICE", ())
    await served(world, tenant, 40)
    await was_refused(world, tenant)
    ada = await visitors.administrator()
    revision = world.cache.current.revision

    page = await ada.send(TEAM, await form(ada) | TEN_REQUESTS, timeout=120)

    told = texts(page)
    assert page.status_code == 200
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert "Limit: requests none 10 per hour, 10 at once" in told
    assert "40 requests and 1 refusal. Presenting them under the policies of now" in told
    assert "Who would have noticed" in told
    assert "31 more refused" in told
    assert "31 refused by requests of acme/search" in told
    assert 'id="preview-waits"' in page.text
    assert 'id="preview-refusals"' in page.text
    assert (await world.cache.refresh()).revision == revision
    saved = await ada.send(TEAM, hidden_fields(page) | {"action": "save"})
    assert saved.status_code == 303, texts(saved)
    (team,) = (await world.cache.refresh()).teams.values()
    assert [limit.amount for limit in team.policy.limits] == [10]


async def test_without_traffic_there_is_nothing_to_tell(tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()

    page = await ada.send(TEAM, await form(ada) | TEN_REQUESTS)

    assert page.status_code == 200
    assert "there is nothing to replay" in texts(page)
    assert "preview-waits" not in page.text


async def test_mistakes_are_told_before_anything_is_replayed(tenant: Tenant, visitors: Visitors):
    ada = await visitors.administrator()

    page = await ada.send(TEAM, await form(ada) | {"weight": "0"})

    assert page.status_code == 400
    assert "must be from" in texts(page)


async def test_a_simulator_that_takes_too_long_is_ended_and_said_so(
    world: World, tenant: Tenant, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
):
    await served(world, tenant, 3)
    monkeypatch.setattr(what_if_engine, "EVENFLOW", ("sh", "-c", "sleep 600"))
    monkeypatch.setattr(what_if_engine, "TIME_LIMIT_S", 0.2)
    ada = await visitors.administrator()

    page = await ada.send(TEAM, await form(ada) | TEN_REQUESTS)

    assert "There is no result." in texts(page)
    assert "choose a shorter window" in texts(page)
    assert 'value="save"' in page.text


async def read_until(arriving: abc.AsyncIterator[str], wanted: str) -> str:
    """What of a page had arrived when `wanted` was in it. Whoever drops `arriving` leaves the page."""
    seen = ""
    async for text in arriving:
        seen += text
        if wanted in seen:
            return seen
    raise AssertionError(f"the page ended without {wanted!r}: {seen[-2000:]}")


async def test_the_page_tells_how_far_it_is_and_ends_the_simulator_when_its_reader_leaves(
    world: World, tenant: Tenant, visitors: Visitors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    await served(world, tenant, 3)
    pid_file = tmp_path / "pid"
    monkeypatch.setattr(what_if_engine, "EVENFLOW", ("sh", "-c", f"echo $$ > {pid_file}; sleep 600"))
    monkeypatch.setattr(what_if_engine, "NICE", ())
    monkeypatch.setattr("gateway.console.policies.preview.TICK_S", 0.05)
    ada = await visitors.administrator()
    sent = {"data": await form(ada) | TEN_REQUESTS, "headers": {"origin": ada.origin}}

    async with ada.client.stream("POST", TEAM, **sent) as first:
        arriving = first.aiter_text()
        seen = await read_until(arriving, "s at most · ")
        await eventually(lambda: pid_file.exists() and pid_file.read_text().strip())
        async with ada.client.stream("POST", TEAM, **sent) as second:
            await read_until(second.aiter_text(), "Waiting until another simulation has ended")
        assert psutil.pid_exists(int(pid_file.read_text()))
        await arriving.aclose()

    assert "Reading the requests and refusals of the last hour" in seen
    assert "</html>" not in seen
    process = int(pid_file.read_text())
    async with asyncio.timeout(20):
        await eventually(lambda: not psutil.pid_exists(process) or psutil.Process(process).status() == "zombie")
