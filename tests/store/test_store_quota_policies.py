"""Weights and limits: one policy per organization, team and key, replaced as a whole, refused by field."""

from dataclasses import replace

import pytest

from gateway.quota_terms import Mode
from gateway.store.db import Database
from gateway.store.enums import Dimension, StoreLossAction
from gateway.store.errors import AlreadyExistsError, InvalidValueError, NotFoundError
from gateway.store.quota_policies import (
    create_quota_policy,
    get_quota_policy,
    list_quota_policies,
    update_quota_policy,
)
from gateway.store.records import Page, QuotaLimit, QuotaPolicySettings, ResourcePath
from tests.store.tenants import make_change, make_key, make_organization, make_team

REQUESTS = QuotaLimit(Dimension.REQUESTS, 60, 60_000, 10)
TOKENS = QuotaLimit(Dimension.TOTAL_TOKENS, 100_000, 60_000, 20_000, model="small")
CONCURRENCY = QuotaLimit(Dimension.CONCURRENCY, 4, None, None)


async def test_each_new_organization_and_team_has_the_default_policy(database: Database) -> None:
    organization = await make_organization(database)
    team = await make_team(database, organization)

    for path in (organization.path, team.path):
        policy = await get_quota_policy(database, path, "default")
        assert policy.settings == QuotaPolicySettings(weight=1.0, limits=(), mode=Mode.ENFORCE)
        assert policy.path == path


async def test_limits_are_replaced_as_a_whole(database: Database) -> None:
    organization = await make_organization(database)

    async def set_limits(*limits: QuotaLimit) -> tuple[QuotaLimit, ...]:
        await update_quota_policy(
            database, make_change(), organization.path, "default", lambda old: replace(old, limits=limits)
        )
        return (await get_quota_policy(database, organization.path, "default")).settings.limits

    assert await set_limits(REQUESTS, TOKENS, CONCURRENCY) == (CONCURRENCY, REQUESTS, TOKENS)
    assert await set_limits(replace(REQUESTS, amount=120), replace(TOKENS, model="")) == (
        replace(REQUESTS, amount=120),
        replace(TOKENS, model=""),
    )
    assert await set_limits() == ()


async def test_limits_in_another_order_are_no_change(database: Database) -> None:
    organization = await make_organization(database)

    async def set_limits(*limits: QuotaLimit) -> str:
        policy = await update_quota_policy(
            database, make_change(), organization.path, "default", lambda old: replace(old, limits=limits)
        )
        return policy.etag

    assert await set_limits(REQUESTS, TOKENS) == await set_limits(TOKENS, REQUESTS)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        (QuotaPolicySettings(limits=(REQUESTS, replace(REQUESTS, amount=1))), "limits"),
        (QuotaPolicySettings(limits=(replace(REQUESTS, amount=0),)), "ck_quota_limit_amount"),
        (QuotaPolicySettings(limits=(replace(REQUESTS, amount=2**63),)), ""),  # the database names no column
        (QuotaPolicySettings(limits=(replace(CONCURRENCY, burst=1),)), "ck_quota_limit_bucket"),
        (QuotaPolicySettings(weight=0.0), "ck_quota_policy_weight"),
        (QuotaPolicySettings(weight=None), "ck_quota_policy_weight"),
        (QuotaPolicySettings(max_overdraft=-1), "ck_quota_policy_max_overdraft"),
    ],
)
async def test_bad_policies_are_refused_by_field(database: Database, settings: QuotaPolicySettings, field: str) -> None:
    organization = await make_organization(database)

    with pytest.raises(InvalidValueError) as refusal:
        await update_quota_policy(database, make_change(), organization.path, "default", lambda _: settings)

    assert refusal.value.field == field


async def test_an_organization_a_team_and_a_key_have_one_policy_each(database: Database) -> None:
    team = await make_team(database, await make_organization(database))
    key = await make_key(database, team)
    settings = QuotaPolicySettings(None, (REQUESTS,), Mode.SHADOW, StoreLossAction.FAIL_CLOSED, 5, strict=True)

    made = await create_quota_policy(database, make_change(), key.path, "ci", settings)

    assert made.settings == settings
    assert await get_quota_policy(database, key.path, "ci") == made
    for path in (ResourcePath(team.path.organization), team.path, key.path):
        with pytest.raises(AlreadyExistsError):
            await create_quota_policy(database, make_change(), path, "second", QuotaPolicySettings())
    with pytest.raises(NotFoundError):
        await get_quota_policy(database, key.path, "second")


async def test_policies_are_listed_at_the_depth_of_the_parent(database: Database) -> None:
    acme = await make_organization(database, "acme")
    search = await make_team(database, acme, "search")
    await make_team(database, await make_organization(database, "zeta"), "search")
    key = await make_key(database, search)
    await create_quota_policy(database, make_change(), key.path, "default", QuotaPolicySettings(weight=None))

    async def names(parent: ResourcePath) -> list[str]:
        return [policy.path.name for policy in await list_quota_policies(database, parent, Page(10))]

    assert await names(ResourcePath("acme")) == ["organizations/acme"]
    assert await names(ResourcePath("-")) == ["organizations/acme", "organizations/zeta"]
    assert await names(ResourcePath("acme", "-")) == ["organizations/acme/teams/search"]
    assert await names(ResourcePath("-", "search")) == [
        "organizations/acme/teams/search",
        "organizations/zeta/teams/search",
    ]
    assert await names(ResourcePath("-", "-", "-")) == [key.path.name]
    with pytest.raises(NotFoundError):
        await names(ResourcePath("acme", "nobody"))
