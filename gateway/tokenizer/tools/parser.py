"""Takes the calls out of an output while it is generated.

What is certain to be text is told at once; a call is told when it is complete, and becomes text where it is none: cut
short, no JSON, or of a tool that was not offered. White space before a call is dropped. The parts are the same for
every way of cutting the output into pieces.
"""

import json
from collections import abc
from typing import NamedTuple

from gateway.tokenizer.description import Json
from gateway.tokenizer.tools.json_span import JsonSpan
from gateway.tokenizer.tools.styles import ToolStyle

_BETWEEN = " \t\r\n;,"
_ARGUMENT_NAMES = ("arguments", "parameters")


class FoundCall(NamedTuple):
    """A call of an offered tool; `arguments` is JSON text of an object."""

    name: str
    arguments: str


Part = str | FoundCall


class ToolCallParser:
    """One output's. `push` returns what is certain, `finish` the rest; `num_calls` were found so far."""

    def __init__(self, style: ToolStyle, names: abc.Set[str], *, is_single: bool = False) -> None:
        """`names` of the tools that were offered; with `is_single` what comes behind the first call is dropped."""
        self._end = style.end
        self._begin = style.begin or style.optional_begin
        self._may_be_bare = not style.begin
        self._names = names
        self._is_single = is_single
        self._held = ""
        self._is_text = True
        self._opening = ""  # what is text, too, unless a call follows; empty once one did
        self._span: JsonSpan | None = None
        self.num_calls = 0

    def push(self, text: str) -> list[Part]:
        """What `text` makes certain."""
        self._held += text
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return _joined(parts)

    def finish(self) -> list[Part]:
        """What was held back. The output has ended."""
        rest = self._opening + self._held
        self._held, self._opening, self._span, self._is_text = "", "", None, True
        is_between = bool(self.num_calls) and not rest.strip(_BETWEEN)
        return [] if not rest or is_between else [rest]

    def _advance(self, parts: list[Part]) -> bool:
        """One step; False if more text has to come first."""
        if self._is_single and self.num_calls:
            self._held = self._opening = ""
            return False
        if self._is_text:
            return self._advance_text(parts)
        if self._span is not None:
            return self._advance_value(self._span, parts)
        return self._advance_calls(parts)

    def _advance_text(self, parts: list[Part]) -> bool:
        if self._may_be_bare and self._held.strip():
            self._may_be_bare = False
            if self._held.lstrip()[0] == "{":
                self._is_text = False
                return True
        place = self._held.find(self._begin)
        if place >= 0:
            said = self._held[:place].rstrip()
            parts.append(said)
            end = place + len(self._begin)
            self._opening, self._held, self._is_text = self._held[len(said) : end], self._held[end:], False
            return True
        certain = self._held[: len(self._held) - _overlap(self._held, self._begin)].rstrip()
        parts.append(certain)
        self._held = self._held[len(certain) :]
        return False

    def _advance_calls(self, parts: list[Part]) -> bool:
        """Between an opening and a call, or behind a call."""
        stripped = self._held.lstrip(_BETWEEN)
        if not stripped:
            return False
        if stripped[0] in "{[":
            self._opening += self._held[: -len(stripped)]
            self._held, self._span = stripped, JsonSpan()
            return True
        if self._end and self._end.startswith(stripped[: len(self._end)]) and not self._opening:
            if len(stripped) < len(self._end):
                return False
            self._held, self._is_text = stripped[len(self._end) :], True
            return True
        self._give_up(parts)
        return True

    def _advance_value(self, span: JsonSpan, parts: list[Part]) -> bool:
        length = span.length(self._held)
        if length is None:
            return False
        calls = self._calls_in(self._held[:length])
        self._span = None
        if calls is None:
            self._opening += self._held[:length]
            self._held = self._held[length:]
            self._give_up(parts)
            return True
        wanted = calls[:1] if self._is_single else calls
        parts.extend(wanted)
        self.num_calls += len(wanted)
        self._opening, self._held = "", self._held[length:]
        return True

    def _give_up(self, parts: list[Part]) -> None:
        """What was opened is text."""
        parts.append(self._opening)
        self._opening, self._is_text = "", True

    def _calls_in(self, value: str) -> list[FoundCall] | None:
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            return None
        entries = decoded if isinstance(decoded, list) else [decoded]
        calls = [_call_of(entry, self._names) for entry in entries]
        found = [call for call in calls if call is not None]
        return found if found and len(found) == len(calls) else None


def _call_of(entry: object, names: abc.Set[str]) -> FoundCall | None:
    if not isinstance(entry, dict):
        return None
    function = entry.get("function")  # as OpenAI's own list of calls has it
    call: Json = function if isinstance(function, dict) else entry
    name = call.get("name")
    if not isinstance(name, str) or name not in names:
        return None
    arguments: object = next((call[key] for key in _ARGUMENT_NAMES if key in call), {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return None
    return FoundCall(name, json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _overlap(text: str, marker: str) -> int:
    """How many characters at the end of `text` could begin `marker`."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)


def _joined(parts: abc.Iterable[Part]) -> list[Part]:
    """Neighbouring texts as one, without empty ones."""
    joined: list[Part] = []
    for part in parts:
        if isinstance(part, str) and joined and isinstance(joined[-1], str):
            joined[-1] += part
        elif part:
            joined.append(part)
    return joined
