"""Raising limits for a while, and what is left of one's own, from the command line."""

from collections import abc
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import grpc
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from evenflow.inference.v1 import quota_pb2 as pb
from evenflow.inference.v1.quota_pb2_grpc import QuotaServiceServicer, add_QuotaServiceServicer_to_server
from gateway.store.denials import insert_denials
from tests.admin.service import AdminService
from tests.admin.test_denials import denial
from tests.cli.command_line import CommandLine

KEY = "ef_live_test"


@pytest_asyncio.fixture
async def team(service: AdminService, command_line: CommandLine) -> AdminService:
    """The admin service with a team that has a limit."""
    for arguments in (
        ("orgs", "create", "acme"),
        ("teams", "create", "acme/search"),
        ("quota-policies", "update", "acme/search", "--limit", "total_tokens=600:burst=100"),
    ):
        assert (await command_line(*arguments)).exit_code == 0
    return service


async def test_a_limit_is_raised_for_a_length_of_time_or_until_a_moment(team: AdminService, command_line: CommandLine):
    grant = ("quota", "grant", "acme/search", "--reason", "launch day")
    await command_line(*grant, "--limit", "total_tokens=1200", "--until", "6h")
    ran = await command_line(*grant, "--limit", "total_tokens=5000:burst=700", "--until", "2027-01-31T18:00+01:00")
    rows = (await command_line("quota-policies", "show", "acme/search", "-o", "json")).json()["temporary_quotas"]

    assert ran.exit_code == 0, ran.stderr
    assert "total_tokens=5000/1m:burst=700" in ran.stdout
    assert "2027-01-31 17:00:00Z" in ran.stdout
    assert [(row["limit"]["limit"], row["limit"]["burst"], row["reason"]) for row in rows] == [
        ("1200", "0", "launch day"),
        ("5000", "700", "launch day"),
    ]


async def test_what_limits_refused_is_told_by_limit(team: AdminService, command_line: CommandLine):
    node = "organizations/acme/teams/search"
    refused = denial(uuid4(), uuid4(), (node, "TOTAL_TOKENS", 2500), at=datetime.now(UTC) - timedelta(hours=2))
    await insert_denials(team.database, [refused])

    lately = await command_line("quota", "denials", "--last", "1h", "-o", "json")
    ran = await command_line("quota", "denials")
    of_nobody = await command_line("quota", "denials", "acme/none")
    never = await command_line("quota", "denials", "--last", "ages")

    assert lately.json() == []
    assert "acme/search total_tokens refused 1 1 10 15 2.5 s" in " ".join(ran.stdout.split())
    assert (of_nobody.exit_code, never.exit_code) == (1, 2)


async def test_a_grant_is_ended_by_the_id_that_was_printed(team: AdminService, command_line: CommandLine):
    grant = ("quota", "grant", "acme/search", "--reason", "launch", "--limit", "total_tokens=1200", "--until", "6h")
    grant_id = (await command_line(*grant)).stdout.split()[-1]

    ran = await command_line("quota", "end", "acme/search", grant_id)

    assert ran.exit_code == 0, ran.stderr
    policy = (await command_line("quota-policies", "show", "acme/search", "-o", "json")).json()
    assert not policy.get("temporary_quotas")


async def test_grants_are_shown_with_their_ids_and_listed_for_a_wrong_one(
    team: AdminService, command_line: CommandLine
):
    wrong_alone = await command_line("quota", "end", "acme/search", "nosuch")
    grant = ("quota", "grant", "acme/search", "--reason", "launch", "--limit", "total_tokens=1200", "--until", "6h")
    grant_id = (await command_line(*grant)).stdout.split()[-1]

    shown = (await command_line("quota-policies", "show", "acme/search")).stdout
    wrong = await command_line("quota", "end", "acme/search", "nosuch")
    unknown = await command_line("quota", "end", "acme/search", "00000000-0000-0000-0000-000000000000")

    line = f"{grant_id}: total_tokens=1200/1m until "
    assert f"grants         {line}" in shown
    for ran in (wrong, unknown):
        assert ran.exit_code == 1
        assert line in ran.stderr
    assert "acme/search has no grant 'nosuch', nor any other" in wrong_alone.stderr


async def test_policies_of_a_node_are_listed_with_those_below_it(team: AdminService, command_line: CommandLine):
    await command_line("orgs", "create", "globex")
    key = (await command_line("keys", "create", "--team", "acme/search", "-o", "json")).json()["name"]
    await command_line("quota-policies", "create", key, "--limit", "concurrency=1")

    async def listed(node: str) -> list[str]:
        policies = (await command_line("quota-policies", "list", node, "-o", "json")).json()
        return [policy["name"].removesuffix("/quotaPolicies/default") for policy in policies]

    assert await listed("acme") == ["organizations/acme", "organizations/acme/teams/search", key]
    assert await listed("acme/search") == ["organizations/acme/teams/search", key]
    assert await listed("acme/-") == ["organizations/acme/teams/search"]
    assert await listed(key) == [key]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--until", "6h"), "one of --limit and --budget"),
        (("--until", "6h", "--limit", "total_tokens=700", "--budget", "day=5"), "one of --limit and --budget"),
        (("--until", "someday", "--limit", "total_tokens=700"), "neither a time nor a length of time"),
    ],
)
async def test_wrong_usage_is_told(team: AdminService, command_line: CommandLine, options, text: str):
    ran = await command_line("quota", "grant", "acme/search", "--reason", "launch", *options)

    assert ran.exit_code == 2
    assert text in ran.stderr


async def test_a_refusal_of_the_server_is_told(team: AdminService, command_line: CommandLine):
    options = ("--reason", "launch", "--until", "6h", "--budget", "month=5")

    ran = await command_line("quota", "grant", "acme/search", *options)

    assert ran.exit_code == 1
    assert "the policy has no budget per month" in ran.stderr


class Quotas(QuotaServiceServicer):
    """A tenant with a rate, a budget and slots."""

    async def GetQuotaStatus(self, request, context):  # noqa: N802 - the protocol's name
        assert dict(context.invocation_metadata())["authorization"] == f"Bearer {KEY}"
        node = "organizations/acme/teams/search"
        limits = [
            pb.QuotaLimitStatus(
                node=node,
                dimension="total_tokens",
                limit=600,
                burst=100,
                period=Duration(seconds=60),
                remaining=42,
                reset_delay=Duration(seconds=5, nanos=800_000_000),
                mode="enforce",
            ),
            pb.QuotaLimitStatus(
                node=node,
                dimension="budget",
                limit=9000,
                remaining=9,
                reset_delay=Duration(seconds=90_000),
                window="month",
                model="small",
                mode="shadow",
            ),
            pb.QuotaLimitStatus(node="organizations/acme", dimension="concurrency", limit=4, remaining=3),
        ]
        return pb.GetQuotaStatusResponse(status=pb.QuotaStatus(limits=limits, weight=2.0, policy_revision="7"))


@pytest_asyncio.fixture
async def quotas(monkeypatch: pytest.MonkeyPatch, command_line: CommandLine) -> abc.AsyncIterator[None]:
    server = grpc.aio.server()
    add_QuotaServiceServicer_to_server(Quotas(), server)
    monkeypatch.setenv("EVENFLOW_ADDRESS", f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
    monkeypatch.setenv("EVENFLOW_API_KEY", KEY)
    await server.start()
    yield
    await server.stop(None)


@pytest.mark.usefixtures("quotas")
async def test_own_limits_are_shown_with_what_is_left(command_line: CommandLine):
    shown = (await command_line("quota", "status")).stdout
    data = (await command_line("quota", "status", "-o", "json")).json()

    lines = [line.split() for line in shown.splitlines() if line.strip()]
    assert ["acme/search", "total_tokens=600/1m:burst=100", "enforce", "42", "5.8s"] in lines
    assert ["acme/search", "month=9000:model=small", "shadow", "9", "1", "day,", "1:00:00"] in lines
    assert ["acme", "concurrency=4", "3", "-"] in lines
    assert (data["weight"], data["policy_revision"], len(data["limits"])) == (2.0, "7", 3)
