"""Grammars of outputs that call tools, in the dialect of Lark that llguidance reads.

Three kinds: calls and nothing else; calls, or an answer that follows a schema; text, in which whatever begins as a call
goes on as one.
"""

import itertools
import json
from collections import abc
from dataclasses import dataclass

from gateway.tokenizer.tools.styles import ToolStyle
from gateway.tokenizer.tools.values import Tool

MAX_CALLS = 16
# As the engine lays JSON out, unless a schema says otherwise: a small model would write blank space without end.
_LAYOUT = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
_OPTIONS_KEY = "x-guidance"
_TEXT = "TEXT: /(.|\\n)*/\n"


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
        return f"start: calls | answer\n{self._calls()}answer: {_document(schema)}\n"

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
        style, gap, body = self.style, json.dumps(self.style.gap) if self.style.gap else "", "tool"
        if style.is_list:
            more = "" if self.is_single else f"(/, ?/ tool){{0,{MAX_CALLS - 1}}}"
            body = f'"[" tool {more} "]"'
        any_tool = " | ".join(f"tool_{number}" for number in range(len(self.tools)))
        tools = "".join(itertools.starmap(self._tool, enumerate(self.tools)))
        return f"call: {begin} {gap} {body} {gap} {self._terminal(style.end)}\ntool: {any_tool}\n{tools}"

    def _tool(self, number: int, tool: Tool) -> str:
        """A call of `tool`. Its schema is a document of its own, so that what it refers to is in it.

        The lexemes of the object around it are those of JSON: an answer may begin with the same ones.
        """
        head = f'"{{" /"name"/ /: ?/ /"{tool.name}"/ /, ?/ /"{self.style.arguments_name}"/ /: ?/'
        return f'tool_{number}: {head} arguments_{number} "}}"\narguments_{number}: {_document(tool.schema)}\n'

    def _terminal(self, text: str) -> str:
        if not text:
            return ""
        return f"<[{self.id_by_text[text]}]>" if text in self.id_by_text else json.dumps(text)


def _document(schema: str) -> str:
    """JSON that follows `schema`, which is an object. Options of it that are none are the engine's to refuse."""
    given = json.loads(schema)
    options = given.get(_OPTIONS_KEY, {})
    laid_out = {**_LAYOUT, **options} if isinstance(options, dict) else options
    return f"%json {json.dumps({**given, _OPTIONS_KEY: laid_out})}"
