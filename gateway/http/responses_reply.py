"""The `response` object and the events of its stream, as OpenAI has them."""

from collections import abc
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from gateway.errors import GatewayError
from gateway.http.chat_reply import TokenLogprob, token_logprob
from gateway.http.event_stream import event
from gateway.http.generating import Result
from gateway.http.refusals import error_object
from gateway.http.reply_parts import Head, finish_word, shown_logprobs, stop_reason
from gateway.http.responses import ResponseRequest
from gateway.http.structure import JsonObject
from gateway.servicer.outcome import Delta, Outcome

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"] = "output_text"
    text: str
    annotations: list[str] = []
    logprobs: list[TokenLogprob]


class OutputMessage(BaseModel):
    type: Literal["message"] = "message"
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


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


class ResponseObject(BaseModel):
    """What could not be asked for is told as it is: no tools, nothing stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    error: None = None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[OutputMessage]
    parallel_tool_calls: bool = False
    previous_response_id: None = None
    reasoning: None = None
    service_tier: str | None
    store: Literal[False] = False
    temperature: float | None
    text: ShownText = ShownText()
    tool_choice: Literal["none"] = "none"
    tools: list[str] = []
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None
    user: str | None
    metadata: dict[str, str]


@dataclass(slots=True)
class Spoken:
    """What the stream has said so far. Written by the wording only."""

    num_events: int = 0
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class ResponseWording:
    """The answer to one request, which has one choice."""

    def __init__(self, head: Head, ask: ResponseRequest) -> None:
        self._head = head
        self._ask = ask
        self._spoken = Spoken()

    def whole(self, results: abc.Sequence[Result]) -> ResponseObject:
        (result,) = results
        content = OutputText(text=result.text, logprobs=self._logprobs(result.deltas))
        return self._ended(self._message(_status(result.outcome), [content]), result.outcome)

    def opening(self, choice: int) -> bytes:
        begun = self._response("in_progress", [])
        empty = OutputText(text="", logprobs=[])
        return b"".join(
            [
                self._event("response.created", response=begun),
                self._event("response.in_progress", response=begun),
                self._event("response.output_item.added", output_index=0, item=self._message("in_progress", [])),
                self._content_event("response.content_part.added", part=empty),
            ]
        )

    def delta(self, choice: int, delta: Delta) -> bytes:
        logprobs = self._logprobs((delta,))
        if not delta.text and not logprobs:
            return b""
        self._spoken.texts.append(delta.text)
        self._spoken.logprobs.extend(logprobs)
        return self._content_event("response.output_text.delta", delta=delta.text, logprobs=logprobs)

    def ending(self, choice: int, outcome: Outcome) -> bytes:
        text, logprobs = "".join(self._spoken.texts), self._spoken.logprobs
        part = OutputText(text=text, logprobs=logprobs)
        message = self._message(_status(outcome), [part])
        return b"".join(
            [
                self._content_event("response.output_text.done", text=text, logprobs=logprobs),
                self._content_event("response.content_part.done", part=part),
                self._event("response.output_item.done", output_index=0, item=message),
                self._event(f"response.{message.status}", response=self._ended(message, outcome)),
            ]
        )

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        return b""  # this stream has no [DONE]

    def failure(self, error: GatewayError, request_id: str) -> bytes:
        return self._event("error", **error_object(error, request_id, str).model_dump(exclude={"type"}))

    @property
    def _message_id(self) -> str:
        return f"msg_{self._head.generation_id}"

    def _message(self, status: Status, content: list[OutputText]) -> OutputMessage:
        return OutputMessage(id=self._message_id, status=status, content=content)

    def _ended(self, message: OutputMessage, outcome: Outcome) -> ResponseObject:
        response = self._response(message.status, [message])
        usage = outcome.usage
        response.usage = ResponseUsage(
            input_tokens=usage.num_input_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.num_cached_input_tokens),
            output_tokens=usage.num_output_tokens,
            total_tokens=usage.num_billed_tokens,
        )
        if message.status == "incomplete":
            response.incomplete_details = IncompleteDetails(reason=stop_reason(outcome) or "max_output_tokens")
        return response

    def _response(self, status: Status, output: list[OutputMessage]) -> ResponseObject:
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
            service_tier=head.service_tier,
            temperature=ask.temperature,
            top_logprobs=ask.top_logprobs or 0,
            top_p=ask.top_p,
            text=_shown_text(ask),
            usage=None,
            user=ask.user,
            metadata=ask.metadata or {},
        )

    def _content_event(self, name: str, **more: object) -> bytes:
        return self._event(name, item_id=self._message_id, output_index=0, content_index=0, **more)

    def _event(self, name: str, **more: object) -> bytes:
        number = self._spoken.num_events
        self._spoken.num_events += 1
        body = {"type": name, "sequence_number": number, **more}
        return event(to_json(body), name)

    def _logprobs(self, deltas: abc.Iterable[Delta]) -> list[TokenLogprob]:
        tokenizer = self._head.tokenizer
        entries = [entry for delta in deltas for entry in shown_logprobs(delta, tokenizer)]
        return [token_logprob(token_id, entry, tokenizer) for token_id, entry in entries]


def _shown_text(ask: ResponseRequest) -> ShownText:
    if ask.text is None or ask.text.format is None:
        return ShownText()
    return ShownText(format=ShownFormat.model_validate(ask.text.format.model_dump(by_alias=True)))


def _status(outcome: Outcome) -> Status:
    return "completed" if finish_word(outcome) == "stop" else "incomplete"
