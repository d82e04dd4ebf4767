"""Tools that a request offers, which of them are to be called, and the calls in its history. Every field is checked."""

import itertools
import re
from collections import abc

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.servicer.asked_format import MAX_FORMAT_BYTES, require_schema
from gateway.servicer.check import Check
from gateway.tokenizer import ChatMessage
from gateway.tokenizer.tools import ChoiceMode, Tool, ToolCall, ToolChoice

MAX_TOOLS = 128
MAX_CALLS = 128  # of one message
MAX_DESCRIPTION_CHARS = 16 * 1024
MAX_CALL_ID_CHARS = 256
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAME = "must have 1 to 64 letters, digits, underscores and hyphens"
_MODES = {pb.TOOL_CHOICE_MODE_NONE: ChoiceMode.NONE, pb.TOOL_CHOICE_MODE_REQUIRED: ChoiceMode.REQUIRED}


def tools_from_pb(given: abc.Sequence[pb.Tool], check: Check) -> tuple[Tool, ...]:
    """The tools, each name once; their schemas together have a limit."""
    check.at("tools").require(len(given) <= MAX_TOOLS, f"must have at most {MAX_TOOLS} entries")
    tools = given[:MAX_TOOLS]
    for index, tool in enumerate(tools):
        at = check.at(f"tools[{index}]")
        at.at("name").require(TOOL_NAME.fullmatch(tool.name) is not None, _NAME)
        is_short = len(tool.description) <= MAX_DESCRIPTION_CHARS
        at.at("description").require(is_short, f"must have at most {MAX_DESCRIPTION_CHARS} characters")
        if tool.parameters:
            require_schema(tool.parameters, at.at("parameters"))
    check.at("tools").require(len({tool.name for tool in tools}) == len(tools), "each must have a name of its own")
    num_characters = sum(len(tool.parameters) for tool in tools)
    check.at("tools").require(num_characters <= MAX_FORMAT_BYTES, f"schemas must have at most {MAX_FORMAT_BYTES} bytes")
    return tuple(Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in tools)


def tool_choice_from_pb(choice: pb.ToolChoice, tools: abc.Sequence[Tool], check: Check) -> ToolChoice:
    """Which of `tools` is called."""
    check.at("mode").require(choice.mode in pb.ToolChoiceMode.values(), "must be one of the modes that are defined")
    mode = _MODES.get(choice.mode, ChoiceMode.AUTO)
    check.at("mode").require(mode is not ChoiceMode.REQUIRED or bool(tools), "needs tools")
    if choice.name:
        at = check.at("name")
        at.require(mode is ChoiceMode.REQUIRED, "can be set with TOOL_CHOICE_MODE_REQUIRED only")
        at.require(any(tool.name == choice.name for tool in tools), "must be the name of one of the tools")
    return ToolChoice(mode, choice.name, choice.single)


def messages_from_pb(messages: abc.Iterable[pb.ChatMessage], check: Check) -> tuple[ChatMessage, ...]:
    """The turns, with the calls in them: what a tool has answered is that of a call before it. Their roles are checked
    already."""
    turns, known_ids = [], set[str]()
    for index, message in enumerate(messages):
        if message.tool_calls or message.tool_call_id:
            _check_calls(message, check.at(f"messages[{index}]"), known_ids)
        calls = [ToolCall(call.id, call.name, call.arguments) for call in message.tool_calls[:MAX_CALLS]]
        known_ids.update(call.id for call in calls)
        turns.append(ChatMessage(message.role, message.content, tuple(calls), message.tool_call_id))
    return tuple(turns)


def _check_calls(message: pb.ChatMessage, check: Check, known_ids: abc.Set[str]) -> None:
    calls, answers = check.at("tool_calls"), check.at("tool_call_id")
    calls.require(not message.tool_calls or message.role == "assistant", "are the assistant's only")
    calls.require(len(message.tool_calls) <= MAX_CALLS, f"must have at most {MAX_CALLS} entries")
    answers.require(not message.tool_call_id or message.role == "tool", "is a tool's only")
    is_known = message.role != "tool" or not message.tool_call_id or message.tool_call_id in known_ids
    answers.require(is_known, "must be the id of a call in a message before it")
    for index, call in enumerate(itertools.islice(message.tool_calls, MAX_CALLS)):
        at = check.at(f"tool_calls[{index}]")
        at.at("name").require(TOOL_NAME.fullmatch(call.name) is not None, _NAME)
        at.at("id").require(len(call.id) <= MAX_CALL_ID_CHARS, f"must have at most {MAX_CALL_ID_CHARS} characters")
