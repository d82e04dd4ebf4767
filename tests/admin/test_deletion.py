"""Organizations, teams and keys: deleted, refused at once, taken back, and gone at last."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import pytest_asyncio
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.errors_auth import KeyRevokedError, TenantSuspendedError
from gateway.store.audit import ChainIntact, verify_chain
from gateway.store.cache import TenancyCache
from gateway.store.deletion import RETENTION, Purger, purge
from tests.admin.service import AdminService, Refused, bearer

ORG = "organizations/acme"
TEAM = f"{ORG}/teams/search"


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


async def delete_org(service: AdminService, **fields) -> pb.Organization:
    return await service.call(service.stub.DeleteOrganization, pb.DeleteOrganizationRequest(name=ORG, **fields))


async def delete_team(service: AdminService, **fields) -> pb.Team:
    return await service.call(service.stub.DeleteTeam, pb.DeleteTeamRequest(name=TEAM, **fields))


async def delete_key(service: AdminService, key: pb.ApiKey) -> pb.ApiKey:
    return await service.call(service.stub.DeleteApiKey, pb.DeleteApiKeyRequest(name=key.name))


async def authenticate(service: AdminService, key: pb.ApiKey):
    return await service.authenticator.authenticate([bearer(key.secret)[0][1]], "ipv4:127.0.0.1:1")


async def let_time_pass(service: AdminService) -> None:
    """Whatever is deleted is due to be purged."""
    async with service.database.session() as session:
        for table in ("organization", "team", "api_key"):
            await session.execute(text(f"UPDATE {table} SET purge_at = now() WHERE purge_at IS NOT NULL"))


async def test_deleted_team_says_when_it_is_gone_and_is_listed_only_on_request(tenant: AdminService):
    deleted = await delete_team(tenant)

    found = await tenant.call(tenant.stub.GetTeam, pb.GetTeamRequest(name=TEAM))
    listed = await tenant.call(tenant.stub.ListTeams, pb.ListTeamsRequest(parent=ORG))
    with_deleted = await tenant.call(tenant.stub.ListTeams, pb.ListTeamsRequest(parent=ORG, show_deleted=True))

    assert found == deleted
    assert deleted.state == pb.STATE_DELETED
    assert deleted.expire_time.ToDatetime() - deleted.delete_time.ToDatetime() == RETENTION
    assert list(listed.teams) == []
    assert list(with_deleted.teams) == [deleted]


async def test_undeleted_team_is_as_it_was(tenant: AdminService):
    suspended = pb.Team(name=TEAM, state=pb.STATE_SUSPENDED, display_name="Search")
    await tenant.call(tenant.stub.UpdateTeam, pb.UpdateTeamRequest(team=suspended))
    await delete_team(tenant)

    undeleted = await tenant.call(tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM))

    assert (undeleted.state, undeleted.display_name) == (pb.STATE_SUSPENDED, "Search")
    assert not undeleted.HasField("delete_time")


async def test_parent_with_live_children_is_not_deleted(tenant: AdminService):
    key = await tenant.create_key()

    of_team = await tenant.refused(tenant.stub.DeleteTeam, pb.DeleteTeamRequest(name=TEAM))
    of_org = await tenant.refused(tenant.stub.DeleteOrganization, pb.DeleteOrganizationRequest(name=ORG))
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name))
    await delete_team(tenant)

    assert of_team == of_org == Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", ())
    assert (await delete_org(tenant)).state == pb.STATE_DELETED


async def test_deleted_key_is_refused_at_once_and_works_again_when_it_is_undeleted(tenant: AdminService):
    key = await tenant.create_key()

    deleted = await delete_key(tenant, key)
    with pytest.raises(KeyRevokedError):
        await authenticate(tenant, key)
    await tenant.call(tenant.stub.UndeleteApiKey, pb.UndeleteApiKeyRequest(name=key.name))

    assert deleted.HasField("delete_time")
    assert deleted.HasField("purge_time")
    assert (await authenticate(tenant, key)).principal.team == "search"


async def test_keys_of_a_deleted_team_come_back_with_it(tenant: AdminService):
    key = await tenant.create_key()
    async with tenant.database.session() as session:  # a key that was made just before, on another gateway
        await session.execute(
            text("UPDATE team SET deleted_at = now(), purge_at = now() + interval '1 day', revision = 99")
        )
        await session.execute(text("UPDATE policy_revision SET revision = 99"))
    await tenant.cache.refresh()
    with pytest.raises(TenantSuspendedError):
        await authenticate(tenant, key)

    await tenant.call(tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM))

    assert (await authenticate(tenant, key)).principal.team == "search"


async def test_nothing_is_changed_about_or_made_below_what_is_deleted(tenant: AdminService):
    await delete_team(tenant)
    for method, request in (
        (tenant.stub.UpdateTeam, pb.UpdateTeamRequest(team=pb.Team(name=TEAM, display_name="x"))),
        (tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(parent=TEAM)),
        (
            tenant.stub.UpdateQuotaPolicy,
            pb.UpdateQuotaPolicyRequest(quota_policy=pb.QuotaPolicy(name=f"{TEAM}/quotaPolicies/default", weight=2)),
        ),
    ):
        assert (await tenant.refused(method, request)).code == "FAILED_PRECONDITION"

    await delete_org(tenant)
    for method, request in (
        (tenant.stub.CreateTeam, pb.CreateTeamRequest(parent=ORG, team_id="ads")),
        (tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM)),
    ):
        assert (await tenant.refused(method, request)).code == "FAILED_PRECONDITION"


async def test_name_of_what_is_deleted_stays_taken(tenant: AdminService):
    await delete_team(tenant)

    refused = await tenant.refused(tenant.stub.CreateTeam, pb.CreateTeamRequest(parent=ORG, team_id="search"))

    assert refused.code == "ALREADY_EXISTS"


async def test_deleting_twice_and_undeleting_the_living_is_refused(tenant: AdminService):
    refused = await tenant.refused(tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM))
    await delete_team(tenant)
    again = await tenant.refused(tenant.stub.DeleteTeam, pb.DeleteTeamRequest(name=TEAM))

    assert (refused.code, again.code) == ("ALREADY_EXISTS", "NOT_FOUND")


async def test_retry_of_a_deletion_returns_what_the_first_call_made(tenant: AdminService):
    request_id = str(uuid4())

    first = await delete_team(tenant, request_id=request_id)
    second = await delete_team(tenant, request_id=request_id)

    assert first == second


async def test_dry_run_and_stale_etag_delete_nothing(tenant: AdminService):
    would_be = await delete_team(tenant, validate_only=True)
    refused = await tenant.refused(tenant.stub.DeleteTeam, pb.DeleteTeamRequest(name=TEAM, etag="stale"))

    kept = await tenant.call(tenant.stub.GetTeam, pb.GetTeamRequest(name=TEAM))
    assert would_be.state == pb.STATE_DELETED
    assert (refused.code, refused.reason) == ("ABORTED", "ETAG_MISMATCH")
    assert kept.state == pb.STATE_ACTIVE


async def test_last_platform_key_is_not_deleted(tenant: AdminService):
    own = await tenant.call(tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent="-"))

    refused = await tenant.refused(tenant.stub.DeleteApiKey, pb.DeleteApiKeyRequest(name=own.api_keys[0].name))

    assert refused.code == "FAILED_PRECONDITION"
    assert await tenant.create_key()


async def test_purge_takes_what_is_due_with_all_below_it_and_nothing_else(tenant: AdminService):
    key = await tenant.create_key()
    policy = pb.CreateQuotaPolicyRequest(parent=key.name, quota_policy_id="default")
    await tenant.call(tenant.stub.CreateQuotaPolicy, policy)
    await tenant.create_org("other")
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name))
    await delete_team(tenant)
    await delete_org(tenant)

    num_before = await purge(tenant.database)
    await let_time_pass(tenant)
    num_purged = await purge(tenant.database)

    listed = await tenant.call(tenant.stub.ListOrganizations, pb.ListOrganizationsRequest(show_deleted=True))
    assert (num_before, num_purged) == (0, 3)
    assert [org.name for org in listed.organizations] == ["organizations/other"]
    assert isinstance(await verify_chain(tenant.database), ChainIntact)
    assert (await tenant.create_org()).name == ORG  # the name is free


async def test_what_is_due_is_not_undeleted(tenant: AdminService):
    await delete_team(tenant)
    await let_time_pass(tenant)

    refused = await tenant.refused(tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM))

    assert refused.code == "NOT_FOUND"


async def test_another_gateway_refuses_what_was_deleted_and_serves_what_was_undeleted(tenant: AdminService):
    other = TenancyCache(tenant.database)
    key = await tenant.create_key()
    await other.refresh()
    public_id = key.name.rpartition("/")[2]

    await delete_key(tenant, key)
    deleted = (await other.refresh()).keys[public_id]
    await tenant.call(tenant.stub.UndeleteApiKey, pb.UndeleteApiKeyRequest(name=key.name))
    undeleted = (await other.refresh()).keys[public_id]

    assert deleted.revoked_at is not None
    assert deleted.revoked_at <= datetime.now(UTC) + timedelta(seconds=1)
    assert undeleted.revoked_at is None


async def test_deletion_and_its_end_are_on_record(tenant: AdminService):
    await delete_team(tenant)
    await tenant.call(tenant.stub.UndeleteTeam, pb.UndeleteTeamRequest(name=TEAM))

    events = await tenant.call(tenant.stub.ListAuditEvents, pb.ListAuditEventsRequest(filter=f'resource = "{TEAM}"'))

    assert [event.action for event in events.audit_events] == ["teams.create", "teams.delete", "teams.undelete"]


async def test_what_is_due_is_purged_by_itself_also_after_an_outage(tenant: AdminService):
    await delete_team(tenant)
    await let_time_pass(tenant)
    request = pb.ListTeamsRequest(parent=ORG, show_deleted=True)
    purger = Purger(tenant.database, interval_s=0.01)
    async with tenant.database.session() as session:
        await session.execute(text("ALTER TABLE team RENAME COLUMN purge_at TO elsewhere"))
    running = asyncio.create_task(purger.run())
    try:
        for _ in range(3):  # turns for the purger, which fails
            await tenant.call(tenant.stub.ListOrganizations, pb.ListOrganizationsRequest())
        assert not running.done()
        async with tenant.database.session() as session:
            await session.execute(text("ALTER TABLE team RENAME COLUMN elsewhere TO purge_at"))
        async with asyncio.timeout(10):
            while (await tenant.call(tenant.stub.ListTeams, request)).teams:
                pass
    finally:
        running.cancel()
        await asyncio.wait([running])
