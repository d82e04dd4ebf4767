"""What a JSON schema may not ask for, because the library would only find out while an output is written."""

import json
import re
from collections import abc
from typing import Any

from engine.errors import InvalidFieldError
from engine.grammars.references import References
from engine.grammars.widths import Widths, num_optional

# Any of them may come next, so the parser holds rows for each at once; the library gives up at some five hundred.
MAX_OPTIONAL_PROPERTIES = 256
# Of the library's 2,000 rows: as many as it was seen to hold for a property that may come next, and one for each form.
MAX_ROWS = 1_900
ROWS_PER_PROPERTY = 4
OPTIONS_KEY = "x-guidance"
KNOWN_OPTIONS = frozenset({"whitespace_flexible"})
_INLINE = re.compile(r"%json\s*")
MAX_REFERENCE_CHARACTERS = 100  # as it is told
_TOO_WIDE = f"an object may have at most {MAX_OPTIONAL_PROPERTIES} properties that are not required"
_TOO_OPEN = (
    "leaves too much open at once: what its alternatives (anyOf, oneOf) need not have may be at most"
    f" {MAX_ROWS // ROWS_PER_PROPERTY} properties together, with those beside them counted for each"
)


def require_known_options(schema: dict[str, Any], field: str) -> None:
    """Raises InvalidFieldError for options of the library's by which it would pass over what it does not know."""
    options = schema.get(OPTIONS_KEY, {})
    if not isinstance(options, dict) or not options.keys() <= KNOWN_OPTIONS:
        raise InvalidFieldError(field, f"{OPTIONS_KEY} may set {', '.join(sorted(KNOWN_OPTIONS))} only")


def require_narrow(schema: object, field: str) -> None:
    """Raises InvalidFieldError for more properties that may come next, in one object or any, than can be told apart."""
    widths = Widths(schema)
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            if num_optional(part) > MAX_OPTIONAL_PROPERTIES:
                raise InvalidFieldError(field, _TOO_WIDE)
            if _num_rows(widths, part, field) > MAX_ROWS:
                raise InvalidFieldError(field, _TOO_OPEN)


def require_followed(schema: object, field: str) -> None:
    """Raises InvalidFieldError for a reference whose width nobody knows. The library has its say before: for what it
    cannot follow either it has words of its own."""
    reference = References(schema).unfollowed()
    if reference is not None:
        text = reference[:MAX_REFERENCE_CHARACTERS]
        raise InvalidFieldError(field, f"cannot be held to: the reference {text} cannot be followed in its document")


def schemas_in(lark: str) -> abc.Iterator[object]:
    """Those that stand in a grammar. What cannot be read is left to the library, which says what is wrong with it."""
    decoder = json.JSONDecoder()
    for mark in _INLINE.finditer(lark):
        try:
            yield decoder.raw_decode(lark, mark.end())[0]
        except (ValueError, RecursionError):
            continue


def _num_rows(widths: Widths, part: dict[str, Any], field: str) -> int:
    try:
        width = widths.of(part)
    except RecursionError:
        raise InvalidFieldError(field, "is nested too deeply") from None
    return ROWS_PER_PROPERTY * width.num_optional + width.num_forms
