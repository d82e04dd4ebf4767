"""Pages of a list (AIP-158): sizes, and tokens that nobody but this service can make.

A token carries the key of the last resource of its page and is signed together with the list it continues, so that it
cannot be edited, nor used with another method, parent or caller.
"""

import base64
import binascii
import hashlib
import hmac

from gateway.admin.names import invalid

DEFAULT_PAGE_SIZE = 50
MAX_PAGE_SIZE = 1000
SIGNATURE_BYTES = 16


class PageTokens:
    """Signs and checks page tokens with a key derived from `secret`."""

    def __init__(self, secret: bytes) -> None:
        self._key = hmac.digest(secret, b"evenflow page token", hashlib.sha256)

    def issue(self, last: str, listing: str) -> str:
        """The token that continues `listing` after the resource with key `last`."""
        payload = last.encode()
        return base64.urlsafe_b64encode(self._sign(payload, listing) + payload).decode().rstrip("=")

    def read(self, token: str, listing: str) -> str | None:
        """The key to continue after, None for the first page. Raises InvalidFieldError for another list's token."""
        if not token:
            return None
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        signature, payload = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._sign(payload, listing)):
            raise invalid("page_token", "is not a token of this list")
        return payload.decode()

    def _sign(self, payload: bytes, listing: str) -> bytes:
        return hmac.digest(self._key, listing.encode() + b"\0" + payload, hashlib.sha256)[:SIGNATURE_BYTES]


def page_size(requested: int) -> int:
    """0 asks for the default; more than the most is cut to it. Raises InvalidFieldError below 0."""
    if requested < 0:
        raise invalid("page_size", "must not be negative")
    return min(requested, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE
