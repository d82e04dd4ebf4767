"""The text of an API key: `ef_live_<12 public id>_<43 secret>_<6 checksum>`, all in base 62.

Owns the format, its checksum and the keyed hash; knows no database. The checksum (CRC-32 of what precedes it) rejects a
mistyped key before anything is looked up, the prefix serves secret scanners, and underscores keep a double click on the
whole key. 43 characters carry 256 random bits, so a fast keyed hash is enough to store them.
Source of the shape: GitHub's token format, https://github.blog/engineering/behind-githubs-new-authentication-token-formats/
"""

import hmac
import re
import secrets
import string
import zlib
from datetime import UTC, datetime
from typing import NamedTuple

PREFIX = "ef_live_"
NUM_PUBLIC_ID_CHARS = 12
NUM_SECRET_CHARS = 43
NUM_CHECKSUM_CHARS = 6
# The API's word for a key without an end: the last second of its timestamps.
NEVER_EXPIRES = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
_BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
_FORMAT = re.compile(
    rf"({PREFIX}([0-9A-Za-z]{{{NUM_PUBLIC_ID_CHARS}}})_([0-9A-Za-z]{{{NUM_SECRET_CHARS}}})_)"
    rf"([0-9A-Za-z]{{{NUM_CHECKSUM_CHARS}}})",
    re.ASCII,
)


class ParsedKey(NamedTuple):
    """The two halves of a well-formed key: where to look, and what to prove."""

    public_id: str
    secret: str


class GeneratedKey(NamedTuple):
    """A new key; `text` is what its owner gets, once."""

    public_id: str
    secret: str
    text: str


def generate() -> GeneratedKey:
    """A new key from the system's random source."""
    public_id = _random_base62(NUM_PUBLIC_ID_CHARS)
    secret = _random_base62(NUM_SECRET_CHARS)
    return GeneratedKey(public_id, secret, format_key(public_id, secret))


def format_key(public_id: str, secret: str) -> str:
    """The key's text, checksum included."""
    body = f"{PREFIX}{public_id}_{secret}_"
    return body + _checksum(body)


def parse(text: str) -> ParsedKey | None:
    """The key's parts, or None where format or checksum is wrong. Looks nothing up."""
    match = _FORMAT.fullmatch(text)
    if match is None or match[4] != _checksum(match[1]):
        return None
    return ParsedKey(match[2], match[3])


def digest(pepper: bytes, secret: str) -> bytes:
    """What is stored instead of the secret: HMAC-SHA256, 32 bytes, useless without the pepper."""
    return hmac.digest(pepper, secret.encode("ascii"), "sha256")


def is_match(pepper: bytes, secret: str, stored_digest: bytes) -> bool:
    """Whether the secret is the stored one, in a time that tells nothing."""
    return hmac.compare_digest(digest(pepper, secret), stored_digest)


def _random_base62(num_chars: int) -> str:
    return "".join(secrets.choice(_BASE62) for _ in range(num_chars))


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode("ascii"))
    digits = []
    for _ in range(NUM_CHECKSUM_CHARS):
        value, digit = divmod(value, len(_BASE62))
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))
