"""How often somebody may try to sign in: by where they come from, and by which key they try.

All gateways of one database count together, in Postgres. Each counts by itself besides, before it asks: so a flood of
attempts is no flood of statements, and while the database does not answer there is still a limit.

Callers are counted in a fixed number of buckets, chosen by a keyed hash: however many addresses or keys are tried, what
is kept is bounded, and nobody can pick whose bucket they fill.
"""

import hashlib
import math
import time
from collections import abc
from datetime import timedelta
from ipaddress import IPv6Address, ip_network

import grpc
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from gateway.api_key import ParsedKey
from gateway.auth.address import peer_address
from gateway.console.sign_in.signing import DerivedKeys
from gateway.errors import GatewayError
from gateway.pepper import PepperSource
from gateway.store.console import count_sign_in
from gateway.store.db import Database
from gateway.store.errors import DatabaseUnavailableError

NUM_BUCKETS = 1024  # of each kind; the library looks at all of them now and then
WINDOW = timedelta(minutes=1)
# A person mistypes a few times; a program that guesses is slow enough with this, whatever it guesses.
PER_ADDRESS = RateLimitItemPerMinute(10)
# At one key, from wherever: those that are signed in stay so.
PER_KEY = RateLimitItemPerMinute(20)
SITE_BITS = 64  # what one subscriber has of IPv6 (RFC 6177)


class TooManyLoginsError(GatewayError):
    """Somebody tried to sign in too often."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    reason = "TOO_MANY_LOGINS"

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(
            f"There were too many attempts to sign in. Try again in {math.ceil(retry_after_s)} seconds.",
            retry_after_s=retry_after_s,
        )


class LoginLimits:
    """Counts attempts. `peppers`: what every gateway that counts along has, so that all choose the same buckets."""

    def __init__(self, database: Database, peppers: PepperSource) -> None:
        self._database = database
        self._peppers = peppers
        self._keys = DerivedKeys(peppers, "sign-in buckets")
        self._own = FixedWindowRateLimiter(MemoryStorage())

    async def require(self, peer: str, key: ParsedKey | None) -> None:
        """One more attempt is made, whatever comes of it. Raises TooManyLoginsError."""
        for kind, limit, who in _counted(peer, key):
            bucket = self._bucket(kind, who)
            await self._require_own(limit, f"{kind} {bucket}")
            await self._require_everywhere(limit, kind, bucket)

    async def _require_own(self, limit: RateLimitItem, name: str) -> None:
        if not await self._own.hit(limit, name):
            stats = await self._own.get_window_stats(limit, name)
            raise TooManyLoginsError(max(1.0, stats.reset_time - time.time()))

    async def _require_everywhere(self, limit: RateLimitItem, kind: str, bucket: int) -> None:
        try:
            window = await count_sign_in(self._database, kind, bucket, WINDOW)
        except DatabaseUnavailableError:
            return
        if window.num_attempts > limit.amount:
            raise TooManyLoginsError(max(1.0, window.ends_in_s))

    def _bucket(self, kind: str, who: str) -> int:
        key = self._keys.of(self._peppers.current.version)
        return int.from_bytes(hashlib.blake2b(f"{kind} {who}".encode(), key=key, digest_size=8).digest()) % NUM_BUCKETS


def _counted(peer: str, key: ParsedKey | None) -> abc.Iterator[tuple[str, RateLimitItem, str]]:
    """(kind, limit, who): the address first, so that whoever is over its limit counts at no key."""
    yield "address", PER_ADDRESS, _site(peer)
    if key is not None:
        yield "key", PER_KEY, key.public_id


def _site(peer: str) -> str:
    """The address, of IPv6 the network of one site: whoever has one of its addresses has them all."""
    address = peer_address(peer)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, SITE_BITS), strict=False))
    return "" if address is None else str(address)
