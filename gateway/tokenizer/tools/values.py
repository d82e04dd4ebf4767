"""Tools and calls in plain values. Knows no template, no wire."""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model may call. `parameters` is a JSON schema of an object, as text; empty: it takes nothing.

    `is_strict`: arguments follow the schema, also where the model chooses by itself to call.
    """

    name: str
    description: str
    parameters: str
    is_strict: bool = False

    @property
    def schema(self) -> str:
        """Of its arguments."""
        return self.parameters or '{"type": "object", "properties": {}, "additionalProperties": false}'


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that an assistant made. `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class ChoiceMode(Enum):
    """Whether a model calls: as it likes, not at all, or in any case."""

    AUTO = "auto"
    NONE = "none"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`name`: with REQUIRED, the one tool that is called; `is_single`: one call at most."""

    mode: ChoiceMode = ChoiceMode.AUTO
    name: str = ""
    is_single: bool = False


AS_IT_LIKES = ToolChoice()
"""The model answers or calls, any number of times."""
