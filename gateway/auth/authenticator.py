"""From an `authorization` value to a Principal: an API key or a token, told apart by their form.

While the database or an issuer is away the answer is that the credential cannot be checked, never that it is wrong. How
long a credential that is known serves without the database is its tenant's choice, up to a bound: what was revoked
meanwhile must not work for ever.
"""

from collections import abc
from dataclasses import dataclass

from gateway.api_key import parse
from gateway.auth.freshness import DEFAULT_STALE_MAX_S, Freshness
from gateway.auth.jwks import KeySets
from gateway.auth.keys import KeyVerifier
from gateway.auth.last_used import LastUsed
from gateway.auth.principal import Principal
from gateway.auth.remembered import Remembered, RememberedToken
from gateway.auth.tokens import TokenVerifier, looks_like_token
from gateway.errors_auth import CredentialInvalidError
from gateway.pepper import Peppers, PepperSource
from gateway.store.cache import TenancyCache
from gateway.store.snapshot import TenancySnapshot

SCHEME = "bearer"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`cache` is "hit", or "miss" where the database had to be asked. `snapshot` is what it was decided by."""

    principal: Principal
    cache: str
    snapshot: TenancySnapshot

    @property
    def policy_revision(self) -> int:
        return self.snapshot.revision


class Authenticator:
    """Decides on credentials. Holds no state but what keeps unknown ones cheap, and the keys of issuers.

    `stale_max_s`: how old the snapshot's confirmation may be for tenants that are served from a stale one.
    """

    def __init__(
        self,
        cache: TenancyCache,
        peppers: PepperSource | bytes,
        last_used: LastUsed,
        stale_max_s: float = DEFAULT_STALE_MAX_S,
        key_sets: KeySets | None = None,
    ) -> None:
        """`peppers` as bytes: the text of a pepper that does not change."""
        source = PepperSource(Peppers.parse(peppers)) if isinstance(peppers, bytes) else peppers
        freshness = Freshness(cache, stale_max_s)
        self._cache = cache
        self._keys = KeyVerifier(freshness, source, last_used)
        self._tokens = TokenVerifier(freshness, key_sets or KeySets())

    async def authenticate(self, credentials: abc.Sequence[str], peer: str) -> Verdict:
        """Raises what `KeyVerifier.verify` and `TokenVerifier.verify` raise."""
        text = bearer_text(credentials)
        if looks_like_token(text):
            principal, was_read = await self._tokens.verify(text)
        else:
            key = parse(text)
            if key is None:
                raise CredentialInvalidError
            principal, was_read = await self._keys.verify(key, peer)
        return self._verdict(principal, was_read=was_read)

    async def remember(self, text: str, peer: str) -> Remembered:
        """What `resume` takes in place of the key or token `text`. Raises what `authenticate` raises."""
        if looks_like_token(text):
            return await self._tokens.remember(text)
        key = parse(text)
        if key is None:
            raise CredentialInvalidError
        return await self._keys.remember(key, peer)

    async def resume(self, remembered: Remembered, peer: str) -> Verdict:
        """As of now: what was revoked, expired, suspended or unbound since is refused or missing. Raises the same."""
        if isinstance(remembered, RememberedToken):
            principal, was_read = await self._tokens.resume(remembered)
        else:
            principal, was_read = await self._keys.resume(remembered, peer)
        return self._verdict(principal, was_read=was_read)

    def _verdict(self, principal: Principal, *, was_read: bool) -> Verdict:
        return Verdict(principal, "miss" if was_read else "hit", self._cache.current)


def bearer_text(credentials: abc.Sequence[str]) -> str:
    """What follows `Bearer` in the one `authorization` value. Raises CredentialInvalidError."""
    if len(credentials) == 1:
        scheme, _, text = credentials[0].strip().partition(" ")
        if scheme.lower() == SCHEME:
            return text.strip()
    raise CredentialInvalidError
