"""Two secrets of one key: the new one shown once, the old one alive until its grace time is over."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest_asyncio
from google.protobuf.duration_pb2 import Duration
from sqlalchemy import text

from evenflow.admin.v1 import admin_pb2 as pb
from gateway import api_key
from gateway.errors_auth import CredentialInvalidError, KeyExpiredError
from gateway.propagation import Revocations
from gateway.store.cache import TenancyCache
from tests.admin.service import AdminService, Refused, bearer


@pytest_asyncio.fixture
async def tenant(service: AdminService) -> AdminService:
    """The service with a team."""
    await service.create_org()
    await service.create_team()
    return service


async def rotate(service: AdminService, key: pb.ApiKey, grace: timedelta | None = None, **fields) -> pb.ApiKey:
    return await service.call(service.stub.RotateApiKey, rotation(key, grace, **fields))


def rotation(key: pb.ApiKey, grace: timedelta | None = None, **fields) -> pb.RotateApiKeyRequest:
    request = pb.RotateApiKeyRequest(name=key.name, **fields)
    if grace is not None:
        request.grace.FromTimedelta(grace)
    return request


async def is_accepted(service: AdminService, secret: str) -> bool:
    try:
        await service.authenticator.authenticate([bearer(secret)[0][1]], "ipv4:127.0.0.1:1")
    except (CredentialInvalidError, KeyExpiredError):
        return False
    return True


async def end_grace(service: AdminService) -> None:
    """The grace time of every secret is over."""
    async with service.database.session() as session:
        await session.execute(text("UPDATE api_key_secret SET not_after = now() WHERE not_after IS NOT NULL"))
        await session.execute(text("UPDATE api_key SET revision = revision + 100"))
        await session.execute(text("UPDATE policy_revision SET revision = revision + 100"))
    await service.cache.refresh()


async def test_both_secrets_work_during_the_grace_time_and_the_new_one_after_it(tenant: AdminService):
    key = await tenant.create_key()

    rotated = await rotate(tenant, key, timedelta(hours=1))

    assert (rotated.name, rotated.uid) == (key.name, key.uid)
    assert api_key.parse(rotated.secret).public_id == api_key.parse(key.secret).public_id
    assert len(rotated.secrets) == 2
    assert await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, rotated.secret)
    await end_grace(tenant)
    assert not await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, rotated.secret)


async def test_old_secret_has_a_day_unless_told_otherwise(tenant: AdminService):
    before = datetime.now(UTC)

    rotated = await rotate(tenant, await tenant.create_key())

    old, new = rotated.secrets
    assert timedelta() <= old.expire_time.ToDatetime(tzinfo=UTC) - before - timedelta(days=1) < timedelta(minutes=1)
    assert not new.HasField("expire_time")


async def test_no_grace_ends_the_old_secret_at_once(tenant: AdminService):
    key = await tenant.create_key()

    rotated = await rotate(tenant, key, timedelta())

    assert len(rotated.secrets) == 1
    assert not await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, rotated.secret)


async def test_retry_shows_no_secret_and_ends_none(tenant: AdminService):
    key = await tenant.create_key()
    request_id = str(uuid4())

    first = await rotate(tenant, key, timedelta(hours=1), request_id=request_id)
    second = await rotate(tenant, key, timedelta(hours=1), request_id=request_id)

    assert first.secret
    assert second.secret == ""
    assert second.secrets == first.secrets
    assert await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, first.secret)


async def test_second_rotation_during_the_grace_time_is_refused(tenant: AdminService):
    key = await tenant.create_key()
    rotated = await rotate(tenant, key, timedelta(hours=1))

    refused = await tenant.refused(tenant.stub.RotateApiKey, rotation(key))

    assert refused == Refused("FAILED_PRECONDITION", "PRECONDITION_FAILED", ())
    assert await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, rotated.secret)


async def test_lost_answer_is_mended_without_an_outage(tenant: AdminService):
    key = await tenant.create_key()
    lost = await rotate(tenant, key, timedelta(hours=1))

    found = await rotate(tenant, key, discard_newest=True)

    assert await is_accepted(tenant, key.secret)
    assert await is_accepted(tenant, found.secret)
    assert not await is_accepted(tenant, lost.secret)
    assert found.secrets[0] == lost.secrets[0]


async def test_after_the_grace_time_a_key_is_rotated_again(tenant: AdminService):
    key = await tenant.create_key()
    first = await rotate(tenant, key, timedelta(hours=1))
    await end_grace(tenant)

    second = await rotate(tenant, key, timedelta(hours=1))

    assert await is_accepted(tenant, first.secret)
    assert await is_accepted(tenant, second.secret)
    assert len(second.secrets) == 2


async def test_rotations_at_the_same_time_let_one_through(tenant: AdminService):
    key = await tenant.create_key()

    answers = await asyncio.gather(*(rotate(tenant, key) for _ in range(4)), return_exceptions=True)

    (won,) = [answer for answer in answers if isinstance(answer, pb.ApiKey)]
    assert await is_accepted(tenant, won.secret)
    assert await is_accepted(tenant, key.secret)


async def test_bad_grace_and_revoked_keys_are_refused(tenant: AdminService):
    key = await tenant.create_key()
    for grace in (Duration(seconds=-1), Duration(seconds=31 * 86400), Duration(seconds=2**62)):
        refused = await tenant.refused(tenant.stub.RotateApiKey, pb.RotateApiKeyRequest(name=key.name, grace=grace))
        assert refused == Refused("INVALID_ARGUMENT", "INVALID_FIELD", ("grace",))
    await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name))

    assert (await tenant.refused(tenant.stub.RotateApiKey, rotation(key))).code == "FAILED_PRECONDITION"


async def test_dry_run_shows_and_keeps_nothing(tenant: AdminService):
    key = await tenant.create_key()

    answer = await rotate(tenant, key, validate_only=True)

    assert answer.secret == ""
    found = await tenant.call(tenant.stub.GetApiKey, pb.GetApiKeyRequest(name=key.name))
    assert len(found.secrets) == 1


async def test_record_tells_of_a_rotation_and_no_secret(tenant: AdminService):
    key = await tenant.create_key()
    rotated = await rotate(tenant, key)

    listed = await tenant.call(
        tenant.stub.ListAuditEvents, pb.ListAuditEventsRequest(filter='action = "apiKeys.rotate"')
    )

    (event,) = listed.audit_events
    assert event.resource == key.name
    for secret in (key.secret, rotated.secret):
        assert api_key.parse(secret).secret not in event.before + event.after


async def test_other_gateways_end_what_a_revoked_key_has_running_if_they_are_told(tenant: AdminService):
    other, aborted, is_told = TenancyCache(tenant.database), [], asyncio.Event()

    async def abort_key(key_id: UUID) -> None:
        aborted.append(key_id)
        is_told.set()

    kept, key = await tenant.create_key(), await tenant.create_key()
    await other.refresh()
    revocations = Revocations(other, abort_key)
    running = [asyncio.create_task(other.run()), asyncio.create_task(revocations.run())]
    try:
        await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=kept.name))
        await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, abort_inflight=True))
        async with asyncio.timeout(10):
            await is_told.wait()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    assert aborted == [UUID(key.uid)]


async def test_running_work_of_a_key_that_was_revoked_before_can_be_ended_later(tenant: AdminService):
    key = await tenant.create_key()
    first = await tenant.call(tenant.stub.RevokeApiKey, pb.RevokeApiKeyRequest(name=key.name, reason="old"))
    public_id = key.name.rpartition("/")[2]
    assert not tenant.cache.current.keys[public_id].aborts_inflight

    again = pb.RevokeApiKeyRequest(name=key.name, reason="new", abort_inflight=True)
    second = await tenant.call(tenant.stub.RevokeApiKey, again)

    assert tenant.cache.current.keys[public_id].aborts_inflight
    assert (second.revoke_time, second.revoke_reason) == (first.revoke_time, "old")


async def test_dry_run_of_a_revocation_ends_nothing(tenant: AdminService):
    key = await tenant.create_key()

    request = pb.RevokeApiKeyRequest(name=key.name, abort_inflight=True, validate_only=True)
    would_be = await tenant.call(tenant.stub.RevokeApiKey, request)

    assert would_be.HasField("revoke_time")
    assert tenant.aborted_keys == []
    assert await is_accepted(tenant, key.secret)
