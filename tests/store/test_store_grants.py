"""Temporary grants, budgets, prices and refusals in Postgres."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text
from uuid_utils.compat import uuid7

from gateway.quota_terms import Calendar
from gateway.store.cache import TenancyCache
from gateway.store.changes import Change
from gateway.store.db import Database
from gateway.store.denials import DenialEvent, forget_denials, insert_denials, list_denials
from gateway.store.enums import Dimension, ReservationMode
from gateway.store.errors import InvalidValueError, NotFoundError, StoreConflictError
from gateway.store.grants import NewGrant, end_grant, grant_quota
from gateway.store.quota_policies import get_quota_policy, update_quota_policy
from gateway.store.records import QuotaBudget, QuotaCost, QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.store.tenants import make_change, make_organization, make_team

REQUESTS = QuotaLimit(Dimension.REQUESTS, 60, 60_000, 10)
SETTINGS = QuotaPolicySettings(
    limits=(REQUESTS,),
    time_zone="Europe/Berlin",
    reservation=ReservationMode.EXPECTED,
    budgets=(QuotaBudget(Calendar.DAY, 500, "small"), QuotaBudget(Calendar.MONTH, 9000)),
    costs=(QuotaCost(1, 1, 2), QuotaCost(10, 0, 20, "small")),
)


async def make_policy(database: Database, settings: QuotaPolicySettings = SETTINGS) -> ResourcePath:
    team = await make_team(database, await make_organization(database))
    await update_quota_policy(database, make_change(), team.path, "default", lambda _: settings)
    return team.path


def new_grant(amount: int = 120, **fields) -> NewGrant:
    ends = datetime.now(UTC) + timedelta(hours=1)
    return replace(NewGrant(Dimension.REQUESTS, None, "", amount, None, ends, "a launch"), **fields)


async def test_every_part_of_a_policy_comes_back_as_it_was_written(database: Database) -> None:
    path = await make_policy(database)

    assert (await get_quota_policy(database, path, "default")).settings == SETTINGS


async def test_parts_in_another_order_are_no_change(database: Database) -> None:
    path = await make_policy(database)
    before = await get_quota_policy(database, path, "default")
    turned = replace(SETTINGS, budgets=SETTINGS.budgets[::-1], costs=SETTINGS.costs[::-1])

    after = await update_quota_policy(database, make_change(), path, "default", lambda _: turned)

    assert after.etag == before.etag


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (replace(SETTINGS, budgets=(QuotaBudget(Calendar.DAY, 5), QuotaBudget(Calendar.DAY, 6))), "budgets"),
        (replace(SETTINGS, budgets=(QuotaBudget(Calendar.DAY, 0),)), "ck_quota_budget_amount"),
        (replace(SETTINGS, costs=(QuotaCost(1, 1, 2), QuotaCost(2, 1, 2))), "costs"),
        (replace(SETTINGS, costs=(QuotaCost(1, 2, 2),)), "ck_quota_cost_weights"),
    ],
)
async def test_bad_parts_are_refused_by_field(database: Database, settings: QuotaPolicySettings, field: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        await make_policy(database, settings)
    assert refused.value.field == field


async def test_a_grant_reaches_the_snapshot_and_is_audited(database: Database) -> None:
    path = await make_policy(database)
    cache = TenancyCache(database)
    before = await cache.refresh()
    grant = new_grant()

    policy = await grant_quota(database, replace(make_change(), actor="apiKeys/root"), path, "default", grant)

    after = await cache.refresh()
    (team,) = after.teams.values()
    assert after.revision == before.revision + 1
    assert team.policy.grants == policy.grants
    (made,) = policy.grants
    assert (made.amount, made.expires_at, made.creator) == (120, grant.expires_at, "apiKeys/root")
    async with database.session() as session:
        event = (await session.execute(text("SELECT * FROM audit_event ORDER BY id DESC LIMIT 1"))).mappings().one()
    assert event["action"] == "quotaPolicies.grantTemporaryQuota"
    assert event["resource"] == f"{path.name}/quotaPolicies/default"
    assert event["before"] == {"temporary_quotas": []}
    assert event["after"]["temporary_quotas"][0]["reason"] == "a launch"


async def test_a_grant_that_has_ended_is_not_read_again(database: Database) -> None:
    path = await make_policy(database)
    await grant_quota(database, make_change(), path, "default", new_grant())
    async with database.session() as session:
        await session.execute(text("UPDATE quota_grant SET created_at = now() - interval '2 hours'"))
        await session.execute(text("UPDATE quota_grant SET expires_at = now()"))

    assert (await get_quota_policy(database, path, "default")).grants == ()


async def test_a_retry_grants_once(database: Database) -> None:
    path = await make_policy(database)
    change = Change("apiKeys/root", request_id=uuid4(), fingerprint=b"1")

    first = await grant_quota(database, change, path, "default", new_grant())
    second = await grant_quota(database, change, path, "default", new_grant())

    assert second == first
    assert len(second.grants) == 1


async def test_a_grant_can_be_ended_before_its_time(database: Database) -> None:
    path = await make_policy(database)
    cache = TenancyCache(database)
    await grant_quota(database, make_change(), path, "default", new_grant(120))
    granted = await grant_quota(database, make_change(), path, "default", new_grant(240, reason="another launch"))
    before = await cache.refresh()

    policy = await end_grant(database, make_change(), path, "default", granted.grants[0].id)

    after = await cache.refresh()
    (team,) = after.teams.values()
    assert after.revision == before.revision + 1
    assert [grant.amount for grant in policy.grants] == [240]
    assert team.policy.grants == policy.grants
    async with database.session() as session:
        event = (await session.execute(text("SELECT * FROM audit_event ORDER BY id DESC LIMIT 1"))).mappings().one()
    assert event["action"] == "quotaPolicies.endTemporaryQuota"
    reasons = [[grant["reason"] for grant in event[side]["temporary_quotas"]] for side in ("before", "after")]
    assert reasons == [["a launch", "another launch"], ["another launch"]]


async def test_a_grant_is_ended_once_and_a_retry_is_no_error(database: Database) -> None:
    path = await make_policy(database)
    (grant,) = (await grant_quota(database, make_change(), path, "default", new_grant())).grants
    change = Change("apiKeys/root", request_id=uuid4(), fingerprint=b"1")

    first = await end_grant(database, change, path, "default", grant.id)
    second = await end_grant(database, change, path, "default", grant.id)

    assert second == first
    with pytest.raises(NotFoundError, match=str(grant.id)):
        await end_grant(database, make_change(), path, "default", grant.id)


async def test_a_dry_run_and_an_old_etag_end_nothing(database: Database) -> None:
    path = await make_policy(database)
    (grant,) = (await grant_quota(database, make_change(), path, "default", new_grant())).grants

    shown = await end_grant(database, replace(make_change(), validate_only=True), path, "default", grant.id)
    with pytest.raises(StoreConflictError):
        await end_grant(database, replace(make_change(), etag="old"), path, "default", grant.id)

    assert shown.grants == ()
    assert len((await get_quota_policy(database, path, "default")).grants) == 1


async def test_a_dry_run_grants_nothing(database: Database) -> None:
    path = await make_policy(database)

    shown = await grant_quota(database, replace(make_change(), validate_only=True), path, "default", new_grant())

    assert len(shown.grants) == 1
    assert (await get_quota_policy(database, path, "default")).grants == ()


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"dimension": Dimension.INPUT_TOKENS}, "dimension"),
        ({"model": "large"}, "dimension"),
        ({"amount": 60}, "limit"),
        ({"dimension": None, "calendar": Calendar.WEEK}, "window"),
        ({"dimension": None, "calendar": Calendar.MONTH, "amount": 9000}, "limit"),
        ({"expires_at": datetime(2020, 1, 1, tzinfo=UTC)}, "expire_time"),
        ({"reason": ""}, "ck_quota_grant_reason"),
    ],
)
async def test_a_grant_that_raises_nothing_is_refused(database: Database, fields, field: str) -> None:
    path = await make_policy(database)
    with pytest.raises(InvalidValueError) as refused:
        await grant_quota(database, make_change(), path, "default", new_grant(**fields))
    assert refused.value.field == field


async def test_a_grant_needs_a_policy(database: Database) -> None:
    with pytest.raises(NotFoundError):
        await grant_quota(database, make_change(), ResourcePath("nobody"), "default", new_grant())


def denial(moment: datetime) -> DenialEvent:
    return DenialEvent(
        id=uuid7(),
        denied_at=moment,
        organization_id=UUID(int=1),
        team_id=UUID(int=2),
        key_id=UUID(int=3),
        model="small",
        priority_class="default",
        input_tokens=5,
        max_output_tokens=8,
        reserved_tokens=13,
        reason="RATE_LIMITED",
        is_shadow=False,
        nodes=("organizations/acme/teams/search", "organizations/acme"),
        dimensions=("REQUESTS", "BUDGET"),
        waits_ms=(250, -1),
        policy_revision=7,
    )


async def test_refusals_are_written_once_and_read_in_pages(database: Database) -> None:
    now = datetime.now(UTC)
    events = [denial(now) for _ in range(5)]
    await insert_denials(database, events)
    await insert_denials(database, events[:2])
    await insert_denials(database, [])

    until = now + timedelta(seconds=1)
    first = await list_denials(database, now, until, None, 3)
    rest = await list_denials(database, now, until, first[-1].id, 3)

    assert first + rest == events
    assert await list_denials(database, until, until + timedelta(days=1), None, 3) == []


async def test_old_refusals_are_forgotten(database: Database) -> None:
    now = datetime.now(UTC)
    old, new = denial(now - timedelta(days=31)), denial(now)
    await insert_denials(database, [old, new])

    assert await forget_denials(database) == 1
    assert await list_denials(database, now - timedelta(days=60), now + timedelta(days=1), None, 10) == [new]
