"""`POST /v1/responses`: the part of it that is text and calls of functions, in and out.

Nothing is stored, so nothing is continued.
"""

import json
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import OFF, Ask, Neutral
from gateway.http.generation_ask import (
    SAFETY_IDENTIFIER,
    GenerationAsk,
    Label,
    Options,
    OutputTokens,
    base_spec,
    labels_of,
)
from gateway.http.param_names import renaming
from gateway.http.response_input import FunctionChoice, ResponseInput, ResponseTools, turns_of
from gateway.http.structure import ChoiceWord, JsonObject, ToolName, set_tools
from gateway.servicer.validation import MAX_LOGPROBS

LOGPROBS = "message.output_text.logprobs"

response_params = renaming(
    {
        "prompt": "input",
        "chat": "input",
        "chat.messages": "input",
        "chat.tools": "tools",
        "chat.tool_choice": "tool_choice",
        "chat.tool_choice.mode": "tool_choice",
        "output.format": "text.format",
        "output.format.json_schema": "text.format.schema",
        "output.logprobs": "top_logprobs",
        "stopping.max_output_tokens": "max_output_tokens",
    }
)


class TextFormat(Ask):
    """`name`, `schema` and what follows belong to the type `json_schema`, which needs the first two."""

    type: Literal["text", "json_object", "json_schema"]
    name: ToolName | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    description: str | None = None
    strict: bool | None = None


class TextSettings(Ask):
    """What the output has to be."""

    NEUTRAL: ClassVar[Neutral] = {"verbosity": OFF}

    format: TextFormat | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        if self.format is None:
            return
        self.format.require_known(f"{path}format.")
        is_named, has_schema = self.format.name is not None, self.format.schema_ is not None
        if is_named != has_schema or has_schema != (self.format.type == "json_schema"):
            text = "belongs to the type json_schema, which needs it and a name"
            raise InvalidFieldError(FieldViolation(f"{path}format.schema", text))

    def set_on(self, spec: pb.GenerationSpec) -> None:
        """`spec` asks for such an output."""
        if self.format is None or self.format.type == "text":
            return
        if self.format.schema_ is None:
            spec.output.format.json_object = True
        else:
            spec.output.format.json_schema = json.dumps(self.format.schema_, ensure_ascii=False)


class ResponseRequest(GenerationAsk):
    """`instructions` come before the input, as the system's words."""

    NEUTRAL: ClassVar[Neutral] = {
        "background": (None, False),
        "beam_width": OFF,
        "context_management": (None, []),
        "conversation": OFF,
        "early_stopping": OFF,
        "length_penalty": OFF,
        "max_tool_calls": OFF,
        "previous_response_id": OFF,
        "prompt": OFF,
        "prompt_cache_key": OFF,
        "prompt_cache_retention": OFF,
        "reasoning": (None, {}),
        "store": (None, False),
        "stream_options": (None, {}, {"include_obfuscation": False}),
        "truncation": (None, "disabled"),
    }

    input: ResponseInput
    instructions: str | None = None
    max_output_tokens: OutputTokens | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    safety_identifier: Label | None = None
    text: TextSettings | None = None
    tools: ResponseTools | None = None
    tool_choice: ChoiceWord | FunctionChoice | None = None
    parallel_tool_calls: bool | None = None

    @property
    def offered(self) -> frozenset[str]:
        """The names of the functions that the model is told of."""
        return frozenset() if self.tool_choice == "none" else frozenset(each.name for each in self.tools or ())

    @property
    def is_single_call(self) -> bool:
        """There is one call at most."""
        return self.parallel_tool_calls is False

    @property
    def has_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        if self.text is not None:
            self.text.require_known(f"{path}text.")
        for index, tool in enumerate(self.tools or ()):
            tool.require_known(f"{path}tools[{index}].")
        if isinstance(self.tool_choice, FunctionChoice):
            self.tool_choice.require_known(f"{path}tool_choice.")
        for index, item in enumerate(() if isinstance(self.input, str) else self.input):
            item.require_known(f"{path}input[{index}].")

    def spec(self) -> pb.GenerationSpec:
        """Raises InvalidFieldError."""
        if self.top_logprobs and not self.has_logprobs:
            raise InvalidFieldError(FieldViolation("top_logprobs", f"needs `include` with {LOGPROBS!r}"))
        num_logprobs = (self.top_logprobs or 0) if self.has_logprobs else None
        labels = labels_of(self, **{SAFETY_IDENTIFIER: self.safety_identifier})
        spec = base_spec(self, Options(self.max_output_tokens, num_logprobs, labels))
        if self.text is not None:
            self.text.set_on(spec)
        if self.instructions is not None:
            spec.chat.messages.add(role="system", content=self.instructions)
        if isinstance(self.input, str):
            spec.chat.messages.add(role="user", content=self.input)
        else:
            spec.chat.messages.extend(turns_of(self.input))
        if self.tools or self.tool_choice not in (None, "none", "auto"):
            set_tools(spec, self.tools or (), self.tool_choice, is_single=self.is_single_call)
        return spec
