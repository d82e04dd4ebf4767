"""Issuers that change while tokens come in."""

import asyncio
from collections import abc
from dataclasses import replace
from uuid import UUID

import pytest

from gateway.auth.freshness import Freshness
from gateway.auth.jwks import KeySets
from gateway.auth.tokens import TokenVerifier
from gateway.errors_auth import CredentialInvalidError
from gateway.store.identity_snapshot import IssuerRecord
from tests.auth.issuer import PublishedKeys, token
from tests.auth.tenants import GLOBEX
from tests.auth.test_tokens import LOGIN, URI, Door, good


class SlowKeys(PublishedKeys):
    """An issuer that answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def __call__(self, uri: str) -> bytes:
        self.asked.set()
        await self.may_answer.wait()
        return await super().__call__(uri)


def with_issuers(door: Door, *issuers: IssuerRecord) -> None:
    """An administrator has changed them."""
    identity = replace(door.cache.current.identity, issuers={issuer.issuer: issuer for issuer in issuers})
    door.cache.current = replace(door.cache.current, identity=identity)


@pytest.mark.parametrize(
    ("issuers", "error"),
    [
        ((), CredentialInvalidError),
        ((replace(LOGIN, id=UUID(int=10), audiences=("another",)),), CredentialInvalidError),
        ((replace(LOGIN, revision=2, audiences=("another",)),), CredentialInvalidError),
        ((replace(LOGIN, revision=2, algorithms=frozenset({"ES256"})),), CredentialInvalidError),
        ((replace(LOGIN, revision=2, organization_id=GLOBEX.organization.id),), CredentialInvalidError),
        ((replace(LOGIN, revision=2, slug="renamed"),), None),
    ],
)
async def test_an_issuer_that_changes_while_its_keys_are_read_is_decided_on_as_it_is_then(
    issuers: tuple[IssuerRecord, ...], error: type[Exception] | None
) -> None:
    door = Door()
    keys = SlowKeys()
    door._verifier = TokenVerifier(Freshness(door.cache), KeySets(keys))
    entering = asyncio.create_task(door.enter(token(good())))
    await keys.asked.wait()
    with_issuers(door, *issuers)
    keys.may_answer.set()
    await asyncio.wait([entering])

    if error is None:
        assert entering.result().name == "jwtIssuers/renamed/subjects/alice"
    else:
        assert type(entering.exception()) is error


async def test_keys_of_issuers_that_are_gone_are_forgotten_and_others_not_looked_through_each_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    door = Door()
    keep, kept = KeySets.keep, []

    def counted(sets: KeySets, uris: abc.Collection[str]) -> None:
        kept.append(set(uris))
        keep(sets, uris)

    monkeypatch.setattr(KeySets, "keep", counted)
    for _ in range(3):
        await door.claiming()
    other = replace(LOGIN, issuer="https://other.example.test", jwks_uri="https://other.example.test/keys")
    with_issuers(door, other)
    for _ in range(3):
        await door.claiming(iss=other.issuer)

    assert kept == [{URI}, {other.jwks_uri}]
    assert set(door._verifier._key_sets._sets) == {other.jwks_uri}
