"""What stands for a token after it was proved: worth as much, for as long, and under the issuer as it was."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from gateway.auth.remembered import RememberedToken
from gateway.errors_auth import CredentialInvalidError, TenantSuspendedError, TokenExpiredError
from gateway.store.enums import State
from tests.auth.issuer import EC_KEY, ISSUER, OTHER_RSA_KEY, token
from tests.auth.tenants import ACME, GLOBEX, snapshot_of
from tests.auth.test_tokens import LOGIN, SUBJECT, Door, good


@pytest.fixture
def door() -> Door:
    return Door()


async def remembered(door: Door, **changes: object) -> RememberedToken:
    return await door._verifier.remember(token(good(**changes)))


async def test_the_subject_is_who_they_are_without_the_token(door: Door) -> None:
    kept = await remembered(door)
    proved = await door.enter(token(good()))

    resumed, _ = await door._verifier.resume(kept)

    assert resumed == proved
    assert resumed.name == SUBJECT


async def test_it_ends_when_the_token_does(door: Door) -> None:
    kept = await remembered(door)
    assert datetime.now(UTC) < kept.expires_at <= datetime.now(UTC) + timedelta(seconds=600)

    with pytest.raises(TokenExpiredError):
        await door._verifier.resume(replace(kept, expires_at=datetime.now(UTC)))


async def test_what_no_token_proves_is_not_remembered(door: Door) -> None:
    with pytest.raises(CredentialInvalidError):
        await door._verifier.remember(token(good(), key=OTHER_RSA_KEY))
    with pytest.raises(CredentialInvalidError):
        await door._verifier.remember(token(good(), key=EC_KEY, algorithm="ES256", kid="one"))


async def test_it_ends_with_any_change_of_the_issuer(door: Door) -> None:
    kept = await remembered(door)
    identity = door.cache.current.identity

    for issuers in ({}, {ISSUER: replace(LOGIN, revision=2)}):
        door.cache.current = replace(door.cache.current, identity=replace(identity, issuers=issuers))
        with pytest.raises(CredentialInvalidError):
            await door._verifier.resume(kept)


async def test_it_ends_when_the_tenant_is_suspended(door: Door) -> None:
    kept = await remembered(door)
    suspended = snapshot_of(ACME, GLOBEX, state=State.SUSPENDED)

    door.cache.current = replace(suspended, identity=door.cache.current.identity)

    with pytest.raises(TenantSuspendedError):
        await door._verifier.resume(kept)
