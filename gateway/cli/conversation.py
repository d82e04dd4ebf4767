"""One conversation with a model: what was said so far, and the next answer as it is being written.

Knows no terminal. An exchange that brought no answer leaves no trace, so that it can be tried again.
"""

from collections import abc
from dataclasses import dataclass
from typing import Protocol

from evenflow.inference.v1 import generation_pb2 as pb
from evenflow.inference.v1.generation_pb2_grpc import GenerationServiceStub
from gateway.cli.connection import Connection
from gateway.cli.errors import UsageError

# What a terminal could take for a command: the C0 and C1 control characters, but for line feed and tab.
CONTROL_CHARACTERS = dict.fromkeys({*range(32), *range(127, 160)} - {ord("\n"), ord("\t")})


@dataclass(frozen=True, slots=True)
class Options:
    """What every request of the conversation asks for; None leaves it to the server."""

    system: str | None = None
    model: str | None = None
    priority_class: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None


class StreamCall(Protocol):
    """A running StreamGenerate."""

    def __iter__(self) -> abc.Iterator[pb.StreamGenerateResponse]: ...

    def cancel(self) -> object: ...


class Answer:
    """An answer on its way. Iterate over its text; `finish` is known when that ends, and unless it was cancelled."""

    def __init__(self, call: StreamCall) -> None:
        self._call = call
        self.text = ""
        self.finish: pb.Finish | None = None

    def __iter__(self) -> abc.Iterator[str]:
        """Yields text that is safe to print. Raises grpc.RpcError."""
        for message in self._call:
            if message.HasField("token_delta"):
                self.text += message.token_delta.text
                yield message.token_delta.text.translate(CONTROL_CHARACTERS)
            elif message.HasField("finish"):
                self.finish = message.finish

    def cancel(self) -> None:
        """The server is told to stop. Idempotent."""
        self._call.cancel()


class Conversation:
    """Messages so far, each a role and a text."""

    def __init__(self, connection: Connection, options: Options) -> None:
        self._stub = GenerationServiceStub(connection.channel)
        self._metadata = connection.metadata
        self._options = options
        self.messages: list[pb.ChatMessage] = []
        self.reset()

    def reset(self) -> None:
        """Only the system prompt is left."""
        self.messages.clear()
        if self._options.system:
            self.messages.append(_message("system", self._options.system))

    def ask(self, text: str) -> Answer:
        """The answer to `text` in the light of what was said before; `keep` it to go on from it."""
        spec = _spec(self._options)
        spec.chat.messages.extend((*self.messages, _message("user", text)))
        return Answer(self._stub.StreamGenerate(pb.StreamGenerateRequest(spec=spec), metadata=self._metadata))

    def keep(self, text: str, answer: Answer) -> None:
        """What was asked and answered, even in part, is now part of the conversation."""
        if answer.text:
            self.messages += (_message("user", text), _message("assistant", answer.text))


def _spec(options: Options) -> pb.GenerationSpec:
    return pb.GenerationSpec(
        model=options.model or "",
        sampling=pb.SamplingOptions(temperature=options.temperature, top_p=options.top_p, seed=options.seed),
        stopping=pb.StoppingOptions(max_output_tokens=options.max_output_tokens),
        admission=pb.AdmissionOptions(priority_class=options.priority_class or ""),
    )


def _message(role: str, text: str) -> pb.ChatMessage:
    try:
        return pb.ChatMessage(role=role, content=text)
    except (ValueError, UnicodeError) as error:
        raise UsageError(f"the {role} text is not valid UTF-8") from error
