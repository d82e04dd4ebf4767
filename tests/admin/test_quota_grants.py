"""Temporary quota through the wire: what it raises, until when, and what is refused."""

from datetime import UTC, datetime, timedelta

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from evenflow.admin.v1 import admin_pb2 as pb
from tests.admin.service import AdminService, Refused

POLICY = "organizations/acme/teams/search/quotaPolicies/default"
REQUESTS = pb.QUOTA_DIMENSION_REQUESTS
LIMIT = pb.QuotaLimit(dimension=REQUESTS, limit=600)


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team that has a limit and a budget."""
    await service.create_org()
    await service.create_team()
    limits = [
        pb.QuotaLimit(dimension=REQUESTS, limit=60),
        pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_CONCURRENCY, limit=2),
    ]
    budgets = [pb.QuotaBudget(window=pb.BUDGET_WINDOW_MONTH, limit=9000)]
    policy = pb.QuotaPolicy(name=POLICY, limits=limits, budgets=budgets)
    await service.call(service.stub.UpdateQuotaPolicy, pb.UpdateQuotaPolicyRequest(quota_policy=policy))
    return service


def later(length: timedelta = timedelta(hours=6)) -> Timestamp:
    stamp = Timestamp()
    stamp.FromDatetime(datetime.now(UTC) + length)
    return stamp


def request(**fields) -> pb.GrantTemporaryQuotaRequest:
    given = {"name": POLICY, "limit": LIMIT, "expire_time": later(), "reason": "a launch"} | fields
    return pb.GrantTemporaryQuotaRequest(**{name: value for name, value in given.items() if value is not None})


async def test_a_limit_is_raised_in_force_before_the_answer(tenant: AdminService):
    ends = later()
    policy = await tenant.call(tenant.stub.GrantTemporaryQuota, request(expire_time=ends))

    (grant,) = policy.temporary_quotas
    assert (grant.limit.limit, grant.reason, grant.expire_time) == (600, "a launch", ends)
    assert grant.creator
    assert policy.limits[1].limit == 60
    (record,) = tenant.cache.current.teams.values()
    assert [granted.amount for granted in record.policy.grants] == [600]


async def test_a_budget_is_raised(tenant: AdminService):
    budget = pb.QuotaBudget(window=pb.BUDGET_WINDOW_MONTH, limit=20_000)
    policy = await tenant.call(tenant.stub.GrantTemporaryQuota, request(limit=None, budget=budget))

    assert [grant.budget for grant in policy.temporary_quotas] == [budget]


async def test_an_update_keeps_what_was_granted(tenant: AdminService):
    await tenant.call(tenant.stub.GrantTemporaryQuota, request())
    changed = pb.QuotaPolicy(name=POLICY, weight=3)
    policy = await tenant.call(tenant.stub.UpdateQuotaPolicy, pb.UpdateQuotaPolicyRequest(quota_policy=changed))

    assert len(policy.temporary_quotas) == 1


async def test_a_grant_needs_an_end_a_reason_and_something_to_raise(tenant: AdminService):
    concurrency = pb.QuotaLimit(dimension=pb.QUOTA_DIMENSION_CONCURRENCY, limit=9, burst=9)
    for fields, path in (
        ({"expire_time": None}, "expire_time"),
        ({"expire_time": later(timedelta(seconds=-1))}, "expire_time"),
        ({"expire_time": later(timedelta(days=400))}, "expire_time"),
        ({"reason": ""}, "reason"),
        ({"reason": "two\nlines"}, "reason"),
        ({"reason": "x" * 201}, "reason"),
        ({"limit": None}, "limit"),
        ({"limit": pb.QuotaLimit(limit=600)}, "limit.dimension"),
        ({"limit": pb.QuotaLimit(dimension=REQUESTS)}, "limit.limit"),
        ({"limit": pb.QuotaLimit(dimension=REQUESTS, limit=60)}, "limit.limit"),
        ({"limit": pb.QuotaLimit(dimension=REQUESTS, limit=600, period=Duration(seconds=1))}, "limit.period"),
        ({"limit": pb.QuotaLimit(dimension=REQUESTS, limit=600, model="large")}, "limit.dimension"),
        ({"limit": concurrency}, "limit.burst"),
        ({"limit": None, "budget": pb.QuotaBudget(window=pb.BUDGET_WINDOW_DAY, limit=5)}, "budget.window"),
        ({"name": "organizations/acme"}, "name"),
    ):
        refused = await tenant.refused(tenant.stub.GrantTemporaryQuota, request(**fields))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (path,)), fields


async def test_a_grant_is_ended_in_force_before_the_answer(tenant: AdminService):
    granted = await tenant.call(tenant.stub.GrantTemporaryQuota, request())
    end = pb.EndTemporaryQuotaRequest(name=POLICY, uid=granted.temporary_quotas[0].uid, etag=granted.etag)

    policy = await tenant.call(tenant.stub.EndTemporaryQuota, end)

    assert not policy.temporary_quotas
    (record,) = tenant.cache.current.teams.values()
    assert record.policy.grants == ()
    end.etag = ""
    assert (await tenant.refused(tenant.stub.EndTemporaryQuota, end)).code == "NOT_FOUND"
    bad = pb.EndTemporaryQuotaRequest(name=POLICY, uid="launch")
    refused = await tenant.refused(tenant.stub.EndTemporaryQuota, bad)
    assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("uid",))


async def test_a_policy_has_so_many_grants_and_no_more(tenant: AdminService, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gateway.store.grants.MAX_GRANTS", 2)
    for _ in range(2):
        granted = await tenant.call(tenant.stub.GrantTemporaryQuota, request())

    refused = await tenant.refused(tenant.stub.GrantTemporaryQuota, request())

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PRECONDITION_FAILED")
    end = pb.EndTemporaryQuotaRequest(name=POLICY, uid=granted.temporary_quotas[0].uid)
    await tenant.call(tenant.stub.EndTemporaryQuota, end)
    await tenant.call(tenant.stub.GrantTemporaryQuota, request())


async def test_a_policy_that_there_is_not_is_not_found(tenant: AdminService):
    refused = await tenant.refused(
        tenant.stub.GrantTemporaryQuota, request(name="organizations/other/quotaPolicies/default")
    )

    assert refused.code == "NOT_FOUND"
