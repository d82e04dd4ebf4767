"""From an API key to a Principal.

A key is looked up in the snapshot, compared in constant time, and only then told apart as revoked, expired or
suspended: whoever has not proved the secret learns nothing. Two secrets can be live at once, each with its own end.
"""

from collections import abc
from datetime import UTC, datetime

from gateway.api_key import ParsedKey
from gateway.auth.address import is_inside
from gateway.auth.freshness import Freshness
from gateway.auth.grants import bound_grants, require_active
from gateway.auth.last_used import LastUsed
from gateway.auth.principal import Principal
from gateway.auth.remembered import RememberedKey
from gateway.auth.roles import Grant
from gateway.errors_auth import (
    AddressNotAllowedError,
    AuthStoreUnavailableError,
    CredentialInvalidError,
    KeyExpiredError,
    KeyRevokedError,
    SecretReplacedError,
)
from gateway.pepper import PepperSource
from gateway.store.enums import Role
from gateway.store.identity import PLATFORM
from gateway.store.records import KeySecret, ResourcePath
from gateway.store.snapshot import KeyRecord, TenancySnapshot


class KeyVerifier:
    """Decides on API keys."""

    def __init__(self, freshness: Freshness, peppers: PepperSource, last_used: LastUsed) -> None:
        self._freshness = freshness
        self._peppers = peppers
        self._last_used = last_used

    async def verify(self, key: ParsedKey, peer: str) -> tuple[Principal, bool]:
        """The key's holder, and whether the database had to be asked.

        Raises CredentialInvalidError, AuthStoreUnavailableError, KeyRevokedError, KeyExpiredError,
        TenantSuspendedError, AddressNotAllowedError.
        """
        record, was_read = await self._find(key.public_id)
        matching = self._matching(record, key.secret)
        principal = self._accepted(record, matching, peer)
        self._renew(record, matching, key.secret)
        return principal, was_read

    async def remember(self, key: ParsedKey, peer: str) -> RememberedKey:
        """What `resume` takes in place of the key. Raises what `verify` raises."""
        await self.verify(key, peer)
        record, _ = await self._find(key.public_id)
        matching = self._matching(record, key.secret)
        assert matching.created_at is not None, "what was read from the store has it"
        ends = [end for end in (record.expires_at, matching.not_after) if end is not None]
        return RememberedKey(key.public_id, matching.created_at, min(ends, default=None))

    async def resume(self, remembered: RememberedKey, peer: str) -> tuple[Principal, bool]:
        """As `verify`, of a key whose secret was proved before. Raises the same; SecretReplacedError for one that the
        key does not have any more."""
        record, was_read = await self._find(remembered.public_id)
        proved = (stored for stored in record.secrets if stored.created_at == remembered.secret_created_at)
        matching = next(proved, None)
        if matching is None:
            raise SecretReplacedError
        return self._accepted(record, matching, peer), was_read

    async def _find(self, public_id: str) -> tuple[KeyRecord, bool]:
        return await self._freshness.find(public_id, lambda snapshot: snapshot.keys.get(public_id))

    def _accepted(self, record: KeyRecord, matching: KeySecret, peer: str) -> Principal:
        _check(record, matching, peer)
        self._freshness.require_fresh(record.team, record.policy)
        self._last_used.note(record.key_id)
        return key_principal(record, self._freshness.snapshot)

    def _matching(self, record: KeyRecord, secret: str) -> KeySecret:
        """The stored secret that was sent. Of two equal ones the one that lives longer counts."""
        found = [
            stored
            for stored in record.secrets
            if self._peppers.has(stored.pepper_version)
            and self._peppers.current.is_match(secret, stored.digest, stored.pepper_version)
        ]
        if found:
            return max(found, key=lambda stored: stored.not_after or datetime.max.replace(tzinfo=UTC))
        if any(not self._peppers.has(stored.pepper_version) for stored in record.secrets):
            # The pepper of this hash is somewhere else: that says nothing about the secret.
            raise AuthStoreUnavailableError
        raise CredentialInvalidError

    def _renew(self, record: KeyRecord, matching: KeySecret, secret: str) -> None:
        peppers = self._peppers.current
        if matching.pepper_version < peppers.version:
            renewed = KeySecret(peppers.digest(secret), peppers.version, matching.not_after)
            self._last_used.renew(record.key_id, matching.digest, renewed)


def _check(record: KeyRecord, matching: KeySecret, peer: str) -> None:
    if record.revoked_at is not None:
        raise KeyRevokedError
    now = datetime.now(UTC)
    if record.expires_at is not None and record.expires_at <= now:
        raise KeyExpiredError
    if matching.not_after is not None and matching.not_after <= now:
        raise SecretReplacedError
    if record.ip_cidrs and not is_inside(peer, record.ip_cidrs):
        raise AddressNotAllowedError
    if record.team is not None:
        require_active(record.team)


def key_principal(record: KeyRecord, snapshot: TenancySnapshot) -> Principal:
    """The holder of a key that was proved.

    A team's key serves its team; a platform key is an administrator's, as far as its scopes go. Whatever else either
    may do was bound.
    """
    team = record.team
    path = PLATFORM if team is None else ResourcePath(team.organization.slug, team.slug)
    short_name = f"apiKeys/{record.public_id}"
    return Principal(
        name="/".join(part for part in (path.name, short_name) if part),
        key_id=record.key_id,
        public_id=record.public_id,
        organization_id=team.organization.id if team else None,
        team_id=team.id if team else None,
        organization=path.organization,
        team=path.team,
        scopes=record.scopes,
        model_grants=record.model_grants,
        grants=(*_own_grants(record, path), *bound_grants(short_name, snapshot)),
    )


def _own_grants(record: KeyRecord, path: ResourcePath) -> abc.Iterator[Grant]:
    if record.team is not None:
        yield Grant(Role.SERVICE, path)
    else:
        yield Grant(Role.PLATFORM_ADMIN, PLATFORM)
