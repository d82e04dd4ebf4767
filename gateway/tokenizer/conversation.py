"""A chat as chat templates read it: turns, calls of tools and the tools themselves, in plain values of JSON.

Arguments of calls are decoded, because templates write them anew. A template that knows no tools is told of them in a
system message, and reads calls and their results as text. Knows neither the template nor token ids.
"""

import json
from collections import abc
from dataclasses import dataclass

from gateway.tokenizer.description import Json
from gateway.tokenizer.tools.styles import ToolStyle
from gateway.tokenizer.tools.values import Tool, ToolCall

SYSTEM, USER, TOOL = "system", "user", "tool"
_INSTRUCTIONS = """You can call functions to answer the user. These are the functions, one JSON object each:
{tools}

To call functions, answer with nothing but a JSON list of calls between tags, in this form:
{begin}[{{"name": "the function's name", "arguments": {{"argument": "value"}}}}]{end}
If no function helps, answer in plain text."""
_RESULT = "<tool_response>\n{result}\n</tool_response>"


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn. Which roles there are is the template's business. `tool_call_id`: the call that a tool answers."""

    role: str
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The variables `messages` and `tools` of a template; each turn has a role and a content, which are strings."""

    turns: list[Json]
    tools: list[Json] | None


def conversation_of(
    messages: abc.Sequence[ChatMessage], tools: abc.Sequence[Tool], in_words: ToolStyle | None
) -> Conversation:
    """`in_words`: how a model whose template knows no tools is to write calls; None: the template knows them."""
    if in_words is None:
        return Conversation([_turn(message) for message in messages], [_function(tool) for tool in tools] or None)
    turns = [_turn_in_words(message, in_words) for message in messages]
    if tools:
        told = _instructions(tools, in_words)
        if turns[0]["role"] == SYSTEM:
            turns[0]["content"] = f"{turns[0]['content']}\n\n{told}"
        else:
            turns.insert(0, {"role": SYSTEM, "content": told})
    return Conversation(turns, None)


def texts_of(messages: abc.Iterable[ChatMessage], tools: abc.Iterable[Tool]) -> abc.Iterator[str]:
    """What its sender wrote."""
    for message in messages:
        yield message.content
        yield from (call.arguments for call in message.tool_calls)
    for tool in tools:
        yield tool.description
        yield tool.parameters


def strings_of(value: object) -> abc.Iterator[str]:
    """Every string in a value of JSON, names of objects' members included."""
    match value:
        case str():
            yield value
        case dict():
            for name, member in value.items():
                yield name
                yield from strings_of(member)
        case list():
            for member in value:
                yield from strings_of(member)


def mapped(value: object, change: abc.Callable[[str], str]) -> object:
    """`value` with `change` made to every string in it."""
    match value:
        case str():
            return change(value)
        case dict():
            return {change(name): mapped(member, change) for name, member in value.items()}
        case list():
            return [mapped(member, change) for member in value]
    return value


def _turn(message: ChatMessage) -> Json:
    turn: Json = {"role": message.role, "content": message.content}
    if message.tool_calls:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": _decoded(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _turn_in_words(message: ChatMessage, style: ToolStyle) -> Json:
    if message.role == TOOL and message.tool_call_id:
        return {"role": USER, "content": _RESULT.format(result=message.content)}
    if not message.tool_calls:
        return {"role": message.role, "content": message.content}
    listed = [{"name": call.name, "arguments": _decoded(call.arguments)} for call in message.tool_calls]
    written = f"{style.begin}{json.dumps(listed, ensure_ascii=False)}{style.end}"
    return {"role": message.role, "content": "\n".join(filter(None, (message.content, written)))}


def _function(tool: Tool) -> Json:
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.schema)},
    }


def _instructions(tools: abc.Iterable[Tool], style: ToolStyle) -> str:
    lines = [json.dumps(_function(tool)["function"], ensure_ascii=False) for tool in tools]
    return _INSTRUCTIONS.format(tools="\n".join(lines), begin=style.begin, end=style.end)


def _decoded(arguments: str) -> object:
    """An object; as it was where it is none."""
    try:
        decoded = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments
