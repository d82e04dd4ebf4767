"""The `response` object and the events of its stream, as OpenAI has them."""

from collections import abc
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from gateway.http.called_tools import OfferedTools
from gateway.http.chat_reply import TokenLogprob, token_logprob
from gateway.http.choices import Result
from gateway.http.event_stream import event
from gateway.http.refusals import ErrorObject
from gateway.http.reply_parts import Head, finish_word, shown_logprobs, stop_reason
from gateway.http.response_input import FunctionChoice, ResponseFunction
from gateway.http.response_output import (
    Begun,
    Called,
    Ended,
    Happening,
    OutputItem,
    OutputItems,
    OutputText,
    Said,
    Status,
)
from gateway.http.responses import ResponseRequest
from gateway.http.structure import ChoiceWord, JsonObject
from gateway.servicer.outcome import Delta, Outcome


class IncompleteDetails(BaseModel):
    """Why the output ends here: a length, or what else cut it."""

    reason: Literal["max_output_tokens", "cancelled", "deadline", "quota"]


class InputTokensDetails(BaseModel):
    cached_tokens: int


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """What is billed."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ShownFormat(BaseModel):
    """What the output had to be, as it was asked for."""

    model_config = ConfigDict(serialize_by_alias=True)

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema_: Annotated[JsonObject | None, Field(alias="schema")] = None
    strict: bool | None = None


class ShownText(BaseModel):
    format: ShownFormat = ShownFormat()


class ShownTool(BaseModel):
    """A function that could be called, as it was asked for."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: JsonObject | None
    strict: bool

    @classmethod
    def of(cls, function: ResponseFunction) -> "ShownTool":
        return cls(
            name=function.name,
            description=function.description,
            parameters=function.parameters,
            strict=function.is_strict,
        )


class ShownChoice(BaseModel):
    """The function that had to be called."""

    type: Literal["function"] = "function"
    name: str


class ResponseObject(BaseModel):
    """What could not be asked for is told as it is: nothing is stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: None = None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: None = None
    service_tier: str | None
    store: Literal[False] = False
    temperature: float | None
    text: ShownText = ShownText()
    tool_choice: ChoiceWord | ShownChoice
    tools: list[ShownTool]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


class ResponseWording:
    """The answer to one request, which has one choice. `tools`: what it may call, if anything."""

    def __init__(self, head: Head, ask: ResponseRequest, tools: OfferedTools | None = None) -> None:
        self._head = head
        self._ask = ask
        self._items = OutputItems(
            head.generation_id, None if tools is None else tools.reader(head.generation_id, choice=0)
        )
        self._num_events = 0

    def whole(self, results: abc.Sequence[Result], outcomes: abc.Sequence[Outcome]) -> ResponseObject:
        (result,) = results
        for delta in result.deltas:
            self._items.push(delta.text, self._logprobs(delta))
        self._items.finish(_status(result.outcome))
        return self._ended(result.outcome)

    def opening(self, choice: int) -> bytes:
        begun = self._response("in_progress", [])
        heads = [self._event(f"response.{name}", response=begun) for name in ("created", "in_progress")]
        return b"".join([*heads, *map(self._told, self._items.begin())])

    def delta(self, choice: int, delta: Delta) -> bytes:
        return b"".join(map(self._told, self._items.push(delta.text, self._logprobs(delta))))

    def ending(self, choice: int, outcome: Outcome, score: float | None = None) -> bytes:
        rest = list(map(self._told, self._items.finish(_status(outcome))))
        response = self._ended(outcome)
        return b"".join([*rest, self._event(f"response.{response.status}", response=response)])

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        return b""  # this stream has no [DONE]

    def failure(self, error: ErrorObject) -> bytes:
        return self._event("error", **error.model_dump(exclude={"type"}))

    def _told(self, happened: Happening) -> bytes:
        match happened:
            case Begun(index, item):
                empty = OutputText(text="", logprobs=[])
                added = self._event("response.output_item.added", output_index=index, item=item)
                return added + self._content_event("content_part.added", index, item.id, part=empty)
            case Said(index, item_id, text, logprobs):
                return self._content_event("output_text.delta", index, item_id, delta=text, logprobs=logprobs)
            case Ended(index, item):
                (part,) = item.content
                done = self._content_event("output_text.done", index, item.id, text=part.text, logprobs=part.logprobs)
                done += self._content_event("content_part.done", index, item.id, part=part)
                return done + self._event("response.output_item.done", output_index=index, item=item)
            case Called():
                return self._called(happened)

    def _called(self, called: Called) -> bytes:
        """The arguments come whole, in one piece."""
        index, item = called.index, called.item
        begun = item.model_copy(update={"arguments": "", "status": "in_progress"})
        arguments = "response.function_call_arguments"
        events = [
            self._event("response.output_item.added", output_index=index, item=begun),
            self._event(f"{arguments}.delta", item_id=item.id, output_index=index, delta=item.arguments),
            self._event(f"{arguments}.done", item_id=item.id, output_index=index, arguments=item.arguments),
            self._event("response.output_item.done", output_index=index, item=item),
        ]
        return b"".join(events)

    def _ended(self, outcome: Outcome) -> ResponseObject:
        response = self._response(_status(outcome), self._items.items)
        usage = outcome.usage
        response.usage = ResponseUsage(
            input_tokens=usage.num_input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.num_cached_input_tokens),
            output_tokens=usage.num_output_tokens,
            total_tokens=usage.num_billed_tokens,
        )
        if response.status == "incomplete":
            response.incomplete_details = IncompleteDetails(reason=stop_reason(outcome) or "max_output_tokens")
        return response

    def _response(self, status: Status, output: list[OutputItem]) -> ResponseObject:
        head, ask = self._head, self._ask
        return ResponseObject(
            id=f"resp_{head.generation_id}",
            created_at=head.created,
            status=status,
            incomplete_details=None,
            instructions=ask.instructions,
            max_output_tokens=ask.max_output_tokens,
            model=head.model,
            output=output,
            parallel_tool_calls=not ask.is_single_call,
            service_tier=head.service_tier,
            temperature=ask.temperature,
            tool_choice=_shown_choice(ask),
            tools=[ShownTool.of(tool) for tool in ask.tools or ()],
            top_logprobs=ask.top_logprobs or 0,
            top_p=ask.top_p,
            text=_shown_text(ask),
            usage=None,
            user=ask.user,
            metadata=ask.metadata or {},
        )

    def _content_event(self, name: str, index: int, item_id: str, **more: object) -> bytes:
        return self._event(f"response.{name}", item_id=item_id, output_index=index, content_index=0, **more)

    def _event(self, name: str, **more: object) -> bytes:
        number = self._num_events
        self._num_events += 1
        body = {"type": name, "sequence_number": number, **more}
        return event(to_json(body), name)

    def _logprobs(self, delta: Delta) -> list[TokenLogprob]:
        tokenizer = self._head.tokenizer
        return [token_logprob(token_id, entry, tokenizer) for token_id, entry in shown_logprobs(delta, tokenizer)]


def _shown_choice(ask: ResponseRequest) -> ChoiceWord | ShownChoice:
    match ask.tool_choice:
        case None:
            return "auto" if ask.tools else "none"
        case FunctionChoice(name=name):
            return ShownChoice(name=name)
        case word:
            return word


def _shown_text(ask: ResponseRequest) -> ShownText:
    if ask.text is None or ask.text.format is None:
        return ShownText()
    return ShownText(format=ShownFormat.model_validate(ask.text.format.model_dump(by_alias=True)))


def _status(outcome: Outcome) -> Status:
    return "completed" if finish_word(outcome) == "stop" else "incomplete"
