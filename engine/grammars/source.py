"""A grammar as it is asked for. Knows nothing of tokens."""

from dataclasses import dataclass
from enum import Enum


class GrammarKind(Enum):
    """What language a grammar is written in; the values are the wire's names."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """The text of a grammar."""

    kind: GrammarKind
    text: str

    @property
    def field(self) -> str:
        """Where the wire has it."""
        return f"sampling.grammar.{self.kind.value}"
