"""Usage, denials and the record of changes: each page says what the Admin API says, and a file says it, too."""

import asyncio
import csv
import io
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import pytest
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from evenflow.admin.v1 import admin_pb2_grpc
from gateway.cli.usage import Dimension, print_csv
from gateway.console.pages import audit, denials
from gateway.store.denials import DenialEvent, insert_denials
from gateway.store.usage import insert_usage
from tests.gateway.console.test_live_pages import manager
from tests.gateway.console.visitors import Visitors, texts
from tests.gateway.postgres_proxy import PostgresProxy
from tests.gateway.world import Tenant, World, eventually
from tests.ledger.events import make_event, make_uuid7

BEGIN = datetime(2026, 11, 2, 5, tzinfo=UTC)
NAUGHTY = '=HYPERLINK("http://x","y")'


def used(tenant: Tenant, hour: int, **fields):
    """A generation of the tenant that began in this hour after BEGIN."""
    at_ms = int((BEGIN + timedelta(hours=hour)).timestamp() * 1000)
    ids = {"organization_id": tenant.organization_id, "team_id": tenant.team_id, "key_id": tenant.key_id}
    tokens = {"input_tokens": 1000 + hour, "cached_input_tokens": 10, "output_tokens": 7}
    return make_event(make_uuid7(at_ms), **ids, **(tokens | {"billed_tokens": 1007 + hour} | fields))


async def usage_of(world: World, *by: str) -> list[pb.UsageSum]:
    """The rows of November, asked for over gRPC."""
    caller = await world.administrator()
    request = pb.QueryUsageRequest(group_by=[pb.UsageDimension.Value(f"USAGE_DIMENSION_{each}") for each in by])
    request.start_time.FromDatetime(datetime(2026, 11, 1, tzinfo=UTC))
    request.end_time.FromDatetime(datetime(2026, 12, 1, tzinfo=UTC))
    stub = admin_pb2_grpc.AdminServiceStub(caller.channel)
    return list((await stub.QueryUsage(request, metadata=caller.metadata)).rows)


async def test_usage_is_the_same_on_a_page_in_a_file_and_on_the_command_line(
    world: World, visitors: Visitors, tenant: Tenant, capsys: pytest.CaptureFixture[str]
):
    other = await world.tenant("globex")
    events = [used(tenant, hour) for hour in (0, 1, 30)] + [used(other, 2), used(tenant, 3, model=NAUGHTY)]
    await insert_usage(world.database, events)
    ada = await visitors.administrator()
    question = "by=team&by=model&from=2026-11-01&to=2026-12-01"

    page = await ada.get(f"/console/usage?{question}")
    answer = await ada.get(f"/console/usage.csv?{question}")
    rows = await usage_of(world, "TEAM", "MODEL")
    capsys.readouterr()
    print_csv(rows, (Dimension.TEAM, Dimension.MODEL), has_times=False)

    told, sheet = texts(page), list(csv.reader(io.StringIO(answer.text, newline="")))
    for row in rows:
        assert f"{row.request_count:,} {row.input_tokens:,} {row.cached_input_tokens:,} {row.output_tokens:,}" in told
    assert f"Together {len(events)} {sum(each.input_tokens for each in events):,}" in told
    assert answer.headers["content-disposition"] == (
        'attachment; filename="usage-everybody-20261101T00-20261201T00.csv"'
    )
    printed = list(csv.reader(io.StringIO(capsys.readouterr().out, newline="")))
    assert [[cell.removeprefix("'") for cell in line] for line in sheet] == printed
    assert [line[1] for line in sheet if "HYPERLINK" in line[1]] == [f"'{NAUGHTY}"]


async def test_long_reports_are_paged_and_whole_in_a_file(
    world: World, visitors: Visitors, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("gateway.console.pages.usage.CSV_PAGE_SIZE", 50)
    await insert_usage(world.database, [used(tenant, hour) for hour in range(120)])
    ada = await visitors.administrator()
    question = "tenant=acme/search&by=team&per=hour&from=2026-11-01&to=2026-12-01"

    first = await ada.get(f"/console/usage?{question}")
    following = next(line for line in first.text.split('"') if "page=" in line).replace("&amp;", "&")
    second = await ada.get(f"/console/usage{following}")
    answer = await ada.get(f"/console/usage.csv?{question}")

    assert (first.text.count("<tr>"), second.text.count("<tr>")) > (100, 20)
    assert "on all pages 120" in texts(second)
    sheet = list(csv.reader(io.StringIO(answer.text, newline="")))
    assert [int(line[3]) for line in sheet[1:]] == [1000 + hour for hour in range(120)]
    assert sheet[1][:2] == ["2026-11-02T05:00:00+00:00", "acme/search"]


async def test_an_organization_reads_its_own_usage_and_denials_only(world: World, visitors: Visitors, tenant: Tenant):
    other = await world.tenant("globex")
    await insert_usage(world.database, [used(tenant, 0), used(other, 1)])
    boss = await manager(world, visitors, tenant)

    usage = await boss.get("/console/usage?from=2026-11-01&to=2026-12-01&by=team")
    denials = await boss.get("/console/denials")
    refused = [
        await boss.get(path)
        for path in (
            "/console/usage?tenant=globex",
            "/console/usage.csv?tenant=globex/search",
            "/console/denials?tenant=globex",
        )
    ]

    assert "acme/search 1 1,000" in texts(usage)
    assert "globex" not in usage.text
    assert "No limit refused a request in this time." in texts(denials)
    assert [page.status_code for page in refused] == [403] * 3


async def test_what_cannot_be_asked_is_told_beside_its_field(visitors: Visitors):
    ada = await visitors.administrator()
    questions = {
        "usage?by=color": "by",
        "usage?per=week": "per",
        "usage?from=never": "from",
        "usage?from=0001-01-01": "from",
        "usage?tenant=%3Cb%3E": "tenant",
        "denials?tenant=a/b/c/d/e": "tenant",
        "denials?span=2y": "span",
        "audit?since=2026-02-31": "since",
    }

    for path, field in questions.items():
        page = await ada.get(f"/console/{path}")
        assert page.status_code == 400, path
        assert f'aria-describedby="{field}-problem' in page.text or field == "by", path
        assert "<b>" not in page.text


def denial(tenant: Tenant, node: str, *, minutes_ago: int = 5, is_shadow: bool = False, wait_ms: int = 1500):
    return DenialEvent(
        id=uuid4(),
        denied_at=datetime.now(UTC) - timedelta(minutes=minutes_ago),
        organization_id=tenant.organization_id,
        team_id=tenant.team_id,
        key_id=tenant.key_id,
        model="m",
        priority_class="default",
        input_tokens=100,
        max_output_tokens=50,
        reserved_tokens=150,
        reason="" if is_shadow else "RATE_LIMITED",
        is_shadow=is_shadow,
        nodes=(node, "organizations/acme"),
        dimensions=("TOTAL_TOKENS", "REQUESTS"),
        waits_ms=(wait_ms, -1),
        policy_revision=1,
    )


async def test_denials_are_counted_by_limit(world: World, visitors: Visitors, tenant: Tenant):
    team = "organizations/acme/teams/search"
    await insert_denials(
        world.database,
        [
            denial(tenant, team),
            denial(tenant, team, wait_ms=90_000),
            denial(tenant, team, is_shadow=True),
            denial(tenant, team, minutes_ago=60 * 30),
        ],
    )
    ada = await visitors.administrator()

    day = texts(await ada.get("/console/denials"))
    week = texts(await ada.get("/console/denials?span=7d&tenant=acme/search"))

    assert "acme/search total tokens 2 1 200 300 1 min 30 s" in day
    assert "acme requests 2 1 200 300 –" in day
    assert "Shadow limits that would have" in day
    assert "acme/search total tokens 3 1 300 450" in week


async def test_the_chart_of_denials_reaches_its_end_however_many_limits_refused(
    world: World, visitors: Visitors, tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(denials, "CHART_PAGE_SIZE", 3)
    nodes = [f"organizations/acme/teams/t{number}" for number in range(4)]
    refused = [denial(tenant, node, minutes_ago=60 * hour + 1) for node in nodes for hour in (0, 1, 2)]
    await insert_denials(world.database, refused)
    ada = await visitors.administrator()

    whole = await ada.get("/console/denials")
    monkeypatch.setattr(denials, "MAX_CHART_PAGES", 2)
    cut = await ada.get("/console/denials")

    assert texts(whole).count(" 4 4 ") == 3  # requests and total tokens, in each hour
    assert "More limits refused requests than one chart" in texts(cut)
    assert 'id="denials-over-time"' not in cut.text


async def test_one_check_of_the_record_runs_at_a_time_and_not_on_the_event_loop(
    world: World, visitors: Visitors, monkeypatch: pytest.MonkeyPatch
):
    threads, goes_on, chained = set(), threading.Event(), audit.chained

    def held(event: pb.AuditEvent):
        threads.add(threading.get_ident())
        goes_on.wait(30)
        return chained(event)

    monkeypatch.setattr(audit, "chained", held)
    ada = await visitors.administrator()
    first = asyncio.create_task(ada.get("/console/audit/check"))
    await eventually(lambda: threads)
    second = await ada.get("/console/audit/check")
    goes_on.set()
    third = await first
    fourth = await ada.get("/console/audit/check")

    assert threading.get_ident() not in threads
    assert second.status_code == 503
    assert "is being checked for somebody else" in texts(second)
    assert (third.status_code, fourth.status_code) == (200, 200)


async def test_the_record_shows_before_and_after_and_whether_it_is_whole(
    world: World, visitors: Visitors, tenant: Tenant
):
    caller = await world.administrator()
    stub = admin_pb2_grpc.AdminServiceStub(caller.channel)
    markup = "<img src=x onerror=alert(1)>"
    team = pb.Team(name="organizations/acme/teams/search", display_name=markup)
    await stub.UpdateTeam(pb.UpdateTeamRequest(team=team), metadata=caller.metadata)
    ada = await visitors.administrator()

    listed = await ada.get("/console/audit?action=teams.update&resource=acme/search")
    event_id = next(
        part for part in listed.text.split('"') if part.startswith("/console/audit/") and part[-1].isdigit()
    )
    shown = await ada.get(event_id)
    whole = await ada.get("/console/audit/check")
    async with world.database.session() as session:
        await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER ALL"))
        await session.execute(text("UPDATE audit_event SET actor = 'nobody' WHERE action = 'teams.update'"))
    broken = await ada.get("/console/audit/check")
    nothing = await ada.get("/console/audit?actor=nobody-at-all")
    missing = await ada.get("/console/audit/999999")

    assert "display_name was &#34;&#34; → is now &lt;img src=x onerror=alert(1)&gt;" in texts(listed)
    assert markup not in listed.text + shown.text
    assert f"apiKeys/{caller.public_id}" in texts(shown)
    assert "Every event is as it was written" in texts(whole)
    assert "was changed, or does not follow" in texts(broken)
    assert f'href="{event_id}"' in broken.text
    assert "No change is like that." in texts(nothing)
    assert missing.status_code == 404


async def test_without_the_database_pages_say_that_it_is_away(closed_world: World, database_url: str):
    with TemporaryDirectory() as directory:
        proxy = PostgresProxy(database_url, Path(directory))
        await proxy.open()
        closed_world.database_url = proxy.url
        await closed_world.open()
        await closed_world.serving()
        visitors = Visitors(closed_world)
        ada = await visitors.administrator()
        await proxy.shut()
        pages = [await ada.get(f"/console/{path}") for path in ("usage", "denials", "audit")]
        overview = await ada.get("/console/overview")
        await visitors.close()

    assert [page.status_code for page in pages] == [503] * 3
    assert all("STORE_UNAVAILABLE" in texts(page) for page in pages)
    assert overview.status_code == 200
