"""Readings of an issuer's keys that fail in ways that nobody listed: that is an absence, and proves no token wrong."""

import asyncio

import pytest

from gateway.auth import jwks
from gateway.auth.jwks import KeySets
from gateway.errors_auth import IssuerUnavailableError
from tests.auth.issuer import PublishedKeys
from tests.auth.test_jwks import URI, Clock, until_read


@pytest.fixture
def published() -> PublishedKeys:
    return PublishedKeys()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def sets(published: PublishedKeys, clock: Clock) -> KeySets:
    return KeySets(published, clock)


@pytest.mark.parametrize("failure", [RuntimeError("bug"), UnicodeError("label too long"), MemoryError()])
async def test_whatever_a_reading_fails_with_the_issuer_is_away(
    sets: KeySets, published: PublishedKeys, clock: Clock, failure: Exception
) -> None:
    published.failure = failure
    with pytest.raises(IssuerUnavailableError):
        await sets.find(URI, "one", "RS256")

    published.failure = None
    clock.now_s += jwks.REFETCH_INTERVAL_S
    assert await sets.find(URI, "one", "RS256")
    published.failure = failure
    clock.now_s += jwks.REFETCH_INTERVAL_S
    with pytest.raises(IssuerUnavailableError):  # it may be new
        await sets.find(URI, "four", "RS256")


async def test_an_old_set_that_cannot_be_read_again_is_no_proof_that_a_key_is_wrong(
    sets: KeySets, published: PublishedKeys, clock: Clock
) -> None:
    await sets.find(URI, "one", "RS256")
    published.failure = RuntimeError("bug")
    clock.now_s += jwks.MAX_AGE_S + 1

    assert await sets.find(URI, "one", "RS256")  # the old set answers, and nobody waits for the reading
    assert await asyncio.wait_for(until_read(sets, published), 5) == 2
    with pytest.raises(IssuerUnavailableError):
        await sets.find(URI, "four", "RS256")
