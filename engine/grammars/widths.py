"""How much a JSON schema leaves open at once: what the parser holds, row by row, until it knows what is written.

An object without required properties may go on with any of them; alternatives may all be meant until one has shown
itself, each with what stands beside them. Pure.
"""

from collections import abc
from typing import Any, NamedTuple

from engine.grammars.references import References

MAX_COUNTED = 1_000_000  # beyond, it is far too much in any case


class Width(NamedTuple):
    """`num_forms` alternatives, with `num_optional` properties that are not required in all of them together."""

    num_forms: int
    num_optional: int

    def beside(self, other: "Width") -> "Width":
        """Both hold at once: each form of one with each of the other."""
        return _capped(
            self.num_forms * other.num_forms,
            self.num_optional * other.num_forms + other.num_optional * self.num_forms,
        )


PLAIN = Width(1, 0)


class Widths:
    """Of the parts of one document, each computed once."""

    def __init__(self, root: object) -> None:
        self._references = References(root)
        self._by_id: dict[int, Width] = {}

    def of(self, part: object) -> Width:
        """Raises RecursionError for what is nested too deeply."""
        if not isinstance(part, dict):
            return PLAIN
        known = self._by_id.get(id(part))
        if known is None:
            self._by_id[id(part)] = PLAIN  # where it is a part of itself, it is open there, and not here
            known = self._by_id[id(part)] = self._computed(part)
        return known

    def _computed(self, part: dict[str, Any]) -> Width:
        width = Width(1, num_optional(part))
        for branch in _schemas(part.get("allOf")):
            width = width.beside(self.of(branch))
        for union in (_schemas(part.get("anyOf")), _schemas(part.get("oneOf"))):
            if union:
                width = width.beside(self._of_any(union))
        return width.beside(self._of_reference(part.get("$ref")))

    def _of_reference(self, reference: object) -> Width:
        """The widest that it may mean. What cannot be followed is refused elsewhere."""
        widths = [self.of(part) for part in self._references.meanings(reference)] or [PLAIN]
        return Width(max(width.num_forms for width in widths), max(width.num_optional for width in widths))

    def _of_any(self, branches: abc.Sequence[object]) -> Width:
        widths = [self.of(branch) for branch in branches]
        numbers = [width.num_optional for width in widths]
        are_told_apart = _are_told_apart([self._followed(branch) for branch in branches])
        return _capped(sum(width.num_forms for width in widths), max(numbers) if are_told_apart else sum(numbers))

    def _followed(self, part: object) -> object:
        """What `part` refers to, if it does nothing else and means one thing."""
        if not isinstance(part, dict) or part.keys() != {"$ref"}:
            return part
        meanings = self._references.meanings(part["$ref"])
        return meanings[0] if len(meanings) == 1 else part


def num_optional(part: dict[str, Any]) -> int:
    """Properties of this object that it need not have."""
    properties, required, patterns = part.get("properties"), part.get("required"), part.get("patternProperties")
    number = len(patterns) if isinstance(patterns, dict) else 0
    if not isinstance(properties, dict):
        return number
    named = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
    return number + len(properties.keys() - named)


def _schemas(given: object) -> list[object]:
    return given if isinstance(given, list) else []


def _are_told_apart(branches: abc.Sequence[object]) -> bool:
    """Whether each begins with the same property, which it has to have, and of which each has a value of its own."""
    values = set()
    names = set()
    for branch in branches:
        properties = branch.get("properties") if isinstance(branch, dict) else None
        if not isinstance(branch, dict) or not isinstance(properties, dict) or not properties:
            return False
        name = next(iter(properties))
        only = properties[name].get("const") if isinstance(properties[name], dict) else None
        if not isinstance(only, str) or name not in _schemas(branch.get("required")):
            return False
        names.add(name)
        values.add(only)
    return len(names) == 1 and len(values) == len(branches)


def _capped(num_forms: int, num_optional_: int) -> Width:
    return Width(min(num_forms, MAX_COUNTED), min(num_optional_, MAX_COUNTED))
