"""`POST /v1/chat/completions`: the body, and the generations that it asks for."""

from collections import abc
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field

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
from gateway.servicer.validation import MAX_CHAT_MESSAGES, MAX_LOGPROBS

MAX_PARTS = 256
_ROLES = {"developer": "system"}

chat_params = renaming(
    {
        "prompt": "messages",
        "chat": "messages",
        "chat.messages": "messages",
        "output.logprobs": "top_logprobs",
        "stopping.max_output_tokens": "max_completion_tokens",
    }
)


class SomeText(Protocol):
    """A part of a message."""

    text: str


class TextPart(Ask):
    """A part of a message; text is the only kind."""

    type: Literal["text"]
    text: str


class ChatMessage(Ask):
    """One turn. Several parts are joined by line breaks."""

    NEUTRAL: ClassVar[Neutral] = {
        "name": OFF,
        "refusal": OFF,
        "audio": OFF,
        "function_call": OFF,
        "tool_call_id": OFF,
        "tool_calls": (None, []),
        "annotations": (None, []),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)]

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        for index, part in enumerate(() if isinstance(self.content, str) else self.content):
            part.require_known(f"{path}content[{index}].")

    def to_pb(self) -> pb.ChatMessage:
        return message_of(self.role, self.content)


class ChatCompletionRequest(CompletionAsk):
    """`max_tokens` is the older name of `max_completion_tokens`."""

    NEUTRAL: ClassVar[Neutral] = {
        "audio": OFF,
        "function_call": (None, "none"),
        "functions": (None, []),
        "logit_bias": (None, {}),
        "modalities": (None, ["text"]),
        "parallel_tool_calls": (None, True, False),  # of no tools
        "prediction": OFF,
        "prompt_cache_key": OFF,
        "prompt_cache_retention": OFF,
        "reasoning_effort": (None, "none"),
        "response_format": (None, {"type": "text"}),
        "store": (None, False),
        "tool_choice": (None, "none", "auto"),
        "tools": (None, []),
        "verbosity": OFF,
        "web_search_options": OFF,
    }

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_CHAT_MESSAGES)]
    max_completion_tokens: OutputTokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    add_generation_prompt: bool | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        for index, message in enumerate(self.messages):
            message.require_known(f"{path}messages[{index}].")

    def specs(self) -> abc.Sequence[pb.GenerationSpec]:
        """One for each choice. Raises InvalidFieldError."""
        labels = labels_of(self, **{SAFETY_IDENTIFIER: self.safety_identifier})
        spec = base_spec(self, Options(self._max_output_tokens(), self._num_logprobs(), labels))
        spec.chat.messages.extend([message.to_pb() for message in self.messages])
        if self.add_generation_prompt is not None:
            spec.chat.add_generation_prompt = self.add_generation_prompt
        return copies(spec, self.n or 1)

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


def copies(spec: pb.GenerationSpec, number: int) -> list[pb.GenerationSpec]:
    """`number` specs, each its own message."""
    others = [pb.GenerationSpec() for _ in range(number - 1)]
    for other in others:
        other.CopyFrom(spec)
    return [spec, *others]
