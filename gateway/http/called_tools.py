"""Calls of tools in an answer, as OpenAI has them: taken out of the text as it comes, each told when it is whole."""

import hashlib
from collections import abc
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from gateway.tokenizer.tools import FoundCall, Part, ToolCallParser, ToolStyle

ID_HEX_CHARACTERS = 24


class CalledFunction(BaseModel):
    """`arguments` is JSON text."""

    name: str
    arguments: str


class ToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ToolCallDelta(ToolCall):
    """A whole call; `index` among the choice's calls."""

    index: int


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """What an answer may call; `is_single`: one call at most."""

    style: ToolStyle
    names: frozenset[str]
    is_single: bool

    def reader(self, generation_id: str, choice: int) -> "CallReader":
        """Of one choice."""
        return CallReader(self, f"{generation_id}:{choice}")


class CallReader:
    """One choice's text and calls. Ids follow from the generation, so that who asks again sees the same."""

    def __init__(self, offered: OfferedTools, scope: str) -> None:
        self._parser = ToolCallParser(offered.style, offered.names, is_single=offered.is_single)
        self._id_length = offered.style.call_id_length
        self._scope = scope
        self.num_calls = 0

    def push(self, text: str) -> list[str | ToolCallDelta]:
        """What `text` makes certain."""
        return self._told(self._parser.push(text))

    def finish(self) -> list[str | ToolCallDelta]:
        """The rest."""
        return self._told(self._parser.finish())

    def _told(self, parts: abc.Iterable[Part]) -> list[str | ToolCallDelta]:
        return [self._call(part) if isinstance(part, FoundCall) else part for part in parts]

    def _call(self, found: FoundCall) -> ToolCallDelta:
        index = self.num_calls
        self.num_calls += 1
        digest = hashlib.sha256(f"{self._scope}:{index}".encode()).hexdigest()
        call_id = digest[: self._id_length] if self._id_length else f"call_{digest[:ID_HEX_CHARACTERS]}"
        function = CalledFunction(name=found.name, arguments=found.arguments)
        return ToolCallDelta(index=index, id=call_id, type="function", function=function)
