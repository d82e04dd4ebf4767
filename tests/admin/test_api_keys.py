"""API keys through the wire: shown once, stored as a hash, expiring, revocable."""

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from gateway.errors_auth import KeyRevokedError
from gateway.store.changes import Change
from gateway.store.enums import KeyScope
from gateway.store.keys import create_key
from gateway.store.records import ApiKeySettings, KeySecret, ResourcePath
from tests.admin.service import AdminService, Refused, bearer

TEAM = "organizations/acme/teams/search"


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


def stamp(moment: datetime) -> Timestamp:
    message = Timestamp()
    message.FromDatetime(moment)
    return message


async def test_new_key_is_well_formed_and_names_its_resource(tenant: AdminService):
    key = await tenant.create_key(display_name="ci")

    parsed = api_key.parse(key.secret)
    assert parsed is not None
    assert key.name == f"{TEAM}/apiKeys/{parsed.public_id}"
    assert list(key.scopes) == ["inference", "quota.read"]


async def test_new_key_authenticates_at_once(tenant: AdminService):
    key = await tenant.create_key()

    verdict = await tenant.authenticator.authenticate([bearer(key.secret)[0][1]], "ipv4:127.0.0.1:1")

    assert (verdict.principal.organization, verdict.principal.team) == ("acme", "search")
    assert KeyScope.ADMIN not in verdict.principal.scopes


async def test_secret_is_in_the_first_answer_and_nowhere_else(tenant: AdminService):
    key = await tenant.create_key()
    secret = api_key.parse(key.secret).secret

    found = await tenant.call(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=key.name))
    listed = await tenant.call(tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent=TEAM))
    updated = await tenant.call(
        tenant.stub.UpdateApiKey, pb.UpdateApiKeyRequest(api_key=pb.ApiKey(name=key.name, display_name="x"))
    )

    assert [answer.secret for answer in (found, *listed.api_keys, updated)] == ["", "", ""]
    async with tenant.database.session() as session:
        for table in ("api_key", "api_key_secret", "audit_event"):
            rows = (await session.execute(text(f"SELECT t::text FROM {table} t"))).scalars().all()
            assert rows
            assert not any(secret in row for row in rows), table


async def test_retry_of_a_creation_returns_the_same_key_without_its_secret(tenant: AdminService):
    request = pb.CreateApiKeyRequest(parent=TEAM, request_id=str(uuid4()))

    first = await tenant.call(tenant.stub.CreateApiKey, request)
    second = await tenant.call(tenant.stub.CreateApiKey, request)

    assert first.secret
    assert second.secret == ""
    assert second.name == first.name


async def test_dry_run_of_a_creation_shows_no_secret_and_keeps_no_key(tenant: AdminService):
    answer = await tenant.call(tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(parent=TEAM, validate_only=True))

    listed = await tenant.call(tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent=TEAM))
    assert answer.secret == ""
    assert len(listed.api_keys) == 0


async def test_key_expires_after_ninety_days_unless_told_otherwise(tenant: AdminService):
    before = datetime.now(UTC)
    key = await tenant.create_key()
    after = datetime.now(UTC)

    lifetime = timedelta(days=90)
    assert before + lifetime <= key.expire_time.ToDatetime(tzinfo=UTC) <= after + lifetime


async def test_the_end_of_time_means_never(tenant: AdminService):
    key = await tenant.create_key(expire_time=stamp(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)))

    assert not key.HasField("expire_time")


async def test_update_that_names_an_unset_expiry_means_never(tenant: AdminService):
    key = await tenant.create_key()

    request = pb.UpdateApiKeyRequest(api_key=pb.ApiKey(name=key.name), update_mask=FieldMask(paths=["expire_time"]))
    updated = await tenant.call(tenant.stub.UpdateApiKey, request)

    assert key.HasField("expire_time")
    assert not updated.HasField("expire_time")


async def test_bad_value_is_refused_by_its_path(tenant: AdminService):
    for fields, path in (
        ({"expire_time": stamp(datetime(2020, 1, 1, tzinfo=UTC))}, "api_key.expire_time"),
        ({"expire_time": Timestamp(seconds=2**60)}, "api_key.expire_time"),
        ({"scopes": ["inference", "admin"]}, "api_key.scopes[1]"),
        ({"scopes": ["root"]}, "api_key.scopes[0]"),
        ({"scopes": ["inference", "inference"]}, "api_key.scopes[1]"),
        ({"model_grants": [""]}, "api_key.model_grants[0]"),
        ({"ip_cidrs": ["10.0.0.0/8", "10.0.0.1/8"]}, "api_key.ip_cidrs[1]"),
        ({"ip_cidrs": ["somewhere"]}, "api_key.ip_cidrs[0]"),
        ({"priority_class_grants": ["default"]}, "api_key.priority_class_grants[0]"),
        ({"display_name": "\0"}, "api_key.display_name"),
    ):
        request = pb.CreateApiKeyRequest(parent=TEAM, api_key=pb.ApiKey(**fields))
        refused = await tenant.refused(tenant.stub.CreateApiKey, request)
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", (path,)), fields


async def test_key_cannot_be_granted_a_class_that_its_team_lacks(tenant: AdminService):
    fields = {"priority_class_grants": ["priorityClasses/priority"]}

    refused = await tenant.refused(
        tenant.stub.CreateApiKey, pb.CreateApiKeyRequest(parent=TEAM, api_key=pb.ApiKey(**fields))
    )

    assert refused.code == "INVALID_ARGUMENT"
    assert refused.fields[0].startswith("api_key.")


async def test_key_of_a_team_that_does_not_exist_is_refused(tenant: AdminService):
    request = pb.CreateApiKeyRequest(parent="organizations/acme/teams/ghost")

    refused = await tenant.refused(tenant.stub.CreateApiKey, request)

    assert (refused.code, refused.reason) == ("NOT_FOUND", "RESOURCE_NOT_FOUND")


async def test_key_is_found_by_its_public_id_alone(tenant: AdminService):
    key = await tenant.create_key()
    public_id = key.name.rpartition("/")[2]

    for parent in ("organizations/-/teams/-", "organizations/acme/teams/-", TEAM):
        request = pb.GetApiKeyRequest(name=f"{parent}/apiKeys/{public_id}")
        found = await tenant.call(tenant.stub.GetApiKey, request)
        assert found.name == key.name
    for name in (f"organizations/other/teams/-/apiKeys/{public_id}", "organizations/-/teams/-/apiKeys/" + "0" * 12):
        assert (await tenant.refused(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=name))).code == "NOT_FOUND"


async def add_platform_key(service: AdminService, **settings) -> api_key.GeneratedKey:
    """One more administrator's key."""
    fresh = api_key.generate()
    pepper = (service.data_dir / "pepper").read_text().strip().encode()
    secret = KeySecret(api_key.digest(pepper, fresh.secret), 1)
    path = ResourcePath(None, None, fresh.public_id)
    await create_key(
        service.database, Change("tests"), path, ApiKeySettings(scopes=(KeyScope.ADMIN,), **settings), secret
    )
    await service.cache.refresh()
    return fresh


def own_name(service: AdminService) -> str:
    return f"apiKeys/{api_key.parse(service.admin_key).public_id}"


async def test_platform_key_has_no_name_below_a_team_and_a_teams_key_has_no_other(tenant: AdminService):
    key = await tenant.create_key()

    for name in (f"organizations/-/teams/-/{own_name(tenant)}", f"apiKeys/{key.name.rpartition('/')[2]}"):
        assert (await tenant.refused(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=name))).code == "NOT_FOUND"
    for name in ("apiKeys/-", "apiKeys/short", "apiKeys/"):
        refused = await tenant.refused(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=name))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("name",))


async def test_platform_keys_are_read_and_listed_apart_from_those_of_teams(tenant: AdminService):
    of_team = await tenant.create_key()
    other = await add_platform_key(tenant)

    found = await tenant.call(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=own_name(tenant)))
    listed = {
        parent: [
            key.name
            for key in (await tenant.call(tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent=parent))).api_keys
        ]
        for parent in ("", "-", "organizations/-/teams/-")
    }
    page = await tenant.call(tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent="-", page_size=1))
    rest = await tenant.call(
        tenant.stub.ListApiKeys, pb.ListApiKeysRequest(parent="-", page_size=1, page_token=page.next_page_token)
    )

    assert (found.name, list(found.scopes), found.secret) == (own_name(tenant), ["admin"], "")
    assert listed[""] == listed["-"] == [own_name(tenant), f"apiKeys/{other.public_id}"]
    assert listed["organizations/-/teams/-"] == [of_team.name]
    assert [key.name for key in (*page.api_keys, *rest.api_keys)] == listed["-"]


async def test_platform_key_is_revoked_at_once(tenant: AdminService):
    lost = await add_platform_key(tenant)

    request = pb.RevokeApiKeyRequest(name=f"apiKeys/{lost.public_id}", reason="lost")
    revoked = await tenant.call(tenant.stub.RevokeApiKey, request)
    again = await tenant.call(tenant.stub.RevokeApiKey, request)
    refused = await tenant.refused(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=own_name(tenant)), bearer(lost.text))

    assert revoked.revoke_reason == "lost"
    assert again == revoked
    assert (refused.code, refused.reason) == ("UNAUTHENTICATED", "KEY_REVOKED")


async def test_last_platform_key_cannot_be_revoked(tenant: AdminService):
    for settings in ({}, {"expires_at": datetime.now(UTC) - timedelta(seconds=1)}):
        other = await add_platform_key(tenant, **settings)
        if not settings:
            request = pb.RevokeApiKeyRequest(name=f"apiKeys/{other.public_id}")
            await tenant.call(tenant.stub.RevokeApiKey, request)
    own = pb.RevokeApiKeyRequest(name=own_name(tenant))

    refused = await tenant.refused(tenant.stub.RevokeApiKey, own)
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "PRECONDITION_FAILED")
    assert await tenant.create_key()  # the key still works

    successor = await add_platform_key(tenant)
    revoked = await tenant.call(tenant.stub.RevokeApiKey, own, bearer(successor.text))
    assert revoked.HasField("revoke_time")


async def test_request_id_of_another_request_revokes_nothing(tenant: AdminService):
    first, second = await tenant.create_key(), await tenant.create_key()
    request_id = str(uuid4())
    request = pb.RevokeApiKeyRequest(name=first.name, request_id=request_id, reason="leaked")
    revoked = await tenant.call(tenant.stub.RevokeApiKey, request)

    refused = await tenant.refused(
        tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=second.name, request_id=request_id)
    )

    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "REQUEST_ID_REUSED")
    kept = await tenant.call(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=second.name))
    assert not kept.HasField("revoke_time")
    assert await tenant.call(tenant.stub.RevokeApiKey, request) == revoked


async def test_request_id_is_checked_even_where_the_key_was_revoked_before(tenant: AdminService):
    key = await tenant.create_key()
    request_id = str(uuid4())
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, request_id=request_id))

    refused = await tenant.refused(
        tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, request_id=request_id, reason="other")
    )

    assert refused.reason == "REQUEST_ID_REUSED"


async def test_keys_of_all_teams_are_listed_by_wildcard(tenant: AdminService):
    await tenant.create_team("ads")
    keys = [await tenant.create_key(), await tenant.create_key("organizations/acme/teams/ads")]

    request = pb.ListApiKeysRequest(parent="organizations/-/teams/-")
    listed = await tenant.call(tenant.stub.ListApiKeys, request)

    assert [key.name for key in listed.api_keys] == [key.name for key in keys]


async def test_revoked_key_is_refused_before_the_answer(tenant: AdminService):
    key = await tenant.create_key()

    revoked = await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, reason="leaked"))

    assert revoked.revoke_reason == "leaked"
    with pytest.raises(KeyRevokedError):
        await tenant.authenticator.authenticate([bearer(key.secret)[0][1]], "ipv4:127.0.0.1:1")


async def test_revoking_again_changes_nothing(tenant: AdminService):
    key = await tenant.create_key()
    request = pb.RevokeApiKeyRequest(name=key.name, reason="leaked")
    first = await tenant.call(tenant.stub.RevokeApiKey, request)

    second = await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, reason="other"))

    assert second == first


async def test_running_work_of_a_revoked_key_is_cancelled_only_on_request(tenant: AdminService):
    kept, stopped = await tenant.create_key(), await tenant.create_key()

    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=kept.name))
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=stopped.name, abort_inflight=True))

    assert tenant.aborted_keys == [UUID(stopped.uid)]


async def test_stale_etag_keeps_a_key_from_being_revoked(tenant: AdminService):
    key = await tenant.create_key()
    await tenant.call(
        tenant.stub.UpdateApiKey, pb.UpdateApiKeyRequest(api_key=pb.ApiKey(name=key.name, display_name="x"))
    )

    refused = await tenant.refused(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, etag=key.etag))

    assert (refused.code, refused.reason) == ("ABORTED", "ETAG_MISMATCH")


async def test_update_replaces_lists_as_wholes(tenant: AdminService):
    key = await tenant.create_key(ip_cidrs=["10.0.0.0/8", "192.168.0.0/16"], model_grants=["a"])

    changed = pb.ApiKey(name=key.name, ip_cidrs=["127.0.0.0/8"])
    request = pb.UpdateApiKeyRequest(api_key=changed, update_mask=FieldMask(paths=["ip_cidrs", "model_grants"]))
    updated = await tenant.call(tenant.stub.UpdateApiKey, request)

    assert (list(updated.ip_cidrs), list(updated.model_grants)) == (["127.0.0.0/8"], [])
