"""`chat.completion` and `chat.completion.chunk`, as OpenAI has them."""

from collections import abc
from typing import Literal

from pydantic import BaseModel

from gateway.engine_client import TokenLogprobs
from gateway.http.called_tools import CallReader, OfferedTools, ToolCall, ToolCallDelta
from gateway.http.choices import Result
from gateway.http.event_stream import DONE, event
from gateway.http.failure_events import failure_event
from gateway.http.pieces import Pieces
from gateway.http.refusals import ErrorObject
from gateway.http.reply_parts import (
    FinishWord,
    Head,
    StopReason,
    Usage,
    finish_word,
    shown_logprobs,
    stop_reason,
    token_bytes,
)
from gateway.servicer.outcome import Delta, Outcome
from gateway.tokenizer import Tokenizer


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class Message(BaseModel):
    """`content` is null where there are calls and nothing else."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    tool_calls: list[ToolCall] | None = None


ChatFinishWord = FinishWord | Literal["tool_calls"]


class Choice(BaseModel):
    """`stop_reason` says what cut the output, where `finish_reason` has no word for it; `score` is of a beam search."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishWord
    stop_reason: StopReason | None
    score: float | None


class ChatCompletion(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage
    service_tier: str | None
    system_fingerprint: None = None


class MessageDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishWord | None
    stop_reason: StopReason | None = None
    score: float | None = None


class ChatCompletionChunk(BaseModel):
    """`usage` is there only where it was asked for: null but in the last chunk, which has no choices."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    service_tier: str | None
    system_fingerprint: None = None
    usage: Usage | None = None


class ChatWording:
    """The answer to one chat. `includes_usage`: a stream tells it. `tools`: what it may call, if anything."""

    def __init__(
        self, head: Head, *, has_logprobs: bool, includes_usage: bool, tools: OfferedTools | None = None
    ) -> None:
        self._head = head
        self._has_logprobs = has_logprobs
        self._includes_usage = includes_usage
        self._texts = Pieces(lambda choice, text: self._piece(choice, MessageDelta(content=text), None))
        self._tools = tools
        self._readers: dict[int, CallReader] = {}

    def whole(self, results: abc.Sequence[Result], outcomes: abc.Sequence[Outcome]) -> ChatCompletion:
        return ChatCompletion(
            id=self._id,
            created=self._head.created,
            model=self._head.model,
            service_tier=self._head.service_tier,
            choices=[self._choice(result) for result in results],
            usage=Usage.of(outcomes),
        )

    def opening(self, choice: int) -> bytes:
        return self._piece(choice, MessageDelta(role="assistant", content=""), None)

    def delta(self, choice: int, delta: Delta) -> bytes:
        if not self._has_logprobs and self._tools is None and delta.text:
            return self._texts.piece(choice, delta.text)
        logprobs = self._logprobs((delta,))
        if self._tools is not None:
            return self._pieces(choice, self._reader(choice, self._tools).push(delta.text), logprobs)
        if not delta.text and not (logprobs and logprobs.content):
            return b""  # the tokens are counted; they add nothing that can be shown
        return self._piece(choice, MessageDelta(content=delta.text), logprobs)

    def ending(self, choice: int, outcome: Outcome, score: float | None = None) -> bytes:
        rest = b""
        if self._tools is not None:
            rest = self._pieces(choice, self._reader(choice, self._tools).finish(), None)
        word, reason = self._finish_word(choice, outcome), stop_reason(outcome)
        end = ChunkChoice(index=choice, delta=MessageDelta(), logprobs=None, finish_reason=word, stop_reason=reason)
        if score is not None:
            end.score = score
        return rest + self._event([end])

    def closing(self, outcomes: abc.Sequence[Outcome]) -> bytes:
        return (self._event([], Usage.of(outcomes)) if self._includes_usage else b"") + DONE

    def failure(self, error: ErrorObject) -> bytes:
        return failure_event(error)

    @property
    def _id(self) -> str:
        return f"chatcmpl-{self._head.generation_id}"

    def _choice(self, result: Result) -> Choice:
        return Choice(
            index=result.choice,
            message=self._message(result.choice, result.text),
            logprobs=self._logprobs(result.deltas),
            finish_reason=self._finish_word(result.choice, result.outcome),
            stop_reason=stop_reason(result.outcome),
            score=result.score,
        )

    def _message(self, choice: int, text: str) -> Message:
        if self._tools is None:
            return Message(content=text)
        reader = self._reader(choice, self._tools)
        parts = [*reader.push(text), *reader.finish()]
        calls = [ToolCall(id=part.id, function=part.function) for part in parts if isinstance(part, ToolCallDelta)]
        said = "".join(part for part in parts if isinstance(part, str))
        return Message(content=said or None, tool_calls=calls) if calls else Message(content=said)

    def _reader(self, choice: int, tools: OfferedTools) -> CallReader:
        if choice not in self._readers:
            self._readers[choice] = tools.reader(self._head.generation_id, choice)
        return self._readers[choice]

    def _finish_word(self, choice: int, outcome: Outcome) -> ChatFinishWord:
        """After the choice's last text."""
        word = finish_word(outcome)
        reader = self._readers.get(choice)
        return "tool_calls" if word == "stop" and reader is not None and reader.num_calls else word

    def _pieces(self, choice: int, parts: abc.Sequence[str | ToolCallDelta], logprobs: ChatLogprobs | None) -> bytes:
        """`logprobs` come with the first one, or alone."""
        deltas = [
            MessageDelta(tool_calls=[part]) if isinstance(part, ToolCallDelta) else MessageDelta(content=part)
            for part in parts
        ]
        if not deltas and logprobs is not None and logprobs.content:
            deltas = [MessageDelta(content="")]
        empty = None if logprobs is None else ChatLogprobs(content=[])
        return b"".join(
            self._piece(choice, delta, empty if number else logprobs) for number, delta in enumerate(deltas)
        )

    def _piece(self, index: int, delta: MessageDelta, logprobs: ChatLogprobs | None) -> bytes:
        return self._event([ChunkChoice(index=index, delta=delta, logprobs=logprobs, finish_reason=None)])

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        chunk = ChatCompletionChunk(
            id=self._id,
            object="chat.completion.chunk",
            created=self._head.created,
            model=self._head.model,
            choices=choices,
            service_tier=self._head.service_tier,
            system_fingerprint=None,
        )
        if self._includes_usage:
            chunk.usage = usage
        return event(chunk.model_dump_json(exclude_unset=True).encode())

    def _logprobs(self, deltas: abc.Iterable[Delta]) -> ChatLogprobs | None:
        if not self._has_logprobs:
            return None
        tokenizer = self._head.tokenizer
        entries = [entry for delta in deltas for entry in shown_logprobs(delta, tokenizer)]
        return ChatLogprobs(content=[token_logprob(token_id, entry, tokenizer) for token_id, entry in entries])


def token_logprob(token_id: int, entry: TokenLogprobs, tokenizer: Tokenizer) -> TokenLogprob:
    """One entry of OpenAI's list."""
    return TokenLogprob(
        token=tokenizer.token_text(token_id),
        logprob=entry.logprob,
        bytes=token_bytes(tokenizer, token_id),
        top_logprobs=[
            TopLogprob(token=tokenizer.token_text(top_id), logprob=logprob, bytes=token_bytes(tokenizer, top_id))
            for top_id, logprob in entry.top
        ],
    )
