"""Keys derived from the pepper, and what is signed with them: JSON Web Tokens with HMAC-SHA256 (RFC 7519).

Every gateway of one pepper accepts what another has signed. The newest version of the pepper signs; what older ones
signed is accepted until it expires.
"""

from collections import abc

import jwt
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from gateway.pepper import PepperSource

ALGORITHM = "HS256"
KEY_BYTES = 32
Claims = abc.Mapping[str, object]


class DerivedKeys:
    """The keys for one `purpose`, one of each version of the pepper. Mutated by itself only."""

    def __init__(self, peppers: PepperSource, purpose: str) -> None:
        self._peppers = peppers
        self._info = f"evenflow console {purpose}".encode()
        self._key_by_version: dict[int, bytes] = {}

    def of(self, version: int) -> bytes:
        """Derived once. Raises KeyError for a version that there is not."""
        key = self._key_by_version.get(version)
        if key is None:
            derive = HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=None, info=self._info)
            key = self._key_by_version[version] = derive.derive(self._peppers.current.by_version[version])
        return key


class Signer:
    """Signs and checks for one `purpose`: what was signed for another one is nothing here."""

    def __init__(self, peppers: PepperSource, purpose: str) -> None:
        self._peppers = peppers
        self._purpose = purpose
        self._keys = DerivedKeys(peppers, purpose)

    def sign(self, claims: Claims) -> str:
        """`claims` with an `exp`, as text that is safe in a cookie."""
        version = self._peppers.current.version
        return jwt.encode(
            {**claims, "aud": self._purpose}, self._keys.of(version), ALGORITHM, headers={"kid": str(version)}
        )

    def read(self, text: str) -> Claims | None:
        """The claims; None for what has expired, was changed, or was never signed here."""
        try:
            version = jwt.get_unverified_header(text).get("kid", "")
            if not (version.isascii() and version.isdigit()) or not self._peppers.has(int(version)):
                return None
            claims: Claims = jwt.decode(
                text,
                self._keys.of(int(version)),
                algorithms=[ALGORITHM],
                audience=self._purpose,
                options={"require": ["exp", "aud"]},
            )
        except (jwt.PyJWTError, ValueError, RecursionError):
            return None
        return claims
