"""A rule of the real code, changed for the length of a test: expressions of single methods are replaced by others.

The method's source is taken as it is now, so that a test fails loudly when the rule has moved elsewhere.
"""

import inspect
import sys
import textwrap
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass


class LostRuleError(AssertionError):
    """The text that was to be replaced is not in the method."""


@dataclass(frozen=True, slots=True)
class Edit:
    """In the source of `owner.method` each `old` becomes its `new`. An `old` must occur exactly once."""

    owner: type
    method: str
    replacements: abc.Mapping[str, str]


@contextmanager
def changed(*edits: Edit) -> abc.Iterator[None]:
    """The classes have the changed methods, until the end of the block."""
    originals = [(edit.owner, edit.method, vars(edit.owner)[edit.method]) for edit in edits]
    try:
        for edit in edits:
            setattr(edit.owner, edit.method, _edited(edit))
        yield
    finally:
        for owner, method, original in reversed(originals):
            setattr(owner, method, original)


def _edited(edit: Edit) -> object:
    original = vars(edit.owner)[edit.method]
    is_property = isinstance(original, property)
    source = textwrap.dedent(inspect.getsource(original.fget if is_property else original))
    for old, new in edit.replacements.items():
        if source.count(old) != 1:
            raise LostRuleError(f"{edit.owner.__name__}.{edit.method} has {source.count(old)} times {old!r}")
        source = source.replace(old, new)
    namespace = dict(vars(sys.modules[edit.owner.__module__]))
    exec(source, namespace)  # our own source, one expression changed
    return namespace[edit.method]  # of a property, the decorator is part of the source
