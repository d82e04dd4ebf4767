"""What may stand for a credential once it was proved, so that nobody has to keep the credential itself.

Holds no secret: it says whom to look up, and is worth as much as the care that is taken of it (a session is signed).
What its holder may do is looked up anew at each use.
"""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from gateway.auth.claims import TokenIdentity


@dataclass(frozen=True, slots=True)
class RememberedKey:
    """`secret_created_at` tells which of the key's secrets was proved; `expires_at` None: the key has no end."""

    public_id: str
    secret_created_at: datetime
    expires_at: datetime | None


@dataclass(frozen=True, slots=True)
class RememberedToken:
    """What the token said. It holds for the issuer as it was then: `issuer_revision` is another after any edit."""

    issuer: str
    issuer_id: UUID
    issuer_revision: int
    identity: TokenIdentity
    expires_at: datetime


Remembered = RememberedKey | RememberedToken
