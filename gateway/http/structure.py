"""What an output is to be, and the tools that it may call: OpenAI's parameters, as parts of a `GenerationSpec`."""

import json
from collections import abc
from typing import Annotated, Any, ClassVar, Literal, Protocol

from pydantic import Discriminator, Field, Tag

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.http.asks import OFF, Ask, Neutral
from gateway.servicer.asked_tools import MAX_DESCRIPTION_CHARS, MAX_TOOLS
from gateway.servicer.validation import MAX_BIAS, MAX_BIASES

JsonObject = dict[str, Any]  # any JSON: a schema is the engine's to judge
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
LogitBias = Annotated[
    dict[Annotated[str, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")], Bias], Field(max_length=MAX_BIASES, fail_fast=True)
]
"""By token id, in decimal digits."""


class SchemaFormat(Ask):
    """A named schema. Its output follows it in any case, so `strict` changes nothing."""

    name: ToolName
    schema_: Annotated[JsonObject, Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class PlainFormat(Ask):
    """Anything, or any JSON object."""

    type: Literal["text", "json_object"]


class SchemaResponse(Ask):
    """What follows a schema."""

    type: Literal["json_schema"]
    json_schema: SchemaFormat

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        self.json_schema.require_known(f"{path}json_schema.")


def _format_of(given: object) -> str:
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", "")
    return "SchemaResponse" if kind == "json_schema" else "PlainFormat"


ResponseFormat = Annotated[
    Annotated[PlainFormat, Tag("PlainFormat")] | Annotated[SchemaResponse, Tag("SchemaResponse")],
    Discriminator(_format_of),
]
"""What an output has to be."""


class Function(Ask):
    """What can be called. `strict`: its arguments follow its schema, also where the model may choose to call it."""

    name: ToolName
    description: Annotated[str, Field(max_length=MAX_DESCRIPTION_CHARS)] | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None

    @property
    def is_strict(self) -> bool:
        return bool(self.strict)


class FunctionTool(Ask):
    """A tool; functions are the only kind."""

    type: Literal["function"]
    function: Function

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        self.function.require_known(f"{path}function.")


class FunctionName(Ask):
    name: ToolName


class NamedChoice(Ask):
    """The one function that is called."""

    type: Literal["function"]
    function: FunctionName

    @property
    def called(self) -> str:
        return self.function.name

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        self.function.require_known(f"{path}function.")


class CalledFunction(Ask):
    """`arguments` is JSON text, as an earlier answer had it."""

    name: ToolName
    arguments: str


class CallMade(Ask):
    """A call of an earlier answer."""

    NEUTRAL: ClassVar[Neutral] = {"index": OFF}

    id: Annotated[str, Field(max_length=256)]
    type: Literal["function"]
    function: CalledFunction

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        self.function.require_known(f"{path}function.")

    def to_pb(self) -> pb.ToolCall:
        return pb.ToolCall(id=self.id, name=self.function.name, arguments=self.function.arguments)


class Named(Protocol):
    """A choice of one function."""

    @property
    def called(self) -> str:
        """Its name."""
        ...


ChoiceWord = Literal["none", "auto", "required"]
ToolChoice = ChoiceWord | NamedChoice
Tools = Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)]

_MODES = {
    "none": pb.TOOL_CHOICE_MODE_NONE,
    "auto": pb.TOOL_CHOICE_MODE_AUTO,
    "required": pb.TOOL_CHOICE_MODE_REQUIRED,
}


def set_format(spec: pb.GenerationSpec, wanted: PlainFormat | SchemaResponse | None) -> None:
    """`spec` asks for an output of this format."""
    if isinstance(wanted, SchemaResponse):
        spec.output.format.json_schema = json.dumps(wanted.json_schema.schema_, ensure_ascii=False)
    elif wanted is not None and wanted.type == "json_object":
        spec.output.format.json_object = True


def set_bias(spec: pb.GenerationSpec, biases: abc.Mapping[str, float] | None) -> None:
    """`spec` has these biases."""
    for token_id, bias in (biases or {}).items():
        spec.sampling.logit_bias[int(token_id)] = bias


def set_tools(
    spec: pb.GenerationSpec | pb.CountTokensRequest,
    functions: abc.Iterable[Function],
    choice: ChoiceWord | Named | None,
    *,
    is_single: bool,
) -> None:
    """`spec` offers these functions."""
    for function in functions:
        parameters = "" if function.parameters is None else json.dumps(function.parameters, ensure_ascii=False)
        spec.chat.tools.add(
            name=function.name,
            description=function.description or "",
            parameters=parameters,
            strict=function.is_strict,
        )
    if isinstance(choice, str):
        spec.chat.tool_choice.mode = _MODES[choice]
    elif choice is not None:
        spec.chat.tool_choice.mode = pb.TOOL_CHOICE_MODE_REQUIRED
        spec.chat.tool_choice.name = choice.called
    if is_single:
        spec.chat.tool_choice.single = True
