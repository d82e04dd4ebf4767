"""Usage events as JSON: what the spool keeps, and what one statement's only parameter holds.

A reader takes what an older or newer release wrote: unknown names are left out, missing ones have their defaults.
"""

import json
from datetime import datetime
from uuid import UUID

from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent, values_of

_UUIDS = ("generation_id", "organization_id", "team_id", "key_id")
_NAMES = frozenset(UsageEvent.__slots__)


def encode_event(event: UsageEvent) -> bytes:
    """The event, whole, as UTF-8 JSON."""
    return json.dumps(values_of(event), default=str, separators=(",", ":")).encode()


def decode_event(data: bytes) -> UsageEvent:
    """Raises ValueError where `data` is no event."""
    try:
        values = {name: value for name, value in json.loads(data).items() if name in _NAMES}
        values |= {name: UUID(values[name]) for name in _UUIDS}
        values["source"] = UsageSource(values["source"])
        values["finished_at"] = datetime.fromisoformat(values["finished_at"])
        return UsageEvent(**values)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no usage event: {error}") from error
