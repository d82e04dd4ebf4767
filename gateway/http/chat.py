"""`POST /v1/chat/completions`: the body, and the generations that it asks for."""

import re
from collections import abc
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Discriminator, Field, Tag

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import OFF, Ask, Neutral
from gateway.http.generation_ask import (
    SAFETY_IDENTIFIER,
    CompletionAsk,
    Label,
    Options,
    OutputTokens,
    base_spec,
    labels_of,
)
from gateway.http.param_names import renaming
from gateway.http.structure import (
    CallMade,
    LogitBias,
    ResponseFormat,
    ToolChoice,
    Tools,
    set_bias,
    set_format,
    set_tools,
)
from gateway.servicer.asked_tools import MAX_CALL_ID_CHARS, MAX_CALLS
from gateway.servicer.validation import MAX_CHAT_MESSAGES, MAX_LOGPROBS

MAX_PARTS = 256
_ROLES = {"developer": "system"}
_TOOL_FIELD = re.compile(r"^spec\.chat\.tools(\[\d+\])\.")

_own = renaming(
    {
        "prompt": "messages",
        "chat": "messages",
        "chat.messages": "messages",
        "chat.tools": "tools",
        "chat.tool_choice": "tool_choice",
        "chat.tool_choice.mode": "tool_choice",
        "chat.tool_choice.name": "tool_choice.function.name",
        "output.format": "response_format",
        "output.format.json_schema": "response_format.json_schema.schema",
        "output.logprobs": "top_logprobs",
        "stopping.max_output_tokens": "max_completion_tokens",
    }
)


def chat_params(field: str) -> str:
    """What a tool says of itself stands one level deeper here."""
    return _own(_TOOL_FIELD.sub(r"spec.chat.tools\1.function.", field))


class SomeText(Protocol):
    """A part of a message."""

    text: str


class TextPart(Ask):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)]


class PlainMessage(Ask):
    """A turn of somebody else than the model. Several parts are joined by line breaks."""

    NEUTRAL: ClassVar[Neutral] = {
        "name": OFF,
        "refusal": OFF,
        "audio": OFF,
        "function_call": OFF,
        "tool_call_id": OFF,
        "tool_calls": (None, []),
        "annotations": (None, []),
    }

    role: Literal["system", "developer", "user"]
    content: Content

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        _require_known_parts(self.content, path)

    def to_pb(self) -> pb.ChatMessage:
        return message_of(self.role, self.content)


class AssistantMessage(Ask):
    """A turn of the model's. One in which it has called may have no content."""

    NEUTRAL: ClassVar[Neutral] = {
        "name": OFF,
        "refusal": OFF,
        "audio": OFF,
        "function_call": OFF,
        "tool_call_id": OFF,
        "annotations": (None, []),
    }

    role: Literal["assistant"]
    content: Content | None = None
    tool_calls: Annotated[list[CallMade], Field(max_length=MAX_CALLS)] | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        _require_known_parts(self.content, path)
        for index, call in enumerate(self.tool_calls or ()):
            call.require_known(f"{path}tool_calls[{index}].")

    def to_pb(self) -> pb.ChatMessage:
        message = message_of(self.role, self.content or "")
        message.tool_calls.extend([call.to_pb() for call in self.tool_calls or ()])
        return message


class ToolMessage(Ask):
    """What a tool has answered."""

    NEUTRAL: ClassVar[Neutral] = {"name": OFF, "tool_calls": (None, [])}

    role: Literal["tool"]
    content: Content
    tool_call_id: Annotated[str, Field(max_length=MAX_CALL_ID_CHARS)] | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        _require_known_parts(self.content, path)

    def to_pb(self) -> pb.ChatMessage:
        message = message_of(self.role, self.content)
        message.tool_call_id = self.tool_call_id or ""
        return message


def _kind_of(given: object) -> str:
    role = given.get("role") if isinstance(given, dict) else getattr(given, "role", "")
    return {"assistant": "AssistantMessage", "tool": "ToolMessage"}.get(str(role), "PlainMessage")


def _require_known_parts(content: Content | None, path: str) -> None:
    for index, part in enumerate(content if isinstance(content, list) else ()):
        part.require_known(f"{path}content[{index}].")


ChatMessage = Annotated[
    Annotated[PlainMessage, Tag("PlainMessage")]
    | Annotated[AssistantMessage, Tag("AssistantMessage")]
    | Annotated[ToolMessage, Tag("ToolMessage")],
    Discriminator(_kind_of),
]
"""One turn."""


class ChatCompletionRequest(CompletionAsk):
    """`max_tokens` is the older name of `max_completion_tokens`."""

    NEUTRAL: ClassVar[Neutral] = {
        "audio": OFF,
        "function_call": (None, "none"),
        "functions": (None, []),
        "modalities": (None, ["text"]),
        "prediction": OFF,
        "prompt_cache_key": OFF,
        "prompt_cache_retention": OFF,
        "reasoning_effort": (None, "none"),
        "store": (None, False),
        "verbosity": OFF,
        "web_search_options": OFF,
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_CHAT_MESSAGES)]
    max_completion_tokens: OutputTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    add_generation_prompt: bool | None = None
    logit_bias: LogitBias | None = None
    response_format: ResponseFormat | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> frozenset[str]:
        """The names of the tools that the model is told of."""
        return frozenset() if self.tool_choice == "none" else frozenset(each.function.name for each in self.tools or ())

    @property
    def is_single_call(self) -> bool:
        """There is one call at most."""
        return self.parallel_tool_calls is False

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        for index, tool in enumerate(self.tools or ()):
            tool.require_known(f"{path}tools[{index}].")
        for name, one in (("response_format", self.response_format), ("tool_choice", self.tool_choice)):
            if isinstance(one, Ask):
                one.require_known(f"{path}{name}.")
        for index, message in enumerate(self.messages):
            message.require_known(f"{path}messages[{index}].")

    def specs(self) -> abc.Sequence[pb.GenerationSpec]:
        """One for each choice, or for all of them. Raises InvalidFieldError."""
        labels = labels_of(self, **{SAFETY_IDENTIFIER: self.safety_identifier})
        spec = base_spec(self, Options(self._max_output_tokens(), self._num_logprobs(), labels))
        spec.chat.messages.extend([message.to_pb() for message in self.messages])
        set_bias(spec, self.logit_bias)
        set_format(spec, self.response_format)
        if self.tools or self.tool_choice not in (None, "none", "auto"):
            functions = [tool.function for tool in self.tools or ()]
            set_tools(spec, functions, self.tool_choice, is_single=self.is_single_call)
        if self.add_generation_prompt is not None:
            spec.chat.add_generation_prompt = self.add_generation_prompt
        return self.choices(spec)

    def _max_output_tokens(self) -> int | None:
        old, new = self.max_tokens, self.max_completion_tokens
        if old is not None and new is not None and old != new:
            raise InvalidFieldError(FieldViolation("max_tokens", "says something else than max_completion_tokens"))
        return old if new is None else new

    def _num_logprobs(self) -> int | None:
        if self.logprobs:
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise InvalidFieldError(FieldViolation("top_logprobs", "needs `logprobs`"))
        return None


def message_of(role: str, content: str | abc.Sequence[SomeText]) -> pb.ChatMessage:
    """One turn, of the role that this API has another word for."""
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return pb.ChatMessage(role=_ROLES.get(role, role), content=text)
