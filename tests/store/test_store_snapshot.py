"""The snapshot that requests are decided on equals the tables, however it came about."""

from contextlib import suppress
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.store.cache import TenancyCache
from gateway.store.db import Database
from gateway.store.enums import Dimension, KeyScope, State
from gateway.store.errors import AlreadyExistsError, PreconditionFailedError
from gateway.store.key_ends import delete_key, revoke_key, undelete_key
from gateway.store.keys import create_key, list_keys, update_key
from gateway.store.organizations import list_organizations, update_organization
from gateway.store.priority_classes import (
    create_priority_class,
    delete_priority_class,
    list_priority_classes,
    update_priority_class,
)
from gateway.store.quota_policies import create_quota_policy, list_quota_policies, update_quota_policy
from gateway.store.records import (
    ApiKeySettings,
    Page,
    PriorityClassSettings,
    QuotaLimit,
    QuotaPolicySettings,
    ResourcePath,
    TeamSettings,
)
from gateway.store.snapshot import TenancySnapshot
from gateway.store.teams import delete_team, list_teams, undelete_team, update_team
from tests.store.tenants import make_change, make_key, make_organization, make_secret, make_team

EVERYTHING = Page(10_000)
NUM_WALK_STEPS = 12


async def read_in_full(database: Database) -> TenancySnapshot:
    return await TenancyCache(database).refresh()


class RandomAdministrator:
    """Makes one random change after another; the same seed makes the same ones."""

    def __init__(self, database: Database, seed: int) -> None:
        self._database = database
        self._random = Random(seed)

    async def act(self) -> None:
        actions = (
            self._add,
            self._add,
            self._edit_tenant,
            self._edit_key,
            self._edit_policy,
            self._limit_key,
            self._delete_or_undelete,
            self._edit_class,
        )
        with suppress(PreconditionFailedError, AlreadyExistsError):  # about or below what is deleted
            await self._random.choice(actions)()

    async def _add(self) -> None:
        organizations = await list_organizations(self._database, EVERYTHING)
        teams = await list_teams(self._database, ResourcePath("-"), EVERYTHING)
        depth = self._random.randrange(3)
        if depth == 0 or not organizations:
            await make_organization(self._database)
        elif depth == 1 or not teams:
            await make_team(self._database, self._random.choice(organizations))
        else:
            await make_key(self._database, self._random.choice(teams), ApiKeySettings(model_grants=("small",)))

    async def _edit_tenant(self) -> None:
        organizations = await list_organizations(self._database, EVERYTHING)
        teams = await list_teams(self._database, ResourcePath("-"), EVERYTHING)
        state = self._random.choice(list(State))
        if teams and self._random.random() < 0.5:
            grants = tuple(self._random.sample(("batch", "default", "priority"), self._random.randrange(4)))
            path = self._random.choice(teams).path
            edited = TeamSettings(state=state, default_class="batch", class_grants=grants)
            await update_team(self._database, make_change(), path, lambda _: edited)
        elif organizations:
            path = self._random.choice(organizations).path
            await update_organization(self._database, make_change(), path, lambda old: replace(old, state=state))

    async def _edit_key(self) -> None:
        keys = await list_keys(self._database, ResourcePath("-", "-"), EVERYTHING)
        if not keys:
            return
        path = self._random.choice(keys).path
        if self._random.random() < 0.3:
            await revoke_key(self._database, make_change(), path, "test")
        else:
            scopes = (self._random.choice((KeyScope.INFERENCE, KeyScope.QUOTA_READ)),)
            await update_key(self._database, make_change(), path, lambda old: replace(old, scopes=scopes))

    async def _edit_policy(self) -> None:
        parents = (ResourcePath("-"), ResourcePath("-", "-"), ResourcePath("-", "-", "-"))
        policies = await list_quota_policies(self._database, self._random.choice(parents), EVERYTHING)
        if not policies:
            return
        policy = self._random.choice(policies)
        weight = None if policy.path.api_key else float(self._random.randint(1, 9))
        edited = QuotaPolicySettings(weight=weight, limits=self._limits())
        await update_quota_policy(self._database, make_change(), policy.path, policy.slug, lambda _: edited)

    async def _limit_key(self) -> None:
        keys = await list_keys(self._database, ResourcePath("-", "-"), EVERYTHING)
        limited = await list_quota_policies(self._database, ResourcePath("-", "-", "-"), EVERYTHING)
        free = [key.path for key in keys if key.path not in {policy.path for policy in limited}]
        if free:
            policy = QuotaPolicySettings(weight=None, limits=self._limits())
            await create_quota_policy(self._database, make_change(), self._random.choice(free), "default", policy)

    async def _delete_or_undelete(self) -> None:
        everything = replace(EVERYTHING, shows_deleted=True)
        teams = await list_teams(self._database, ResourcePath("-"), everything)
        keys = await list_keys(self._database, ResourcePath("-", "-"), everything)
        if not teams + keys:
            return
        chosen = self._random.choice(teams + keys)
        by_kind = (delete_team, undelete_team) if chosen.path.api_key is None else (delete_key, undelete_key)
        await by_kind[chosen.deleted_at is not None](self._database, make_change(), chosen.path)

    async def _edit_class(self) -> None:
        rank = self._random.randrange(300)
        if "nightly" not in {named.id for named in await list_priority_classes(self._database, EVERYTHING)}:
            await create_priority_class(self._database, make_change(), "nightly", PriorityClassSettings(rank))
        elif self._random.random() < 0.5:
            await delete_priority_class(self._database, make_change(), "nightly")
        else:
            await update_priority_class(self._database, make_change(), "nightly", lambda _: PriorityClassSettings(rank))

    def _limits(self) -> tuple[QuotaLimit, ...]:
        dimensions = self._random.sample((Dimension.REQUESTS, Dimension.INPUT_TOKENS, Dimension.OUTPUT_TOKENS), 2)
        return tuple(QuotaLimit(dimension, self._random.randint(1, 99), 60_000, 9) for dimension in dimensions)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), strides=st.lists(st.integers(1, 4), min_size=3, max_size=NUM_WALK_STEPS))
async def test_reading_only_what_changed_gives_the_same_as_reading_everything(
    database: Database, seed: int, strides: list[int]
) -> None:
    administrator, tenancy = RandomAdministrator(database, seed), TenancyCache(database)
    for num_changes in strides:
        for _ in range(num_changes):
            await administrator.act()
        snapshot = await tenancy.refresh()

        assert snapshot == await read_in_full(database)
        # One version of each entry: what hangs below another is the very entry that the index has.
        assert all(
            team.organization is snapshot.organizations[team.organization.id] for team in snapshot.teams.values()
        )
        assert all(key.team is None or key.team is snapshot.teams[key.team.id] for key in snapshot.keys.values())


async def test_the_snapshot_says_everything_that_a_request_is_decided_on(database: Database) -> None:
    organization = await make_organization(database, "acme")
    team = await make_team(database, organization, "search", TeamSettings(class_grants=("batch",)))
    key = await make_key(database, team, ApiKeySettings(model_grants=("small",), class_grants=("batch",)))
    limits = (QuotaLimit(Dimension.CONCURRENCY, 4, None, None),)
    await update_quota_policy(
        database, make_change(), team.path, "default", lambda old: replace(old, weight=2.5, limits=limits)
    )

    snapshot = await TenancyCache(database).refresh()

    assert {name: cls.rank for name, cls in snapshot.classes.items()} == {"priority": 0, "default": 100, "batch": 200}
    assert key.path.api_key is not None
    record = snapshot.keys[key.path.api_key]
    assert record.team is not None
    assert (record.key_id, record.secrets, record.policy, record.is_platform) == (key.id, key.secrets, None, False)
    assert (record.team.slug, record.team.weight, record.team.policy.limits) == ("search", 2.5, limits)
    assert record.team.default_class == "default"
    assert record.team.class_grants == {"default", "batch"}
    assert (record.team.organization.slug, record.team.organization.weight) == ("acme", 1.0)
    assert len(record.team.cache_salt) == 32


async def test_teams_have_one_salt_only_where_both_share_in_one_organization(database: Database) -> None:
    acme, zeta = await make_organization(database, "acme"), await make_organization(database, "zeta")
    names = {}
    for organization, name in ((acme, "a"), (acme, "b"), (acme, "own"), (zeta, "z")):
        team = await make_team(database, organization, name)
        key = await make_key(database, team)
        names[name] = key.path.api_key
        if name != "own":
            change = make_change()
            await update_team(database, change, team.path, lambda old: replace(old, shares_prefix_cache=True))

    snapshot = await TenancyCache(database).refresh()

    salts = {name: snapshot.keys[public_id].team.cache_salt for name, public_id in names.items()}
    assert salts["a"] == salts["b"]
    assert len(set(salts.values())) == 3
    assert {len(salt) for salt in salts.values()} == {32}


async def test_a_platform_key_has_no_team(database: Database) -> None:
    settings = ApiKeySettings(scopes=(KeyScope.ADMIN,))
    await create_key(database, make_change(), ResourcePath(None, None, "platform0000"), settings, make_secret())

    record = (await TenancyCache(database).refresh()).keys["platform0000"]

    assert record.is_platform
    assert record.scopes == {KeyScope.ADMIN}


async def test_a_snapshot_never_changes(database: Database) -> None:
    organization = await make_organization(database, "acme")
    tenancy = TenancyCache(database)
    before = await tenancy.refresh()

    await update_organization(
        database, make_change(), organization.path, lambda old: replace(old, state=State.SUSPENDED)
    )
    after = await tenancy.refresh()

    assert before.organizations[organization.id].state is State.ACTIVE
    assert after.organizations[organization.id].state is State.SUSPENDED
    with pytest.raises(TypeError):
        after.organizations[organization.id] = before.organizations[organization.id]  # type: ignore[index]  # read-only
