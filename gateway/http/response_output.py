"""What an answer is made of: messages and calls, in the order in which the model wrote them.

The items come about while the output does; what happens to them is told as it happens. Knows no event's name.
"""

from collections import abc
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from gateway.http.called_tools import CallReader, ToolCallDelta
from gateway.http.chat_reply import TokenLogprob

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


class CallOutput(BaseModel):
    """A call; `arguments` is JSON text."""

    type: Literal["function_call"] = "function_call"
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


OutputItem = OutputMessage | CallOutput


@dataclass(frozen=True, slots=True)
class Begun:
    """A message, of which nothing is said yet, at that place among the items."""

    index: int
    item: OutputMessage


@dataclass(frozen=True, slots=True)
class Said:
    """More of the message of that id."""

    index: int
    item_id: str
    text: str
    logprobs: list[TokenLogprob]


@dataclass(frozen=True, slots=True)
class Ended:
    """A message, whole."""

    index: int
    item: OutputMessage


@dataclass(frozen=True, slots=True)
class Called:
    """A call, whole."""

    index: int
    item: CallOutput


Happening = Begun | Said | Ended | Called


@dataclass(slots=True)
class _Open:
    """The message that goes on. Written by the items."""

    begun: Begun
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)


class OutputItems:
    """The items of one output, each once it is whole. `reader` takes the calls out of its text; None: it has none."""

    def __init__(self, generation_id: str, reader: CallReader | None) -> None:
        self.items: list[OutputItem] = []
        self._generation_id = generation_id
        self._reader = reader
        self._open: _Open | None = None
        self._held_logprobs: list[TokenLogprob] = []
        self._num_owed_bytes = 0  # of tokens that came before the rest of a character

    def begin(self) -> list[Happening]:
        """The output begins. What may be a call or a message is told once it is certain."""
        return [] if self._reader is not None else [self._opened().begun]

    def push(self, text: str, logprobs: list[TokenLogprob]) -> list[Happening]:
        """The output goes on. The log-probabilities of a call's tokens are nobody's."""
        if self._reader is None:
            return self._say(text, logprobs) if text or logprobs else []
        happened: list[Happening] = []
        for piece, own in self._by_token(text, logprobs):
            self._held_logprobs += own
            happened += self._told(self._reader.push(piece))
        return happened

    def finish(self, status: Status) -> list[Happening]:
        """The output is over; `status` is that of a message that went on. There is one item at least."""
        happened = [] if self._reader is None else self._told(self._reader.finish())
        if self._open is None and not self.items:
            happened.append(self._opened().begun)
        if self._open is not None:
            self._open.logprobs += self._held_logprobs
            happened.append(self._close(self._open, status))
        return happened

    def _by_token(
        self, text: str, logprobs: list[TokenLogprob]
    ) -> abc.Iterator[tuple[str, abc.Sequence[TokenLogprob]]]:
        """The text of each token with what is told of it: whole characters, the rest of one with the next token."""
        data, begin, end = text.encode(), 0, self._num_owed_bytes
        for entry in logprobs:
            end += len(entry.bytes)
            cut = min(end, len(data)) if entry is not logprobs[-1] else len(data)
            while begin < cut < len(data) and data[cut] & 0xC0 == 0x80:
                cut -= 1
            yield data[begin:cut].decode(), (entry,)
            begin = max(begin, cut)
        self._num_owed_bytes = max(0, end - len(data)) if logprobs else 0
        if not logprobs:
            yield text, ()

    def _told(self, parts: abc.Iterable[str | ToolCallDelta]) -> list[Happening]:
        happened: list[Happening] = []
        for part in parts:
            if isinstance(part, ToolCallDelta):
                happened += self._call(part)
            else:
                logprobs, self._held_logprobs = self._held_logprobs, []
                happened += self._say(part, logprobs)
        return happened

    def _say(self, text: str, logprobs: list[TokenLogprob]) -> list[Happening]:
        happened: list[Happening] = [] if self._open is not None else [self._opened().begun]
        message = self._opened()
        message.texts.append(text)
        message.logprobs += logprobs
        return [*happened, Said(message.begun.index, message.begun.item.id, text, logprobs)]

    def _call(self, call: ToolCallDelta) -> list[Happening]:
        happened: list[Happening] = [] if self._open is None else [self._close(self._open, "completed")]
        self._held_logprobs = []
        item = CallOutput(
            id=f"fc_{call.id}",
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments,
            status="completed",
        )
        self.items.append(item)
        return [*happened, Called(len(self.items) - 1, item)]

    def _opened(self) -> _Open:
        """The message that goes on; a new one where none does."""
        if self._open is None:
            index = len(self.items)
            message_id = f"msg_{self._generation_id}_{index}" if index else f"msg_{self._generation_id}"
            self._open = _Open(Begun(index, OutputMessage(id=message_id, status="in_progress", content=[])))
        return self._open

    def _close(self, message: _Open, status: Status) -> Ended:
        content = OutputText(text="".join(message.texts), logprobs=message.logprobs)
        begun = message.begun
        item = OutputMessage(id=begun.item.id, status=status, content=[content])
        self.items.append(item)
        self._open = None
        return Ended(begun.index, item)
