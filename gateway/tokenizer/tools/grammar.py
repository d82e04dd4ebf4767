"""Grammars of outputs that call tools, in the dialect of Lark that llguidance reads.

Three kinds: calls and nothing else; calls, or an answer that follows a schema; text, in which whatever begins as a call
goes on as one.
"""

import json
from collections import abc
from dataclasses import dataclass

from gateway.tokenizer.description import Json
from gateway.tokenizer.tools.styles import ToolStyle
from gateway.tokenizer.tools.values import Tool

MAX_CALLS = 16
# As the engine lays JSON out: a small model would otherwise write blank space without end.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_TEXT = "TEXT: /(.|\\n)*/\n"
# A schema of its own has names of its own; inside another one they would be the whole's.
_OWN_NAMES = ("$schema", "$id")


@dataclass(frozen=True, slots=True)
class CallGrammar:
    """How `tools` are called in a style. `id_by_text`: the texts that are tokens of their own."""

    style: ToolStyle
    tools: abc.Sequence[Tool]
    id_by_text: abc.Mapping[str, int]
    is_single: bool

    def calls_only(self) -> str:
        """At least one call."""
        return f"start: calls\n{self._calls()}"

    def calls_or_answer(self, schema: str) -> str:
        """Calls, or JSON that follows `schema`."""
        answer = {**json.loads(schema), "x-guidance": _LAYOUT}
        return f"start: calls | answer\n{self._calls()}answer: %json {json.dumps(answer)}\n"

    def free(self) -> str:
        """Any text; what begins as a call is one."""
        begin, more = self.style.begin, "?" if self.is_single else f"{{0,{MAX_CALLS}}}"
        if not begin:
            return f"start: calls | OTHER\nOTHER: /([^{{\\s](.|\\n)*)?/\n{self._calls()}"
        if begin in self.id_by_text:
            return f"start: TEXT (call TEXT){more}\n{_TEXT}{self._call(self._terminal(begin))}"
        head = f"head[lazy]: TEXT {json.dumps(begin)}\n"
        return f"start: (head call){more} tail\ntail: TEXT\n{_TEXT}{head}{self._call('')}"

    def _calls(self) -> str:
        style = self.style
        number = 1 if self.is_single or style.is_list else MAX_CALLS
        more = f" ({json.dumps(style.separator)} call){{0,{number - 1}}}" if number > 1 else ""
        return f"calls: call{more}\n{self._call(self._terminal(style.begin))}"

    def _call(self, begin: str) -> str:
        """One call, or one list of calls, after `begin`."""
        style, gap = self.style, json.dumps(self.style.gap) if self.style.gap else ""
        number = 1 if self.is_single else MAX_CALLS
        if style.is_list:
            any_call = self._any_call("#/items/anyOf")
            schema: Json = {"type": "array", "items": any_call, "minItems": 1, "maxItems": number}
        else:
            schema = self._any_call("#/anyOf")
        body = json.dumps({"x-guidance": _LAYOUT, **schema})
        return f"call: {begin} {gap} body {gap} {self._terminal(style.end)}\nbody: %json {body}\n"

    def _any_call(self, at: str) -> Json:
        return {"anyOf": [self._schema(tool, f"{at}/{index}") for index, tool in enumerate(self.tools)]}

    def _schema(self, tool: Tool, at: str) -> Json:
        name = self.style.arguments_name
        own = {key: value for key, value in json.loads(tool.schema).items() if key not in _OWN_NAMES}
        arguments = _moved(own, f"{at}/properties/{name}")
        return {
            "type": "object",
            "properties": {"name": {"const": tool.name}, name: arguments},
            "required": ["name", name],
            "additionalProperties": False,
        }

    def _terminal(self, text: str) -> str:
        if not text:
            return ""
        return f"<[{self.id_by_text[text]}]>" if text in self.id_by_text else json.dumps(text)


def _moved(schema: object, to: str) -> object:
    """`schema`, in which references to its own parts are to where these are now."""
    if isinstance(schema, list):
        return [_moved(each, to) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: to + value[1:] if key == "$ref" and isinstance(value, str) and value.startswith("#") else _moved(value, to)
        for key, value in schema.items()
    }
