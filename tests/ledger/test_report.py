"""Usage reports: their sums are those of the events, however they are broken down."""

import csv
import io
import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.errors import UsageError
from gateway.cli.usage import find_times
from gateway.store.usage import UsageEvent, insert_usage
from gateway.store.usage_report import UsageDimension, UsageInterval
from tests.admin.service import AdminService
from tests.ledger.events import make_event, make_uuid7

BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
END = datetime(2026, 12, 1, tzinfo=UTC)
HOUR_MS = 3_600_000
ATTRIBUTES = {
    UsageDimension.ORGANIZATION: "organization_id",
    UsageDimension.TEAM: "team_id",
    UsageDimension.API_KEY: "key_id",
    UsageDimension.MODEL: "model",
    UsageDimension.PRIORITY_CLASS: "priority_class",
}


def stamp(moment: datetime) -> Timestamp:
    seconds = Timestamp()
    seconds.FromDatetime(moment)
    return seconds


def began(event: UsageEvent) -> datetime:
    return datetime.fromtimestamp((event.generation_id.int >> 80) / 1000, UTC)


@pytest_asyncio.fixture
async def ledger(service: AdminService) -> list[UsageEvent]:
    """Two organizations, three teams, four keys, one without a tenant any more; a month and a bit around."""
    ids: list[tuple[UUID, UUID, UUID]] = []
    for organization in ("acme", "beta"):
        org = await service.create_org(organization)
        for team in ("search", "ads")[: 2 if organization == "acme" else 1]:
            made = await service.create_team(team, organization)
            key = await service.create_key(made.name)
            async with service.database.session() as session:
                key_id = await session.scalar(
                    text("SELECT id FROM api_key WHERE public_id = :id"), {"id": key.name.rpartition("/")[2]}
                )
            ids.append((UUID(org.uid), UUID(made.uid), key_id))
    ids.append((UUID(int=1), UUID(int=2), UUID(int=3)))
    chance = random.Random(3)
    first_ms = int(BEGIN.timestamp() * 1000) - 3 * HOUR_MS
    last_ms = int(END.timestamp() * 1000) + 3 * HOUR_MS
    events = []
    for _ in range(400):
        organization_id, team_id, key_id = chance.choice(ids)
        tokens = {name: chance.randrange(1000) for name in ("input_tokens", "output_tokens", "discarded_tokens")}
        events.append(
            make_event(
                make_uuid7(chance.choice([first_ms, last_ms, chance.randrange(first_ms, last_ms)])),
                organization_id=organization_id,
                team_id=team_id,
                key_id=key_id,
                model=chance.choice(["small", "large"]),
                priority_class=chance.choice(["default", "batch"]),
                **tokens,
                billed_tokens=tokens["input_tokens"] + tokens["output_tokens"],
                queue_ns=chance.randrange(10**9),
            )
        )
    await insert_usage(service.database, events)
    return events


async def query(service: AdminService, **fields) -> list[pb.UsageSum]:
    """All rows, over as many pages as it takes."""
    request = pb.QueryUsageRequest(**{"start_time": stamp(BEGIN), "end_time": stamp(END)} | fields)
    rows: list[pb.UsageSum] = []
    while True:
        answer = await service.call(service.stub.QueryUsage, request)
        rows += answer.rows
        if not answer.next_page_token:
            return rows
        request.page_token = answer.next_page_token


def counted(events: list[UsageEvent]) -> tuple[int, ...]:
    return (
        len(events),
        sum(event.input_tokens for event in events),
        sum(event.output_tokens for event in events),
        sum(event.billed_tokens for event in events),
        sum(event.discarded_tokens for event in events),
        sum(event.queue_ns for event in events),
    )


def counts(row: pb.UsageSum) -> tuple[int, ...]:
    return (
        row.request_count,
        row.input_tokens,
        row.output_tokens,
        row.billed_tokens,
        row.discarded_tokens,
        row.queue_time.ToNanoseconds(),
    )


def expected(events: list[UsageEvent], dimensions, interval: UsageInterval | None) -> list[tuple[int, ...]]:
    def key(event: UsageEvent) -> tuple[object, ...]:
        at = began(event)
        starts = {
            None: None,
            UsageInterval.HOUR: (at.date(), at.hour),
            UsageInterval.DAY: at.date(),
            UsageInterval.MONTH: (at.year, at.month),
        }
        return starts[interval], *(getattr(event, ATTRIBUTES[dimension]) for dimension in dimensions)

    inside = sorted((event for event in events if BEGIN <= began(event) < END), key=lambda each: str(key(each)))
    return sorted(counted(list(group)) for _, group in itertools.groupby(inside, key=lambda each: str(key(each))))


async def test_sums_are_those_of_the_events_however_they_are_broken_down(
    service: AdminService, ledger: list[UsageEvent]
) -> None:
    breakdowns = [(), *((dimension,) for dimension in UsageDimension), tuple(UsageDimension)]
    for dimensions, interval in itertools.product(breakdowns, [None, *UsageInterval]):
        rows = await query(
            service,
            group_by=[f"USAGE_DIMENSION_{dimension.name}" for dimension in dimensions],
            interval=f"USAGE_INTERVAL_{interval.name if interval else 'UNSPECIFIED'}",
            page_size=50,
        )

        assert sorted(map(counts, rows)) == expected(ledger, dimensions, interval)
        assert all(row.HasField("start_time") == (interval is not None) for row in rows)


async def test_rows_say_whose_they_are(service: AdminService, ledger: list[UsageEvent]) -> None:
    by_team = await query(service, group_by=["USAGE_DIMENSION_TEAM"])
    by_key = await query(service, group_by=["USAGE_DIMENSION_API_KEY", "USAGE_DIMENSION_PRIORITY_CLASS"])

    assert {row.team for row in by_team} == {
        "organizations/acme/teams/search",
        "organizations/acme/teams/ads",
        "organizations/beta/teams/search",
        str(UUID(int=2)),
    }
    assert {row.priority_class for row in by_key} == {"priorityClasses/default", "priorityClasses/batch"}
    assert all(row.api_key.startswith((f"{row.team}/apiKeys/", "00000000")) for row in by_key)


@pytest.mark.parametrize("parent", ["organizations/acme", "organizations/acme/teams/ads"])
async def test_a_parent_narrows_the_report(service: AdminService, ledger: list[UsageEvent], parent: str) -> None:
    everything = await query(service, group_by=["USAGE_DIMENSION_TEAM"])
    (row,) = await query(service, parent=parent)

    inside = [each for each in everything if each.team.startswith(parent)]
    assert row.billed_tokens == sum(each.billed_tokens for each in inside) > 0


async def test_an_hour_without_usage_has_no_row(service: AdminService) -> None:
    assert await query(service, interval="USAGE_INTERVAL_HOUR") == []
    assert await query(service) == []


WRONG = (
    ({"start_time": None}, "start_time"),
    ({"end_time": stamp(BEGIN)}, "end_time"),
    ({"end_time": Timestamp(seconds=1)}, "end_time"),
    ({"start_time": Timestamp(nanos=5)}, "start_time"),
    ({"start_time": Timestamp(seconds=-3600)}, "start_time"),
    ({"end_time": Timestamp(seconds=3600 * 10**9)}, "end_time"),
    ({"group_by": [0]}, "group_by[0]"),
    ({"group_by": [77]}, "group_by[0]"),
    ({"interval": 77}, "interval"),
    ({"parent": "teams/x"}, "parent"),
    ({"page_size": -1}, "page_size"),
    ({"page_token": "forged"}, "page_token"),
)


async def test_what_is_wrong_is_named(service: AdminService) -> None:
    for fields, field in WRONG:
        request = pb.QueryUsageRequest(**{"start_time": stamp(BEGIN), "end_time": stamp(END)} | fields)
        refusal = await service.refused(service.stub.QueryUsage, request)

        assert (refusal.reason, refusal.fields) == ("INVALID_FIELD", (field,))


async def test_a_page_continues_its_own_question_only(service: AdminService, ledger: list[UsageEvent]) -> None:
    request = pb.QueryUsageRequest(
        start_time=stamp(BEGIN), end_time=stamp(END), group_by=["USAGE_DIMENSION_TEAM"], page_size=1
    )
    request.page_token = (await service.call(service.stub.QueryUsage, request)).next_page_token
    request.start_time.FromDatetime(BEGIN + timedelta(hours=1))

    assert (await service.refused(service.stub.QueryUsage, request)).fields == ("page_token",)


async def test_a_tenant_that_does_not_exist_is_not_found(service: AdminService) -> None:
    request = pb.QueryUsageRequest(start_time=stamp(BEGIN), end_time=stamp(END), parent="organizations/nobody")

    assert (await service.refused(service.stub.QueryUsage, request)).code == "NOT_FOUND"


async def test_the_command_prints_the_same_sums_in_every_form(command_line, service, ledger: list[UsageEvent]) -> None:
    arguments = ("usage", "report", "--by", "team", "--month", "2026-11")
    table = await command_line(*arguments)
    data = (await command_line(*arguments, "-o", "json")).json()
    rows = list(csv.DictReader(io.StringIO((await command_line(*arguments, "-o", "csv")).stdout)))

    total = sum(event.billed_tokens for event in ledger if BEGIN <= began(event) < END)
    assert sum(int(row["billed_tokens"]) for row in rows) == sum(int(row["billed_tokens"]) for row in data) == total
    assert f"{total:,} tokens billed" in table.stdout
    assert [row["team"] for row in rows] == sorted(row["team"] for row in rows)
    assert {"acme/search", "acme/ads", "beta/search"} < {row["team"] for row in rows}
    assert all(row["team"] in table.stdout for row in rows)


async def test_the_command_reports_one_tenant_by_day(command_line, service, ledger: list[UsageEvent]) -> None:
    ran = await command_line(
        *("usage", "report", "acme/search", "--by", "model", "--by", "class", "--per", "day"),
        *("--from", "2026-11-03", "--to", "2026-11-05T12", "-o", "json"),
    )

    days = {row["start_time"] for row in ran.json()}
    assert days <= {"2026-11-03T00:00:00Z", "2026-11-04T00:00:00Z", "2026-11-05T00:00:00Z"}
    assert json.dumps(ran.json()).count("priorityClasses/") == len(ran.json()) > 0


NOW = datetime(2026, 12, 5, 13, 45, tzinfo=UTC)


def test_without_times_it_is_this_month() -> None:
    assert find_times(None, None, None, NOW) == (datetime(2026, 12, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC))


def test_from_alone_goes_to_the_end_of_this_hour() -> None:
    begin = datetime(2026, 12, 1)  # noqa: DTZ001 - as the command line parses it
    assert find_times(None, begin, None, NOW) == (begin.replace(tzinfo=UTC), datetime(2026, 12, 5, 14, tzinfo=UTC))


@pytest.mark.parametrize(
    ("month", "begin", "end"),
    [
        ("2026-13", None, None),
        ("2026", None, None),
        ("2026-11", NOW, None),
        (None, None, NOW),
        (None, NOW, NOW),
        (None, NOW + timedelta(days=1), None),
    ],
)
def test_times_that_make_no_sense_are_refused(month, begin, end) -> None:
    with pytest.raises(UsageError):
        find_times(month, begin, end, NOW)
