"""What a credential costs the database when the snapshot lacks what it names: little, however many are sent.

What is not in the snapshot may be newer than it, so it causes one reading, shared by all who wait and bounded in rate;
what a reading did not find is not looked for again for a moment.
"""

import asyncio
import hashlib
import time
from collections import OrderedDict, abc
from typing import TypeVar

from gateway.errors_auth import AuthStoreUnavailableError, CredentialInvalidError
from gateway.store.cache import STORE_LOST_AFTER_S, TenancyCache
from gateway.store.enums import StoreLossAction
from gateway.store.outage import DATABASE_ERRORS
from gateway.store.snapshot import PolicyRecord, TeamRecord, TenancySnapshot

REFRESH_INTERVAL_S = 0.25
UNKNOWN_TTL_S = 2.0
MAX_UNKNOWN = 4096
DEFAULT_STALE_MAX_S = 300.0

Found = TypeVar("Found")
Lookup = abc.Callable[[TenancySnapshot], Found | None]


class Freshness:
    """The snapshot as credentials are looked up in it.

    `stale_max_s`: how old the snapshot's confirmation may be for tenants that are served from a stale one.
    """

    def __init__(self, cache: TenancyCache, stale_max_s: float = DEFAULT_STALE_MAX_S) -> None:
        self._cache = cache
        self._stale_max_s = stale_max_s
        self._unknown = UnknownNames()
        self._refresher = Refresher(cache)

    @property
    def snapshot(self) -> TenancySnapshot:
        return self._cache.current

    async def find(self, name: str, lookup: Lookup[Found]) -> tuple[Found, bool]:
        """What `lookup` finds, and whether the database had to be asked. `name` is what is remembered as unknown.

        Raises CredentialInvalidError, AuthStoreUnavailableError.
        """
        found = lookup(self._cache.current)
        if found is not None:
            return found, False
        if not self._unknown.is_recent(name):
            if not await self._refresher.refresh():
                raise AuthStoreUnavailableError
            found = lookup(self._cache.current)
            if found is not None:
                return found, True
            self._unknown.add(name)
        raise CredentialInvalidError

    def require_fresh(self, team: TeamRecord | None, *policies: PolicyRecord | None) -> None:
        """The snapshot is fresh enough for the team and whatever else governs. Raises AuthStoreUnavailableError."""
        over = policies if team is None else (*policies, team.policy, team.organization.policy)
        fails_closed = any(policy and policy.on_store_loss is StoreLossAction.FAIL_CLOSED for policy in over)
        if self._cache.staleness_s() > (STORE_LOST_AFTER_S if fails_closed else self._stale_max_s):
            raise AuthStoreUnavailableError


class UnknownNames:
    """What the database did not have a moment ago. Bounded: the oldest is forgotten first, long ones are hashed."""

    def __init__(self) -> None:
        self._seen_s: OrderedDict[bytes, float] = OrderedDict()

    def add(self, name: str) -> None:
        key = _short(name)
        self._seen_s[key] = time.monotonic()
        self._seen_s.move_to_end(key)
        while len(self._seen_s) > MAX_UNKNOWN:
            self._seen_s.popitem(last=False)

    def is_recent(self, name: str) -> bool:
        seen_s = self._seen_s.get(_short(name))
        return seen_s is not None and time.monotonic() - seen_s < UNKNOWN_TTL_S

    def __len__(self) -> int:
        return len(self._seen_s)


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


def _short(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
