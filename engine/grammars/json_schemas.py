"""What a JSON schema may not ask for, because the library would only find out while an output is written."""

from typing import Any

from engine.errors import InvalidFieldError

# Any of them may come next, so the parser holds a row for each at once; the library gives up at some five hundred.
MAX_OPTIONAL_PROPERTIES = 256
OPTIONS_KEY = "x-guidance"
KNOWN_OPTIONS = frozenset({"whitespace_flexible"})


def require_modest(schema: dict[str, Any], field: str) -> None:
    """Raises InvalidFieldError for more optional properties of one object than can be told apart, and for options of
    the library's by which it would pass over what it does not know."""
    options = schema.get(OPTIONS_KEY, {})
    if not isinstance(options, dict) or not options.keys() <= KNOWN_OPTIONS:
        raise InvalidFieldError(field, f"{OPTIONS_KEY} may set {', '.join(sorted(KNOWN_OPTIONS))} only")
    waiting: list[Any] = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            if _num_optional(part) > MAX_OPTIONAL_PROPERTIES:
                raise InvalidFieldError(
                    field, f"an object may have at most {MAX_OPTIONAL_PROPERTIES} properties that are not required"
                )


def _num_optional(part: dict[str, Any]) -> int:
    properties, required = part.get("properties"), part.get("required")
    if not isinstance(properties, dict):
        return 0
    named = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set[str]()
    return len(properties.keys() - named)
