"""The audit chain as arithmetic: each event's hash covers the event and the hash before it.

Owns the canonical form of an event and its hash, which is the same in the database, on the wire and in an exported
file. Knows no table and no file.
"""

import hashlib
import json
from collections import abc
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypedDict

FIRST_HASH = bytes(32)

Document = abc.Mapping[str, object]
"""A record's settings as JSON values."""


class EventContent(TypedDict):
    """What of an audit event its hash covers. `event_time` to the microsecond."""

    event_time: datetime
    revision: int
    actor: str
    correlation_id: str
    action: str
    resource: str
    before: Document | None
    after: Document | None


@dataclass(frozen=True, slots=True)
class ChainedEvent:
    """One event with its id, which grows, and its place in the chain."""

    id: int
    content: EventContent
    previous_hash: bytes
    hash: bytes


@dataclass(frozen=True, slots=True)
class ChainIntact:
    """Every event is as it was written, and none is missing."""

    num_events: int


@dataclass(frozen=True, slots=True)
class ChainBroken:
    """The first event that does not follow from the one before it; None where the newest ones are missing.

    `position`: it is the first, second, … event of the chain. Ids have gaps, where changes were not made in the end.
    """

    event_id: int | None
    position: int = 0


class ChainCheck:
    """Follows a chain from its first event on."""

    def __init__(self) -> None:
        self.head = FIRST_HASH
        self.num_events = 0
        self.broken: ChainBroken | None = None
        self.last_id = 0
        self.last_revision = 0

    def add(self, event: ChainedEvent) -> None:
        """`broken` is set if the event is not the one that was written after the last; the first such one stays."""
        follows = event.previous_hash == self.head and event.id > self.last_id
        if self.broken is None and not (follows and event.hash == chain_hash(self.head, event.content)):
            self.broken = ChainBroken(event.id, self.num_events + 1)
        self.head, self.last_id, self.last_revision = event.hash, event.id, event.content["revision"]
        self.num_events += 1

    def end(self, head: bytes, revision: int) -> ChainIntact | ChainBroken:
        """The verdict on the whole, of which `head` is the newest hash by another witness, and `revision` that event's.

        Whoever resets both to those of an earlier event is not seen here: only a copy kept elsewhere tells.
        """
        if self.broken is not None:
            return self.broken
        is_whole = (self.head, self.last_revision) == (head, revision)
        return ChainIntact(self.num_events) if is_whole else ChainBroken(None)


def chain_hash(previous_hash: bytes, content: EventContent) -> bytes:
    """The hash of the event that follows the one with `previous_hash`, 32 bytes."""
    return hash_of_text(previous_hash, canonical(content))


def hash_of_text(previous_hash: bytes, text: str) -> bytes:
    """The same, of an event's canonical form."""
    return hashlib.sha256(previous_hash + text.encode()).digest()


def canonical(content: EventContent) -> str:
    """JSON with sorted keys and no spaces, the time in UTC to the microsecond."""
    document = {**content, "event_time": content["event_time"].astimezone(UTC).isoformat(timespec="microseconds")}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
