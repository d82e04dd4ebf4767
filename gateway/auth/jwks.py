"""The public keys of issuers: read when a token needs them, kept when they cannot be read again.

A set is read once at first use, again in the background when it is old, and again for a key id that it lacks, but not
more often than every REFETCH_INTERVAL_S: tokens with invented ids must not become requests to the issuer. Each key is
bound to the algorithms that its type allows (RFC 8725, §3.1); symmetric and private keys are not taken at all.
"""

import asyncio
import json
import time
from collections import abc
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit

import httpx2
import jwt
import structlog
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from gateway.errors_auth import CredentialInvalidError, IssuerUnavailableError

REFETCH_INTERVAL_S = 30.0
MAX_AGE_S = 600.0
FETCH_TIMEOUT_S = 5.0
MAX_SET_BYTES = 256 * 1024
MAX_KEYS = 64
MIN_RSA_BITS = 2048
RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})
ALGORITHM_BY_CURVE = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
ALGORITHMS = RSA_ALGORITHMS | set(ALGORITHM_BY_CURVE.values()) | {"EdDSA"}

PublicKey = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey
Fetch = abc.Callable[[str], abc.Awaitable[bytes]]

log = structlog.get_logger(__name__)


class KeySetError(Exception):
    """A set of keys could not be read. The text is for the log."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and the algorithms that it may verify."""

    key_id: str | None
    algorithms: frozenset[str]
    public_key: PublicKey


@dataclass(slots=True)
class _KeySet:
    """What is known of one URI. Written by KeySets only; times are those of its clock."""

    keys: tuple[VerificationKey, ...] = ()
    read_at_s: float | None = None
    tried_at_s: float = -REFETCH_INTERVAL_S
    has_failed: bool = False
    reading: "asyncio.Task[None] | None" = field(default=None, repr=False)


class KeySets:
    """The key sets of all issuers, by URI."""

    def __init__(self, fetch: Fetch | None = None, clock_s: abc.Callable[[], float] = time.monotonic) -> None:
        self._fetch = fetch or fetch_key_set
        self._clock_s = clock_s
        self._sets: dict[str, _KeySet] = {}

    def keep(self, uris: abc.Collection[str]) -> None:
        """What is known of other URIs is forgotten."""
        for uri in [uri for uri in self._sets if uri not in uris]:
            del self._sets[uri]

    async def find(self, uri: str, key_id: str | None, algorithm: str) -> PublicKey:
        """The key of this id for this algorithm; without an id, the only one there is for it.

        Raises CredentialInvalidError where the issuer has no such key, IssuerUnavailableError where that is not known.
        """
        known = self._sets.setdefault(uri, _KeySet())
        if known.read_at_s is None:
            await self._read_if_due(uri, known)
        elif self._clock_s() - known.read_at_s > MAX_AGE_S:
            self._begin_if_due(uri, known)
        found = _pick(known.keys, key_id, algorithm)
        if found is None and known.read_at_s is not None:
            await self._read_if_due(uri, known)
            found = _pick(known.keys, key_id, algorithm)
        if found is not None:
            return found
        raise IssuerUnavailableError if known.has_failed or known.read_at_s is None else CredentialInvalidError

    async def _read_if_due(self, uri: str, known: _KeySet) -> None:
        reading = self._begin_if_due(uri, known)
        if reading is not None:
            # One caller that gives up must not end the reading that others wait for.
            await asyncio.shield(reading)

    def _begin_if_due(self, uri: str, known: _KeySet) -> "asyncio.Task[None] | None":
        """The reading that is under way, or a new one if the last try was long enough ago."""
        if known.reading is None and self._clock_s() - known.tried_at_s >= REFETCH_INTERVAL_S:
            known.tried_at_s = self._clock_s()
            known.reading = asyncio.create_task(self._read(uri, known))
        return known.reading

    async def _read(self, uri: str, known: _KeySet) -> None:
        try:
            known.keys = parse_key_set(await self._fetch(uri))
            known.read_at_s, known.has_failed = self._clock_s(), False
        # What a stranger's server makes the client raise is not listed anywhere.
        except Exception as error:  # noqa: BLE001
            known.has_failed = True
            text = str(error) if isinstance(error, KeySetError) else f"{type(error).__name__}: {error}"
            log.warning("the keys of an issuer cannot be read", uri=uri, error=text, num_kept=len(known.keys))
        finally:
            known.reading = None


async def fetch_key_set(uri: str) -> bytes:
    """The document at `uri`. Raises KeySetError. No redirect is followed: the URI is what an administrator allowed."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT_S):
            # Reading the system's certificates takes too long for the event loop.
            client = await asyncio.to_thread(httpx2.AsyncClient, timeout=FETCH_TIMEOUT_S, follow_redirects=False)
            async with client, client.stream("GET", uri, headers={"accept": "application/json"}) as response:
                if response.status_code != httpx2.codes.OK:
                    raise KeySetError(f"status {response.status_code}")
                return await _limited(response)
    except TimeoutError:
        raise KeySetError(f"no answer within {FETCH_TIMEOUT_S:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        raise KeySetError(f"{type(error).__name__}: {error}") from error


async def _limited(response: httpx2.Response) -> bytes:
    body = b""
    async for piece in response.aiter_bytes():
        body += piece
        if len(body) > MAX_SET_BYTES:
            raise KeySetError(f"more than {MAX_SET_BYTES} bytes")
    return body


def parse_key_set(document: bytes) -> tuple[VerificationKey, ...]:
    """The keys that can verify signatures (RFC 7517, §5); others are left out. Raises KeySetError if none is there."""
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError):
        raise KeySetError("is not JSON") from None
    entries = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise KeySetError("is not a set of keys")
    keys = tuple(key for entry in entries[:MAX_KEYS] if (key := _parse_key(entry)) is not None)
    if not keys:
        raise KeySetError("has no key that can verify a signature")
    return keys


def _parse_key(entry: object) -> VerificationKey | None:
    if not isinstance(entry, dict) or "d" in entry or entry.get("use", "sig") != "sig":
        return None
    if "key_ops" in entry and (not isinstance(entry["key_ops"], list) or "verify" not in entry["key_ops"]):
        return None
    try:
        public_key = jwt.PyJWK(entry).key
    # What a stranger's document makes the parsers raise is not listed anywhere.
    except Exception:  # noqa: BLE001
        return None
    key_id, declared = entry.get("kid"), entry.get("alg")
    algorithms = _algorithms(public_key)
    if declared is not None:
        algorithms &= {declared} if isinstance(declared, str) else frozenset()
    if not algorithms or not (key_id is None or isinstance(key_id, str)):
        return None
    return VerificationKey(key_id, algorithms, public_key)


def _algorithms(key: object) -> frozenset[str]:
    """What keys of this type may verify; nothing for those that are too weak or not public."""
    if isinstance(key, RSAPublicKey):
        return RSA_ALGORITHMS if key.key_size >= MIN_RSA_BITS else frozenset()
    if isinstance(key, EllipticCurvePublicKey):
        algorithm = ALGORITHM_BY_CURVE.get(key.curve.name)
        return frozenset() if algorithm is None else frozenset({algorithm})
    return frozenset({"EdDSA"}) if isinstance(key, Ed25519PublicKey) else frozenset()


def _pick(keys: tuple[VerificationKey, ...], key_id: str | None, algorithm: str) -> PublicKey | None:
    fitting = [key for key in keys if algorithm in key.algorithms and key_id in (None, key.key_id)]
    return fitting[0].public_key if len(fitting) == 1 else None


def uri_problem(uri: str) -> str | None:
    """Why keys may not be read from `uri`; None if they may: https, or http on a loopback address."""
    try:
        parts = urlsplit(uri)
        host = parts.hostname or ""
        port_ok = parts.port != 0
    except ValueError:
        return "is no URI"
    if not host or not port_ok or not uri.isascii() or not uri.isprintable() or " " in uri:
        return "is no URI"
    if parts.username is not None or parts.password is not None:
        return "must hold no credentials"
    if parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host)):
        return None
    return "must be https, or http on a loopback address"


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
