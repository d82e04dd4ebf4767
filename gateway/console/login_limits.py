"""How often somebody may try to sign in: by where they come from, and by which key they try.

Callers are counted in a fixed number of buckets, chosen by a keyed hash: however many addresses or keys are tried, the
memory is bounded, and nobody can pick whose bucket they fill.
"""

import hashlib
import math
import secrets
import time
from ipaddress import IPv6Address, ip_network

import grpc
from limits import RateLimitItem, RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import FixedWindowRateLimiter

from gateway.api_key import ParsedKey
from gateway.auth.address import peer_address
from gateway.errors import GatewayError

NUM_BUCKETS = 1024  # of each kind; the library looks at all of them now and then
# A person mistypes a few times; a program that guesses is slow enough with this, whatever it guesses.
PER_ADDRESS = RateLimitItemPerMinute(10)
# Wrong secrets of one key, from wherever: those that are signed in stay so.
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
    """Counts attempts of this process."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._salt = secrets.token_bytes(16)

    async def require(self, peer: str, key: ParsedKey | None) -> None:
        """One more attempt is made. Raises TooManyLoginsError."""
        address = self._bucket("address", _site(peer))
        if not await self._limiter.hit(PER_ADDRESS, address):
            raise await self._refusal(PER_ADDRESS, address)
        if key is not None:
            bucket = self._bucket("key", key.public_id)
            if not await self._limiter.test(PER_KEY, bucket):
                raise await self._refusal(PER_KEY, bucket)

    async def note_failure(self, key: ParsedKey | None) -> None:
        """The attempt was made with a wrong secret."""
        if key is not None:
            await self._limiter.hit(PER_KEY, self._bucket("key", key.public_id))

    async def _refusal(self, limit: RateLimitItem, bucket: str) -> TooManyLoginsError:
        stats = await self._limiter.get_window_stats(limit, bucket)
        return TooManyLoginsError(max(1.0, stats.reset_time - time.time()))

    def _bucket(self, kind: str, who: str) -> str:
        digest = hashlib.blake2b(who.encode(), key=self._salt, digest_size=8).digest()
        return f"{kind} {int.from_bytes(digest) % NUM_BUCKETS}"


def _site(peer: str) -> str:
    """The address, of IPv6 the network of one site: whoever has one of its addresses has them all."""
    address = peer_address(peer)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, SITE_BITS), strict=False))
    return "" if address is None else str(address)
