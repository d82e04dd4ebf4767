"""Three versions of one thing, part by part: as it was opened, as somebody else has made it since, and as wanted.

What only one side has changed is taken from that side; what both have changed is the wanted one's, and marked. So
saving on top of another's change undoes nothing that the form had not touched. Pure.
"""

from collections import abc
from dataclasses import dataclass

from google.protobuf.message import Message

NONE = "none"

PartKey = tuple[str, ...]
"""("weight",), or ("limits", dimension, model) of a list's member: what a part is told from all others by."""


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a version says: what it is about, and how it reads. `message` is a list's member."""

    label: str
    text: str
    message: Message | None = None


PartByKey = abc.Mapping[PartKey, Part]


@dataclass(frozen=True, slots=True)
class Difference:
    """A part that is not the same in all three. `result` is what saving on top makes of it."""

    label: str
    base: str
    theirs: str
    yours: str
    result: str
    is_conflict: bool

    @property
    def is_agreed(self) -> bool:
        """Whether both have made the same change."""
        return self.theirs == self.yours != self.base


def differences(base: PartByKey, theirs: PartByKey, yours: PartByKey) -> list[Difference]:
    """What is not the same in all three, in the order of `theirs` and then of `yours`."""
    found = []
    for key in all_keys(base, theirs, yours):
        parts = [side.get(key) for side in (base, theirs, yours)]
        old, their, your = (text_of(part) for part in parts)
        if not old == their == your:
            label = next(part.label for part in parts if part is not None)
            is_conflict = old not in (their, your) and their != your
            found.append(Difference(label, old, their, your, your if your != old else their, is_conflict))
    return found


def all_keys(base: PartByKey, theirs: PartByKey, yours: PartByKey) -> list[PartKey]:
    """Each once."""
    return list(dict.fromkeys(key for side in (theirs, yours, base) for key in side))


def text_of(part: Part | None) -> str:
    """How the part reads, or its absence."""
    return NONE if part is None else part.text
