"""Refusals by limit: counted by node and dimension, narrowed to a tenant, in pages."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.store.denials import DenialEvent, insert_denials
from tests.admin.service import AdminService

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
ACME, SEARCH = "organizations/acme", "organizations/acme/teams/search"


def stamp(moment: datetime) -> Timestamp:
    made = Timestamp()
    made.FromDatetime(moment)
    return made


def denial(org: UUID, team: UUID, *limits: tuple[str, str, int], at: datetime = NOON, is_shadow: bool = False):
    nodes, dimensions, waits_ms = zip(*limits, strict=True)
    return DenialEvent(
        id=uuid4(),
        denied_at=at,
        organization_id=org,
        team_id=team,
        key_id=uuid4(),
        model="m",
        priority_class="default",
        input_tokens=10,
        max_output_tokens=5,
        reserved_tokens=15,
        reason="RATE_LIMITED",
        is_shadow=is_shadow,
        nodes=nodes,
        dimensions=dimensions,
        waits_ms=waits_ms,
        policy_revision=1,
    )


async def query(service: AdminService, **fields) -> list[pb.DenialSum]:
    """All rows of the day, over as many pages as it takes."""
    day = {"start_time": stamp(NOON - timedelta(hours=12)), "end_time": stamp(NOON + timedelta(hours=12))}
    request, rows = pb.QueryDenialsRequest(**(day | fields)), []
    while True:
        answer = await service.call(service.stub.QueryDenials, request)
        rows += answer.rows
        if not answer.next_page_token:
            return rows
        request.page_token = answer.next_page_token


def told(rows: list[pb.DenialSum]) -> list[tuple[str, str, bool, int]]:
    return [(row.node, row.dimension, row.shadow, row.request_count) for row in rows]


async def test_each_violated_limit_counts_and_the_most_violated_comes_first(service: AdminService):
    org = await service.create_org()
    search, ads = await service.create_team(), await service.create_team("ads")
    other = await service.create_org("globex")
    tokens, requests = (SEARCH, "TOTAL_TOKENS", 2500), (ACME, "REQUESTS", -1)
    ours = [UUID(org.uid), UUID(search.uid)]
    await insert_denials(
        service.database,
        [
            denial(*ours, tokens),
            denial(*ours, tokens, requests),
            denial(UUID(org.uid), UUID(ads.uid), requests, at=NOON + timedelta(hours=1)),
            denial(UUID(org.uid), UUID(ads.uid), requests, at=NOON + timedelta(hours=1)),
            denial(*ours, tokens, is_shadow=True),
            denial(UUID(other.uid), uuid4(), ("organizations/globex", "REQUESTS", 7)),
            denial(*ours, tokens, at=NOON + timedelta(hours=12)),
        ],
    )

    everybody = await query(service, page_size=2)
    hours = await query(service, parent=ACME, interval=pb.USAGE_INTERVAL_HOUR, page_size=1)

    assert told(everybody) == [
        (ACME, "requests", False, 3),
        (SEARCH, "total_tokens", False, 2),
        (SEARCH, "total_tokens", True, 1),
        ("organizations/globex", "requests", False, 1),
    ]
    first, second = everybody[:2]
    assert (first.team_count, first.input_tokens, first.reserved_tokens) == (2, 30, 45)
    assert not first.HasField("longest_wait")
    assert second.longest_wait.ToMilliseconds() == 2500
    assert first.last_time.ToDatetime(UTC) == NOON + timedelta(hours=1)
    assert told(await query(service, parent=SEARCH)) == [
        (SEARCH, "total_tokens", False, 2),
        (ACME, "requests", False, 1),
        (SEARCH, "total_tokens", True, 1),
    ]
    assert [(row.start_time.ToDatetime(UTC).hour, row.request_count) for row in hours] == [
        (12, 2),
        (12, 1),
        (12, 1),
        (13, 2),
    ]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"start_time": None}, "start_time"),
        ({"end_time": Timestamp(seconds=-1)}, "end_time"),
        ({"end_time": Timestamp(seconds=5, nanos=-1)}, "end_time"),
        ({"end_time": stamp(NOON - timedelta(days=1))}, "end_time"),
        ({"parent": "acme"}, "parent"),
        ({"interval": 9}, "interval"),
        ({"page_token": "forged"}, "page_token"),
        ({"page_size": -1}, "page_size"),
    ],
)
async def test_a_question_that_makes_no_sense_names_its_field(module_service: AdminService, fields, field):
    day = {"start_time": stamp(NOON), "end_time": stamp(NOON + timedelta(hours=1))}
    request = pb.QueryDenialsRequest(**(day | fields))

    assert (await module_service.refused(module_service.stub.QueryDenials, request)).fields == (field,)


async def test_a_tenant_that_does_not_exist_has_no_denials(service: AdminService):
    request = pb.QueryDenialsRequest(
        parent="organizations/nobody", start_time=stamp(NOON), end_time=stamp(NOON + timedelta(hours=1))
    )

    assert (await service.refused(service.stub.QueryDenials, request)).code == "NOT_FOUND"
