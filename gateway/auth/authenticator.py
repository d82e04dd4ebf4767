"""From an `authorization` value to a Principal.

A key is checked for form, looked up in the snapshot, compared in constant time, and only then told apart as revoked,
expired or suspended: whoever has not proved the secret learns nothing. A key that the snapshot lacks may be newer than
it, so it causes one reading of the database, shared by all who wait and bounded in rate; while the database is away the
answer is that the key cannot be checked, never that it is wrong. How long a key that is known serves without the
database is its tenant's choice, up to a bound: what was revoked meanwhile must not work for ever.
"""

import asyncio
import time
from collections import OrderedDict, abc
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote

from gateway.api_key import ParsedKey, is_match, parse
from gateway.auth.last_used import LastUsed
from gateway.auth.principal import Principal
from gateway.errors import (
    AddressNotAllowedError,
    AuthStoreUnavailableError,
    CredentialInvalidError,
    KeyExpiredError,
    KeyRevokedError,
    TenantSuspendedError,
)
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.enums import State, StoreLossAction
from gateway.store.outage import DATABASE_ERRORS
from gateway.store.snapshot import KeyRecord, TeamRecord

SCHEME = "bearer"
REFRESH_INTERVAL_S = 0.25
UNKNOWN_TTL_S = 2.0
MAX_UNKNOWN = 4096
DEFAULT_STALE_MAX_S = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cache` is "hit", or "miss" where the database had to be asked."""

    principal: Principal
    cache: str
    policy_revision: int


class Authenticator:
    """Decides on credentials. Holds no state but what keeps unknown keys cheap.

    `stale_max_s`: how old the snapshot's confirmation may be for tenants that are served from a stale one.
    """

    def __init__(
        self, cache: TenancyCache, pepper: bytes, last_used: LastUsed, stale_max_s: float = DEFAULT_STALE_MAX_S
    ) -> None:
        self._cache = cache
        self._stale_max_s = stale_max_s
        self._pepper = pepper
        self._last_used = last_used
        self._unknown = UnknownKeys()
        self._refresher = Refresher(cache)

    async def authenticate(self, credentials: abc.Sequence[str], peer: str) -> Verdict:
        """Raises CredentialInvalidError, AuthStoreUnavailableError, KeyRevokedError, KeyExpiredError,
        TenantSuspendedError, AddressNotAllowedError."""
        key = parsed_credential(credentials)
        record = self._cache.current.keys.get(key.public_id)
        source = "hit"
        if record is None:
            record, source = await self._read_again(key.public_id), "miss"
        self._check(record, key.secret, peer)
        self._last_used.note(record.key_id)
        return Verdict(_principal(record), source, self._cache.current.revision)

    async def _read_again(self, public_id: str) -> KeyRecord:
        if not self._unknown.is_recent(public_id):
            if not await self._refresher.refresh():
                raise AuthStoreUnavailableError
            record = self._cache.current.keys.get(public_id)
            if record is not None:
                return record
            self._unknown.add(public_id)
        raise CredentialInvalidError

    def _check(self, record: KeyRecord, secret: str, peer: str) -> None:
        matching = [stored for stored in record.secrets if is_match(self._pepper, secret, stored.digest)]
        if not matching:
            raise CredentialInvalidError
        if record.revoked_at is not None:
            raise KeyRevokedError
        now = datetime.now(UTC)
        ends = [end for end in (record.expires_at, matching[0].not_after) if end is not None]
        if any(end <= now for end in ends):
            raise KeyExpiredError
        if record.ip_cidrs and not _is_inside(peer, record):
            raise AddressNotAllowedError
        if record.team is not None:
            _check_active(record.team)
        if self._cache.staleness_s() > (STORE_LOST_AFTER_S if _fails_closed(record) else self._stale_max_s):
            raise AuthStoreUnavailableError


class UnknownKeys:
    """Public ids that the database did not have a moment ago. Bounded: the oldest is forgotten first."""

    def __init__(self) -> None:
        self._seen_s: OrderedDict[str, float] = OrderedDict()

    def add(self, public_id: str) -> None:
        self._seen_s[public_id] = time.monotonic()
        self._seen_s.move_to_end(public_id)
        while len(self._seen_s) > MAX_UNKNOWN:
            self._seen_s.popitem(last=False)

    def is_recent(self, public_id: str) -> bool:
        seen_s = self._seen_s.get(public_id)
        return seen_s is not None and time.monotonic() - seen_s < UNKNOWN_TTL_S


class Refresher:
    """Reads the snapshot again, at most once per interval however many ask."""

    def __init__(self, cache: TenancyCache) -> None:
        self._cache = cache
        self._next: asyncio.Task[bool] | None = None
        self._last_s = -REFRESH_INTERVAL_S

    async def refresh(self) -> bool:
        """The snapshot is at least as new as this call. False if the database could not be read."""
        if self._next is None:
            self._next = asyncio.create_task(self._read_when_due())
        # One caller that gives up must not end the reading that others wait for.
        return await asyncio.shield(self._next)

    async def _read_when_due(self) -> bool:
        await asyncio.sleep(max(0.0, self._last_s + REFRESH_INTERVAL_S - time.monotonic()))
        # Whoever comes from here on needs a reading that begins later than this one.
        self._next = None
        self._last_s = time.monotonic()
        try:
            await self._cache.refresh()
        except DATABASE_ERRORS:
            return False
        return True


def parsed_credential(credentials: abc.Sequence[str]) -> ParsedKey:
    """The key in the one `authorization` value. Raises CredentialInvalidError."""
    if len(credentials) == 1:
        scheme, _, token = credentials[0].strip().partition(" ")
        key = parse(token.strip()) if scheme.lower() == SCHEME else None
        if key is not None:
            return key
    raise CredentialInvalidError


def peer_address(peer: str) -> IPv4Address | IPv6Address | None:
    """The address in gRPC's name of a peer (`ipv4:10.0.0.1:4711`, `ipv6:%5B::1%5D:4711`); None for a Unix socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host = unquote(rest).rpartition(":")[0].strip("[]")
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_inside(peer: str, record: KeyRecord) -> bool:
    address = peer_address(peer)
    return address is not None and any(address in network for network in record.ip_cidrs)


def _fails_closed(record: KeyRecord) -> bool:
    """Whether any policy over the key wants no request served while the database is away."""
    if record.team is None:
        return False
    policies = (record.policy, record.team.policy, record.team.organization.policy)
    return any(policy is not None and policy.on_store_loss is StoreLossAction.FAIL_CLOSED for policy in policies)


def _check_active(team: TeamRecord) -> None:
    organization = f"organizations/{team.organization.slug}"
    if team.organization.state is not State.ACTIVE:
        raise TenantSuspendedError(organization)
    if team.state is not State.ACTIVE:
        raise TenantSuspendedError(f"{organization}/teams/{team.slug}")


def _principal(record: KeyRecord) -> Principal:
    team = record.team
    return Principal(
        key_id=record.key_id,
        public_id=record.public_id,
        organization_id=team.organization.id if team else None,
        team_id=team.id if team else None,
        organization=team.organization.slug if team else None,
        team=team.slug if team else None,
        scopes=record.scopes,
        model_grants=record.model_grants,
        is_platform_admin=record.is_platform,
    )
