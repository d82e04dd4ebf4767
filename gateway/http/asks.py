"""What bodies have in common: strict types, no field that means nothing, and each problem named by its parameter.

A field that OpenAI has and this gateway does not is refused, unless it is left at what it would be anyway. JSON null is
the same as leaving a field out, as OpenAI has it.
"""

from collections import abc
from typing import ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.config import JsonDict
from pydantic_core import ErrorDetails

from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.refusals import UnknownParameterError, UnsupportedParameterError

MAX_VIOLATIONS = 32
MAX_NAME_CHARS = 256
# More than the ids of a prompt that fills a context. What has millions of parts takes a second to parse, in which
# everybody else waits; four megabytes of text take a millisecond.
MAX_SEPARATORS = 150_000
# What pydantic calls the branches of the bodies' unions, among the names of fields.
_BRANCHES = frozenset(
    {
        "str",
        "constrained-str",
        "list[constrained-str]",
        "list[constrained-int]",
        "list[list[constrained-int]]",
        "list[TextPart]",
        "list[ResponsePart]",
        "literal['none','auto','required']",
        "NamedChoice",
        "FunctionChoice",
        "InputText",
        "InputItems",
        "InputMessage",
        "CallItem",
        "CallOutputItem",
        "PlainMessage",
        "AssistantMessage",
        "ToolMessage",
        "PlainFormat",
        "SchemaResponse",
        "[key]",
    }
)
# Its names are the client's, and it has no union.
_FREE = "metadata"

Neutral = abc.Mapping[str, tuple[object, ...]]
"""Fields that cannot be set, with the values that they may be left at."""

OFF: tuple[object, ...] = (None,)
"""Of a field that may only be left out."""


def _closed(schema: JsonDict) -> None:
    schema["additionalProperties"] = False


class Ask(BaseModel):
    """A body, or an object in one. `NEUTRAL` are the fields of OpenAI's that cannot be set here."""

    model_config = ConfigDict(
        extra="allow", strict=True, frozen=True, hide_input_in_errors=True, json_schema_extra=_closed
    )
    NEUTRAL: ClassVar[Neutral] = {}

    def require_known(self, path: str = "") -> None:
        """Raises UnsupportedParameterError or UnknownParameterError for a field that would change nothing here."""
        for name, value in (self.model_extra or {}).items():
            neutral = self.NEUTRAL.get(name)
            shown = f"{path}{name}"[:MAX_NAME_CHARS]
            if neutral is None:
                raise UnknownParameterError(FieldViolation(shown, "there is no such parameter"))
            if not any(value == left and type(value) is type(left) for left in neutral):
                raise UnsupportedParameterError(FieldViolation(shown, "this parameter cannot be set here"))


Body = TypeVar("Body", bound=Ask)


def parsed(kind: type[Body], raw: bytes) -> Body:
    """The body, in which every field is of its type and none is unknown. Raises InvalidFieldError."""
    if raw.count(b",") > MAX_SEPARATORS:
        raise InvalidFieldError(FieldViolation("", f"a body may have at most {MAX_SEPARATORS} commas"))
    try:
        body = kind.model_validate_json(raw)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        raise InvalidFieldError(*_violations(details)) from None
    body.require_known()
    return body


def _violations(details: abc.Sequence[ErrorDetails]) -> list[FieldViolation]:
    """One for each field; of a union's branches, the one that came furthest."""
    furthest: dict[str, tuple[int, FieldViolation]] = {}
    for detail in details[: 8 * MAX_VIOLATIONS]:
        names = _names(detail["loc"])
        top = str(names[0]) if names else ""
        if top not in furthest or furthest[top][0] < len(names):
            furthest[top] = len(names), FieldViolation(_path(names), detail["msg"].removeprefix("Value error, "))
    return [violation for _, violation in furthest.values()][:MAX_VIOLATIONS]


def _names(place: tuple[int | str, ...]) -> list[int | str]:
    """Without the branches."""
    return [part for part in place if part not in _BRANCHES or place[0] == _FREE]


def _path(names: abc.Sequence[int | str]) -> str:
    """`messages[0].role`."""
    path = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in names)
    return path.removeprefix(".")[:MAX_NAME_CHARS]
