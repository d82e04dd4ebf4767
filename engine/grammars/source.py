"""A grammar as it is asked for. Knows nothing of tokens."""

from dataclasses import dataclass
from enum import Enum


class GrammarKind(Enum):
    """What language a grammar is written in; the values are the wire's names."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class NamedSchema:
    """A JSON schema, and the name of the field by which whoever asks knows it."""

    field: str
    text: str


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The text of a grammar.

    parts  the schemas that it was made of, where somebody else wrote those
    name   the field by which whoever asks knows it; empty: the wire's own
    """

    kind: GrammarKind
    text: str
    parts: tuple[NamedSchema, ...] = ()
    name: str = ""

    @property
    def field(self) -> str:
        """What it is refused by."""
        return self.name or f"sampling.grammar.{self.kind.value}"
