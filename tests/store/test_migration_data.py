"""Steps on a database that is in use: nothing of what was there is lost, and the previous release goes on writing."""

from uuid import UUID, uuid4

from sqlalchemy import text
from uuid_utils.compat import uuid7

from gateway.store import migrate
from gateway.store.audit import ChainIntact, verify_chain
from gateway.store.cache import TenancyCache
from gateway.store.db import Database
from gateway.store.enums import KeyScope
from gateway.store.keys import create_key
from gateway.store.organizations import create_organization
from gateway.store.quota_policies import get_quota_policy
from gateway.store.records import ApiKeySettings, OrganizationSettings, ResourcePath, TeamSettings
from gateway.store.teams import create_team
from gateway.store.usage import day_of
from tests.store.tenants import make_change, make_secret

PREVIOUS_RELEASE = "0005_usage"
# The columns that the previous release writes, as its models had them.
ORGANIZATION = (
    "INSERT INTO organization (id, slug, display_name, state, revision, created_at, updated_at) "
    "VALUES (:id, :slug, '', 'ACTIVE', 1, now(), now())"
)
TEAM = (
    "INSERT INTO team (id, org_id, slug, display_name, state, cache_salt, default_class, class_grants, revision, "
    "created_at, updated_at) "
    "VALUES (:id, :org_id, :slug, '', 'ACTIVE', :salt, 'default', ARRAY['batch'], 1, now(), now())"
)
KEY = (
    "INSERT INTO api_key (id, public_id, org_id, team_id, display_name, scopes, model_grants, class_grants, ip_cidrs, "
    "revision, created_at, updated_at) VALUES (:id, :public_id, :org_id, :team_id, '', ARRAY['inference'], '{}', '{}', "
    "'{}', 1, now(), now())"
)
SECRET = (
    "INSERT INTO api_key_secret (key_id, hmac, pepper_version, not_after, created_at) "
    "VALUES (:id, :hmac, 1, NULL, now())"
)
POLICY = (
    "INSERT INTO quota_policy (id, org_id, team_id, key_id, slug, mode, weight, on_store_loss, max_overdraft, strict, "
    "revision, created_at, updated_at) "
    "VALUES (:id, :org_id, :team_id, NULL, 'default', 'ENFORCE', 2.5, 'SERVE_STALE', 0, false, 1, now(), now())"
)
LIMIT = (
    "INSERT INTO quota_limit (policy_id, dimension, model, amount, period_ms, burst) "
    "VALUES (:id, 'REQUESTS', '', 60, 60000, 10)"
)
USAGE = (
    "INSERT INTO usage_event (day, generation_id, request_id, organization_id, team_id, key_id, model, priority_class, "
    "input_tokens, cached_input_tokens, output_tokens, reserved_tokens, billed_tokens, discarded_tokens, "
    "recomputed_tokens, num_preemptions, finish_reason, source, queue_ns, prefill_ns, decode_ns, preempted_ns, "
    "finished_at, policy_revision, labels) VALUES (:day, :id, '', :org_id, "
    ":team_id, :key_id, 'm', 'default', 10, 0, 5, 20, 15, 0, 0, 0, 'STOP', 'ENGINE', 0, 1, 2, 0, now(), 1, '{}')"
)


async def write_as_the_previous_release(database: Database) -> dict[str, UUID]:
    """An organization with a team, a key, policies and one generation's usage."""
    ids = {name: UUID(str(uuid7())) for name in ("organization", "team", "key", "usage")}
    tree = {"org_id": ids["organization"], "team_id": ids["team"]}
    public_id = uuid4().hex[:12]
    async with database.session() as session:
        await session.execute(text(ORGANIZATION), {"id": ids["organization"], "slug": f"org-{public_id}"})
        salt = {"id": ids["team"], "org_id": ids["organization"], "slug": "team", "salt": bytes(32)}
        await session.execute(text(TEAM), salt)
        await session.execute(text(KEY), {"id": ids["key"], "public_id": public_id, **tree})
        await session.execute(text(SECRET), {"id": ids["key"], "hmac": bytes(32)})
        for team_id in (None, ids["team"]):
            policy_id = uuid4()
            await session.execute(text(POLICY), {"id": policy_id, "org_id": ids["organization"], "team_id": team_id})
            await session.execute(text(LIMIT), {"id": policy_id})
        usage = {"id": ids["usage"], "day": day_of(ids["usage"]), "key_id": ids["key"], **tree}
        await session.execute(text(USAGE), usage)
        await session.execute(text("UPDATE policy_revision SET revision = revision + 1"))
    return ids


async def contents(database: Database) -> dict[str, list[str]]:
    """The rows of the previous release's tables, in the columns that it knows."""
    columns = {
        "organization": "id, slug, display_name, state, created_at",
        "team": "id, org_id, slug, state, cache_salt, default_class, class_grants",
        "api_key": "id, public_id, org_id, team_id, scopes, expires_at, revoked_at",
        "api_key_secret": "key_id, hmac, pepper_version, not_after",
        "quota_policy": "id, org_id, team_id, key_id, slug, mode, weight, strict",
        "quota_limit": "policy_id, dimension, model, amount, period_ms, burst",
        "usage_event": "day, generation_id, input_tokens, output_tokens, billed_tokens, finish_reason",
        "audit_event": "id, actor, action, resource, before, after, hash",
        "priority_class": "name, rank, min_share, preemptible",
    }
    async with database.session() as session:
        found = {}
        for table, names in columns.items():
            rows = await session.execute(text(f"SELECT ROW({names})::text FROM {table} ORDER BY 1"))
            found[table] = [str(row) for row in rows.scalars()]
        return found


async def test_up_down_and_up_again_keeps_what_was_there(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url, PREVIOUS_RELEASE)
    database = Database(empty_database_url)
    await write_as_the_previous_release(database)
    before = await contents(database)

    for revision in (migrate.HEAD, PREVIOUS_RELEASE, migrate.HEAD):
        step = migrate.upgrade if revision == migrate.HEAD else migrate.downgrade
        await step(empty_database_url, revision)
        assert await contents(database) == before

    await database.close()


async def test_what_this_release_wrote_survives_the_way_back_and_up_again(empty_database_url: str) -> None:
    await migrate.upgrade(empty_database_url)
    database = Database(empty_database_url)
    path = ResourcePath("acme", "search")
    await create_organization(database, make_change(), ResourcePath("acme"), OrganizationSettings("Acme"))
    await create_team(database, make_change(), path, TeamSettings(class_grants=("batch",)))
    key = ResourcePath("acme", "search", "abcdefghijkl")
    await create_key(database, make_change(), key, ApiKeySettings(scopes=(KeyScope.INFERENCE,)), make_secret())
    before = await contents(database)

    await migrate.downgrade(empty_database_url, PREVIOUS_RELEASE)
    await migrate.upgrade(empty_database_url)

    assert await contents(database) == before
    assert await verify_chain(database) == ChainIntact(3)
    assert (await get_quota_policy(database, path, "default")).settings.weight == 1.0
    await database.close()


async def test_the_previous_release_writes_into_this_releases_schema_and_is_read(database: Database) -> None:
    ids = await write_as_the_previous_release(database)

    snapshot = await TenancyCache(database).refresh()

    team = snapshot.teams[ids["team"]]
    (key,) = [key for key in snapshot.keys.values() if key.key_id == ids["key"]]
    assert (team.organization.id, team.policy.weight, team.policy.limits[0].amount) == (ids["organization"], 2.5, 60)
    assert key.team is team
    assert not key.aborts_inflight
