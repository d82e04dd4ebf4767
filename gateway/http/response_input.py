"""The input of a response: messages, calls of an earlier answer, and what came of these."""

from collections import abc
from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from evenflow.inference.v1 import generation_pb2 as pb
from gateway.errors import FieldViolation, InvalidFieldError
from gateway.http.asks import OFF, Ask, Neutral
from gateway.http.chat import MAX_PARTS, message_of
from gateway.http.structure import Function, ToolName
from gateway.servicer.asked_tools import MAX_CALL_ID_CHARS, MAX_CALLS, MAX_TOOLS
from gateway.servicer.validation import MAX_CHAT_MESSAGES

CallId = Annotated[str, Field(min_length=1, max_length=MAX_CALL_ID_CHARS)]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponsePart(Ask):
    """Text of a turn: `output_text` is what an earlier answer said."""

    NEUTRAL: ClassVar[Neutral] = {"annotations": (None, []), "logprobs": (None, [])}

    type: Literal["input_text", "output_text"]
    text: str


PartsOrText = str | Annotated[list[ResponsePart], Field(min_length=1, max_length=MAX_PARTS)]


class InputMessage(Ask):
    """One turn. `id` and `status` are what an earlier answer called it; they mean nothing here."""

    NEUTRAL: ClassVar[Neutral] = {"phase": OFF}

    type: Literal["message"] | None = None
    role: Literal["system", "developer", "user", "assistant"]
    content: PartsOrText
    id: str | None = None
    status: ItemStatus | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        _require_known_parts(self.content, f"{path}content")

    def to_pb(self) -> pb.ChatMessage:
        return message_of(self.role, self.content)


class CallItem(Ask):
    """A call of an earlier answer. `arguments` is JSON text, as that one had it; `id` and `status` mean nothing."""

    NEUTRAL: ClassVar[Neutral] = {"async": (None, False), "caller": OFF, "namespace": OFF}

    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None

    def to_call(self) -> pb.ToolCall:
        return pb.ToolCall(id=self.call_id, name=self.name, arguments=self.arguments)

    def to_pb(self) -> pb.ChatMessage:
        return pb.ChatMessage(role="assistant", tool_calls=[self.to_call()])


class CallOutputItem(Ask):
    """What came of the call of that id. Its `name`, too, means nothing: the call has one."""

    NEUTRAL: ClassVar[Neutral] = {"caller": OFF, "namespace": OFF}

    type: Literal["function_call_output"]
    call_id: CallId
    output: PartsOrText
    name: str | None = None
    id: str | None = None
    status: ItemStatus | None = None

    def require_known(self, path: str = "") -> None:
        super().require_known(path)
        _require_known_parts(self.output, f"{path}output")

    def to_pb(self) -> pb.ChatMessage:
        message = message_of("tool", self.output)
        message.tool_call_id = self.call_id
        return message


class OfFunctions(Ask):
    """Functions are the only kind of tools. Told before what a tool of another kind may lack."""

    type: Literal["function"]


class ResponseFunction(Function, OfFunctions):
    """A function that the model may call. Its arguments follow its schema unless `strict` is false."""

    NEUTRAL: ClassVar[Neutral] = {
        "allowed_callers": OFF,
        "async": (None, False),
        "defer_loading": (None, False),
        "output_schema": OFF,
    }

    @property
    def is_strict(self) -> bool:
        return self.strict is not False


class FunctionChoice(OfFunctions):
    """The one function that is called."""

    name: ToolName

    @property
    def called(self) -> str:
        return self.name


def _item_kind(given: object) -> str:
    kind = given.get("type") if isinstance(given, dict) else getattr(given, "type", "")
    return {"function_call": "CallItem", "function_call_output": "CallOutputItem"}.get(str(kind), "InputMessage")


def _input_form(given: object) -> str:
    return "InputText" if isinstance(given, str) else "InputItems"


InputItem = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[CallItem, Tag("CallItem")]
    | Annotated[CallOutputItem, Tag("CallOutputItem")],
    Discriminator(_item_kind),
]
# One message less than a chat may have: `instructions` are one.
InputItems = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_CHAT_MESSAGES - 1)]
ResponseInput = Annotated[
    Annotated[str, Field(min_length=1), Tag("InputText")] | Annotated[InputItems, Tag("InputItems")],
    Discriminator(_input_form),
]
ResponseTools = Annotated[list[ResponseFunction], Field(max_length=MAX_TOOLS)]


def turns_of(items: abc.Iterable[InputMessage | CallItem | CallOutputItem]) -> list[pb.ChatMessage]:
    """The turns of a chat: calls belong to the answer before them.

    Raises InvalidFieldError for too many of one, and for what came of a call that is not there.
    """
    turns: list[pb.ChatMessage] = []
    known_ids = set[str]()
    for index, item in enumerate(items):
        if isinstance(item, CallItem):
            known_ids.add(item.call_id)
        elif isinstance(item, CallOutputItem) and item.call_id not in known_ids:
            text = "must be that of a function_call before it: nothing is stored, so send the call, too"
            raise InvalidFieldError(FieldViolation(f"input[{index}].call_id", text))
        if not isinstance(item, CallItem) or not turns or turns[-1].role != "assistant":
            turns.append(item.to_pb())
            continue
        if len(turns[-1].tool_calls) == MAX_CALLS:
            text = f"an answer may have at most {MAX_CALLS} calls"
            raise InvalidFieldError(FieldViolation(f"input[{index}]", text))
        turns[-1].tool_calls.append(item.to_call())
    return turns


def _require_known_parts(content: str | list[ResponsePart], path: str) -> None:
    for index, part in enumerate(() if isinstance(content, str) else content):
        part.require_known(f"{path}[{index}].")
