"""Quota policies through the wire: defaults of limits, ranges, levels of the tenant tree."""

import math

import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask

from evenflow.admin.v1 import admin_pb2 as pb
from tests.admin.service import AdminService, Refused

ORG = "organizations/acme"
TEAM = f"{ORG}/teams/search"
POLICY = f"{TEAM}/quotaPolicies/default"
REQUESTS, CONCURRENCY = pb.QUOTA_DIMENSION_REQUESTS, pb.QUOTA_DIMENSION_CONCURRENCY


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


async def update(service: AdminService, *, paths: tuple[str, ...] = (), name: str = POLICY, **fields) -> pb.QuotaPolicy:
    request = update_request(paths=paths, name=name, **fields)
    return await service.call(service.stub.UpdateQuotaPolicy, request)


def update_request(*, paths: tuple[str, ...] = (), name: str = POLICY, **fields) -> pb.UpdateQuotaPolicyRequest:
    mask = FieldMask(paths=paths) if paths else None
    return pb.UpdateQuotaPolicyRequest(quota_policy=pb.QuotaPolicy(name=name, **fields), update_mask=mask)


async def test_limit_takes_a_minute_and_a_sixth_of_itself_where_it_says_nothing(tenant: AdminService):
    updated = await update(tenant, limits=[pb.QuotaLimit(dimension=REQUESTS, limit=60)])

    assert list(updated.limits) == [pb.QuotaLimit(dimension=REQUESTS, limit=60, period=Duration(seconds=60), burst=10)]


async def test_burst_is_at_least_one(tenant: AdminService):
    updated = await update(tenant, limits=[pb.QuotaLimit(dimension=REQUESTS, limit=2)])

    assert updated.limits[0].burst == 1


async def test_concurrency_has_neither_period_nor_burst(tenant: AdminService):
    updated = await update(tenant, limits=[pb.QuotaLimit(dimension=CONCURRENCY, limit=4)])

    assert list(updated.limits) == [pb.QuotaLimit(dimension=CONCURRENCY, limit=4)]


async def test_changed_weight_and_limits_are_in_force_before_the_answer(tenant: AdminService):
    await update(tenant, weight=2.5, limits=[pb.QuotaLimit(dimension=CONCURRENCY, limit=4)])

    (record,) = tenant.cache.current.teams.values()
    assert record.weight == 2.5
    assert [limit.amount for limit in record.policy.limits] == [4]


async def test_limits_are_replaced_as_a_whole_and_cleared_by_the_mask(tenant: AdminService):
    await update(tenant, limits=[pb.QuotaLimit(dimension=REQUESTS, limit=60)])
    replaced = await update(tenant, limits=[pb.QuotaLimit(dimension=CONCURRENCY, limit=4)])
    cleared = await update(tenant, paths=("limits",))

    assert [limit.dimension for limit in replaced.limits] == [CONCURRENCY]
    assert len(cleared.limits) == 0


async def test_same_values_change_no_revision(tenant: AdminService):
    first = await update(tenant, weight=3.0, limits=[pb.QuotaLimit(dimension=REQUESTS, limit=60)])
    second = await update(tenant, weight=3.0, limits=[pb.QuotaLimit(dimension=REQUESTS, limit=60)])

    assert (second.revision, second.etag) == (first.revision, first.etag)


async def test_weight_out_of_range_is_refused(tenant: AdminService):
    for weight in (-1.0, 1000.5, math.nan, math.inf):
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, update_request(weight=weight))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("quota_policy.weight",)), weight


async def test_weight_of_zero_is_refused_where_the_mask_names_it(tenant: AdminService):
    refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, update_request(paths=("weight",)))

    assert refused.fields == ("quota_policy.weight",)


async def test_bad_limit_is_refused_by_its_path(tenant: AdminService):
    for limit, path in (
        ({"limit": 5}, "limits[0].dimension"),
        ({"dimension": 99, "limit": 5}, "limits[0].dimension"),
        ({"dimension": REQUESTS}, "limits[0].limit"),
        ({"dimension": REQUESTS, "limit": -1}, "limits[0].limit"),
        ({"dimension": REQUESTS, "limit": 10**15 + 1}, "limits[0].limit"),
        ({"dimension": REQUESTS, "limit": 5, "burst": -1}, "limits[0].burst"),
        ({"dimension": REQUESTS, "limit": 5, "period": Duration(seconds=0)}, "limits[0].period"),
        ({"dimension": REQUESTS, "limit": 5, "period": Duration(seconds=-1)}, "limits[0].period"),
        ({"dimension": REQUESTS, "limit": 5, "period": Duration(nanos=1)}, "limits[0].period"),
        ({"dimension": REQUESTS, "limit": 5, "period": Duration(seconds=10**9)}, "limits[0].period"),
        ({"dimension": REQUESTS, "limit": 5, "model": "a\nb"}, "limits[0].model"),
        ({"dimension": CONCURRENCY, "limit": 5, "burst": 2}, "limits[0]"),
        ({"dimension": CONCURRENCY, "limit": 5, "period": Duration(seconds=60)}, "limits[0]"),
    ):
        request = update_request(limits=[pb.QuotaLimit(**limit)])
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (f"quota_policy.{path}",)), limit


async def test_two_limits_of_one_dimension_are_refused(tenant: AdminService):
    twice = [pb.QuotaLimit(dimension=REQUESTS, limit=5), pb.QuotaLimit(dimension=REQUESTS, limit=6)]

    refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, update_request(limits=twice))

    assert refused.fields == ("quota_policy.limits[1]",)


async def test_modes_and_the_ways_of_several_gateways_can_be_chosen(tenant: AdminService):
    updated = await update(tenant, mode=pb.QUOTA_MODE_BORROW, strict=True, max_overdraft=500)
    back = await update(tenant, paths=("mode", "strict", "max_overdraft"))

    assert (updated.mode, updated.strict, updated.max_overdraft) == (pb.QUOTA_MODE_BORROW, True, 500)
    assert (back.mode, back.strict, back.max_overdraft) == (pb.QUOTA_MODE_ENFORCE, False, 0)


async def test_setting_that_there_is_not_is_refused(tenant: AdminService):
    for field, value in (("mode", 9), ("reservation", 9), ("max_overdraft", -1), ("time_zone", "Moon/Base")):
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, update_request(**{field: value}))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (f"quota_policy.{field}",)), value


async def test_budgets_prices_and_the_way_of_reserving_come_back(tenant: AdminService):
    budgets = [pb.QuotaBudget(window=pb.BUDGET_WINDOW_MONTH, limit=9000, model="small")]
    weights = [pb.CostWeights(model="small", input_token=10, cached_input_token=1, output_token=40)]
    updated = await update(
        tenant,
        budgets=budgets,
        cost_weights=weights,
        time_zone="Europe/Berlin",
        reservation=pb.RESERVATION_MODE_EXPECTED,
    )
    back = await update(tenant, paths=("budgets", "cost_weights", "time_zone", "reservation"))

    assert (list(updated.budgets), list(updated.cost_weights)) == (budgets, weights)
    assert (updated.time_zone, updated.reservation) == ("Europe/Berlin", pb.RESERVATION_MODE_EXPECTED)
    assert (len(back.budgets), len(back.cost_weights)) == (0, 0)
    assert (back.time_zone, back.reservation) == ("UTC", pb.RESERVATION_MODE_UNSPECIFIED)


async def test_bad_budget_is_refused_by_its_path(tenant: AdminService):
    for budget, path in (
        ({"limit": 5}, "budgets[0].window"),
        ({"window": pb.BUDGET_WINDOW_DAY}, "budgets[0].limit"),
        ({"window": pb.BUDGET_WINDOW_DAY, "limit": 10**15 + 1}, "budgets[0].limit"),
        ({"window": pb.BUDGET_WINDOW_DAY, "limit": 5, "model": "a\nb"}, "budgets[0].model"),
    ):
        request = update_request(budgets=[pb.QuotaBudget(**budget)])
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (f"quota_policy.{path}",)), budget


async def test_bad_price_is_refused_by_its_path(tenant: AdminService):
    for price, path in (
        ({"input_token": -1}, "cost_weights[0].input_token"),
        ({"output_token": 10**9 + 1}, "cost_weights[0].output_token"),
        ({"input_token": 1, "cached_input_token": 2}, "cost_weights[0].cached_input_token"),
        ({"model": "x" * 201}, "cost_weights[0].model"),
    ):
        request = update_request(cost_weights=[pb.CostWeights(**price)])
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (f"quota_policy.{path}",)), price


async def test_two_budgets_or_prices_of_one_thing_are_refused(tenant: AdminService):
    budget, price = pb.QuotaBudget(window=pb.BUDGET_WINDOW_DAY, limit=5), pb.CostWeights(output_token=2)
    for fields, path in (
        ({"budgets": [budget, budget]}, "budgets[1]"),
        ({"cost_weights": [price, price]}, "cost_weights[1]"),
    ):
        refused = await tenant.refused(tenant.stub.UpdateQuotaPolicy, update_request(**fields))
        assert refused.fields == (f"quota_policy.{path}",)


async def test_what_becomes_of_requests_without_a_store_can_be_chosen(tenant: AdminService):
    updated = await update(tenant, on_store_loss=pb.STORE_LOSS_ACTION_FAIL_CLOSED)
    back = await update(tenant, paths=("on_store_loss",))

    assert updated.on_store_loss == pb.STORE_LOSS_ACTION_FAIL_CLOSED
    assert back.on_store_loss == pb.STORE_LOSS_ACTION_SERVE_STALE


async def test_key_can_have_limits_but_no_weight(tenant: AdminService):
    key = await tenant.create_key()
    limits = [pb.QuotaLimit(dimension=CONCURRENCY, limit=2)]

    heavy = await tenant.refused(
        tenant.stub.CreateQuotaPolicy,
        pb.CreateQuotaPolicyRequest(
            parent=key.name, quota_policy_id="default", quota_policy=pb.QuotaPolicy(weight=2, limits=limits)
        ),
    )
    request = pb.CreateQuotaPolicyRequest(
        parent=key.name, quota_policy_id="default", quota_policy=pb.QuotaPolicy(limits=limits)
    )
    created = await tenant.call(tenant.stub.CreateQuotaPolicy, request)
    whole = await update(tenant, name=created.name, paths=("*",), limits=limits)

    assert heavy.fields == ("quota_policy.weight",)
    assert (created.name, created.weight) == (f"{key.name}/quotaPolicies/default", 0.0)
    assert whole.limits == created.limits


async def test_second_policy_of_a_team_is_refused(tenant: AdminService):
    request = pb.CreateQuotaPolicyRequest(parent=TEAM, quota_policy_id="other")

    refused = await tenant.refused(tenant.stub.CreateQuotaPolicy, request)

    assert refused.code == "ALREADY_EXISTS"


async def test_policies_are_listed_at_the_depth_of_the_parent(tenant: AdminService):
    for parent, expected in (
        ("organizations/-", [f"{ORG}/quotaPolicies/default"]),
        (f"{ORG}/teams/-", [POLICY]),
        ("organizations/-/teams/-/apiKeys/-", []),
    ):
        listed = await tenant.call(tenant.stub.ListQuotaPolicies, pb.ListQuotaPoliciesRequest(parent=parent))
        assert [policy.name for policy in listed.quota_policies] == expected


async def test_malformed_policy_name_is_refused(tenant: AdminService):
    for name in (TEAM, f"{TEAM}/quotaPolicies/", f"{TEAM}/quotaPolicies/-", "quotaPolicies/default"):
        refused = await tenant.refused(tenant.stub.GetQuotaPolicy, pb.GetQuotaPolicyRequest(name=name))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("name",)), name
