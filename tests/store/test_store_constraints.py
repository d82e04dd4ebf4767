"""The schema refuses what no statement should ever write, whoever writes it."""

from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from gateway.store.db import Database
from gateway.store.errors import InvalidValueError
from tests.store.tenants import make_key, make_organization, make_team

# One valid row of each table, then one change each: (table, column, value as SQL, constraint).
BAD_VALUES = [
    ("organization", "slug", "''", "ck_organization_slug"),
    ("organization", "slug", "'Acme'", "ck_organization_slug"),
    ("organization", "slug", "'1acme'", "ck_organization_slug"),
    ("organization", "slug", "'acme corp'", "ck_organization_slug"),
    ("organization", "slug", "'acme' || chr(10)", "ck_organization_slug"),
    ("organization", "slug", "repeat('a', 64)", "ck_organization_slug"),
    ("organization", "state", "'DELETED'", "ck_organization_state"),
    ("team", "slug", "'-'", "ck_team_slug"),
    ("team", "state", "''", "ck_team_state"),
    ("team", "cache_salt", "'\\x00'", "ck_team_cache_salt"),
    ("team", "default_class", "'urgent'", "fk_team_default_class"),
    ("api_key", "public_id", "'short'", "ck_api_key_public_id"),
    ("api_key", "public_id", "'ab/defghijkl'", "ck_api_key_public_id"),
    ("api_key", "scopes", "'{}'", "ck_api_key_scopes"),
    ("api_key", "scopes", "'{admin}'", "ck_api_key_scopes"),
    ("api_key", "scopes", "'{inference,admin}'", "ck_api_key_scopes"),
    ("api_key", "scopes", "'{everything}'", "ck_api_key_scopes"),
    ("api_key", "team_id", "NULL", "ck_api_key_scopes"),
    ("api_key", "org_id", "NULL", "ck_api_key_scopes"),
    ("api_key", "team_id", "gen_random_uuid()", "fk_api_key_org_id_team_id"),
    ("api_key", "revoke_reason", "'leaked'", "ck_api_key_revoke_reason"),
    ("api_key_secret", "hmac", "'\\x00'", "ck_api_key_secret_hmac"),
    ("api_key_secret", "pepper_version", "0", "ck_api_key_secret_pepper_version"),
    ("api_key_secret", "key_id", "gen_random_uuid()", "fk_api_key_secret_key_id"),
    ("priority_class", "name", "'Default'", "ck_priority_class_name"),
    ("priority_class", "rank", "-1", "ck_priority_class_rank"),
    ("priority_class", "min_share", "1.01", "ck_priority_class_min_share"),
    ("priority_class", "min_share", "'NaN'", "ck_priority_class_min_share"),
    ("priority_class", "max_queue_wait_ms", "0", "ck_priority_class_max_queue_wait"),
    ("quota_policy", "slug", "'Default'", "ck_quota_policy_slug"),
    ("quota_policy", "mode", "'IGNORE'", "ck_quota_policy_mode"),
    ("quota_policy", "on_store_loss", "'PANIC'", "ck_quota_policy_on_store_loss"),
    ("quota_policy", "weight", "0", "ck_quota_policy_weight"),
    ("quota_policy", "weight", "NULL", "ck_quota_policy_weight"),
    ("quota_policy", "weight", "1000.001", "ck_quota_policy_weight"),
    ("quota_policy", "weight", "'NaN'", "ck_quota_policy_weight"),
    ("quota_policy", "weight", "'Infinity'", "ck_quota_policy_weight"),
    ("quota_policy", "max_overdraft", "-1", "ck_quota_policy_max_overdraft"),
    ("quota_policy", "team_id", "gen_random_uuid()", "fk_quota_policy_org_id_team_id"),
    ("quota_limit", "dimension", "'PAGES'", "ck_quota_limit_dimension"),
    ("quota_limit", "amount", "0", "ck_quota_limit_amount"),
    ("quota_limit", "period_ms", "0", "ck_quota_limit_period"),
    ("quota_limit", "burst", "0", "ck_quota_limit_burst"),
    ("quota_limit", "burst", "NULL", "ck_quota_limit_bucket"),
    ("quota_limit", "period_ms", "NULL", "ck_quota_limit_bucket"),
    ("quota_limit", "dimension", "'CONCURRENCY'", "ck_quota_limit_bucket"),
    ("policy_revision", "id", "2", "ck_policy_revision_one_row"),
]


@pytest.fixture
async def populated(database: Database) -> Database:
    team = await make_team(database, await make_organization(database, "acme"), "search")
    await make_key(database, team)
    async with database.session() as session:
        await session.execute(
            text(
                "INSERT INTO quota_limit (policy_id, dimension, model, amount, period_ms, burst) "
                "SELECT id, 'REQUESTS', '', 60, 60000, 10 FROM quota_policy WHERE team_id IS NOT NULL"
            )
        )
    return database


async def test_no_row_holds_a_bad_value(populated: Database) -> None:
    refused_by = {}
    for table, column, value, _ in BAD_VALUES:
        with pytest.raises(InvalidValueError) as refusal:
            async with populated.session() as session:
                await session.execute(text(f"UPDATE {table} SET {column} = {value}"))
        refused_by[table, column, value] = refusal.value.field

    assert refused_by == {(table, column, value): constraint for table, column, value, constraint in BAD_VALUES}


async def test_names_are_unique_where_they_must_be(populated: Database) -> None:
    duplicates = {
        "uq_organization_slug": "INSERT INTO organization SELECT gen_random_uuid(), slug, '', state, 0, now(), now() "
        "FROM organization",
        "uq_team_org_id_slug": "INSERT INTO team SELECT gen_random_uuid(), org_id, slug, '', state, cache_salt, "
        "default_class, class_grants, 0, now(), now() FROM team",
        "uq_api_key_public_id": "INSERT INTO api_key SELECT gen_random_uuid(), public_id, org_id, team_id, '', scopes, "
        "'{}', '{}', '{}', NULL, NULL, NULL, NULL, 0, now(), now() FROM api_key",
        "uq_quota_policy_scope": "INSERT INTO quota_policy SELECT gen_random_uuid(), org_id, team_id, key_id, 'other', "
        "mode, weight, on_store_loss, 0, false, 0, now(), now() FROM quota_policy WHERE team_id IS NULL",
        "pk_quota_limit": "INSERT INTO quota_limit SELECT * FROM quota_limit",
    }
    for constraint, statement in duplicates.items():
        with pytest.raises(InvalidValueError) as refusal:
            async with populated.session() as session:
                await session.execute(text(statement))
        assert refusal.value.field == constraint


async def test_a_key_cannot_point_at_another_organizations_team(populated: Database) -> None:
    other = await make_organization(populated)

    with pytest.raises(InvalidValueError) as refusal:
        async with populated.session() as session:
            await session.execute(text("UPDATE api_key SET org_id = :id"), {"id": other.id})

    assert refusal.value.field == "fk_api_key_org_id_team_id"


async def test_a_policy_cannot_govern_another_teams_key(populated: Database) -> None:
    organization = await make_organization(populated)
    team, other = await make_team(populated, organization), await make_team(populated, organization)
    key = await make_key(populated, team)

    with pytest.raises(InvalidValueError) as refusal:
        async with populated.session() as session:
            await session.execute(
                text("UPDATE quota_policy SET key_id = :key, weight = NULL WHERE team_id = :team"),
                {"key": key.id, "team": other.id},
            )

    assert refusal.value.field == "fk_quota_policy_org_id_team_id_key_id"


async def test_a_platform_key_has_the_admin_scope_and_no_other(populated: Database) -> None:
    insert = (
        "INSERT INTO api_key SELECT gen_random_uuid(), :public_id, NULL, NULL, '', CAST(:scopes AS text[]), "
        "'{}', '{}', '{}', NULL, NULL, NULL, NULL, 0, now(), now()"
    )
    for scopes in (["inference"], ["admin", "inference"], []):
        with pytest.raises(InvalidValueError, match="ck_api_key_scopes"):
            async with populated.session() as session:
                await session.execute(text(insert), {"public_id": uuid4().hex[:12], "scopes": scopes})
    async with populated.session() as session:
        await session.execute(text(insert), {"public_id": uuid4().hex[:12], "scopes": ["admin"]})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(weight=st.floats())
async def test_a_weight_is_stored_exactly_when_it_lies_in_range(populated: Database, weight: float) -> None:
    async def store() -> set[float]:
        async with populated.session() as session:
            statement = text("UPDATE quota_policy SET weight = :weight RETURNING weight")
            return set((await session.scalars(statement, {"weight": weight})).all())

    if 0 < weight <= 1000:  # false for NaN
        assert await store() == {weight}
    else:
        with pytest.raises(InvalidValueError, match="ck_quota_policy_weight"):
            await store()
