"""One running request of an engine, and the stream of its own on which it may run.

`EngineCall.events()` reads it, `cancel` and `reader_*` write to it and never wait. Every call ends in `abandon`: one
that is open and that nobody refers to would live on in the transport.
"""

import asyncio
from collections import abc, deque
from typing import Protocol

import grpc

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import wire
from gateway.engine_client.messages import CancelReason, EngineEvent, EngineRequest, Finished, PriorityClass
from gateway.engine_client.refusals import typed
from gateway.errors import EngineLostError, NoEngineError


class Line(Protocol):
    """What a call runs on. Read by one task."""

    def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """What the engine says. Raises as `EngineCall.events` does."""
        ...

    def send(self, message: pb.GenerateRequest) -> None:
        """`message` is on its way behind all others. Never waits."""
        ...

    def abandon(self) -> None:
        """Nobody reads any more, and the request ends if it has not. Idempotent."""
        ...


class EngineCall:
    """Read by one task. `on_close` is called once, when nothing of it is left."""

    def __init__(self, line: Line, request: EngineRequest, on_close: abc.Callable[[], None]) -> None:
        self._line = line
        self._request = request
        self._on_close: abc.Callable[[], None] | None = on_close

    def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """What the engine says; after `Finished` only the end of the call is awaited.

        Raises NoEngineError if the engine never answered, EngineLostError if it went away later, and the error that the
        engine's refusal stands for.
        """
        return self._line.events()

    def cancel(self, reason: CancelReason, num_kept_tokens: int | None = None) -> None:
        """Ask the engine to end the request; it answers with `Finished`.

        With a stop string, `num_kept_tokens` of the output belong to the request.
        """
        self._line.send(wire.cancel_to_pb(reason, num_kept_tokens))

    def grant(self, max_output_tokens: int) -> None:
        """So many output tokens are allowed from now on; a sequence that has used them up pauses."""
        self._line.send(wire.grant_to_pb(max_output_tokens))

    def set_class(self, priority_class: PriorityClass) -> None:
        """The request goes on in another class."""
        self._line.send(wire.set_class_to_pb(priority_class, self._request.policy_revision))

    def reader_blocked(self) -> None:
        """The client does not read: the engine holds the sequence."""
        self._line.send(pb.GenerateRequest(reader_blocked=pb.ReaderBlocked()))

    def reader_ready(self) -> None:
        """The client reads again."""
        self._line.send(pb.GenerateRequest(reader_ready=pb.ReaderReady()))

    def abandon(self) -> None:
        """The call is over, whatever its state. Idempotent."""
        self._line.abandon()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


class OwnLine:
    """A bidirectional stream for one request."""

    def __init__(
        self,
        stub: "engine_pb2_grpc.EngineServiceAsyncStub",  # a name of the type stubs only
        request: EngineRequest,
        metadata: abc.Mapping[str, str],
        on_refusal: abc.Callable[[], None],
    ) -> None:
        """`on_refusal` is called if the engine takes no requests."""
        self._on_refusal = on_refusal
        self._request = request
        self._outbox: deque[pb.GenerateRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._is_started = False
        self._has_failed_write = False
        self._call = stub.Generate(metadata=tuple(metadata.items()))

    async def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """See Line. The request is sent here."""
        is_answered = is_finished = False
        try:
            await self._start()
            # Read to its end: the transport keeps the parts of a call whose status nobody has read.
            async for response in self._call:
                is_answered = True
                event = wire.event_from_pb(response)
                if event is not None and not is_finished:
                    yield event
                is_finished = is_finished or isinstance(event, Finished)
        except grpc.aio.AioRpcError as error:
            # A write that finds the call over hides the engine's own status behind one of the transport's.
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE or self._has_failed_write
            if not is_answered and is_away:
                self._on_refusal()
                raise NoEngineError from error
            if not is_finished:
                raise typed(error, is_answered=is_answered) from error
        if not is_finished:
            raise EngineLostError

    def send(self, message: pb.GenerateRequest) -> None:
        self._outbox.append(message)
        if self._is_started:
            self._write_waiting()

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.cancel()
        self._call.cancel()
        if self._has_failed_write:
            # For the transport the call ended with the failed write, so `cancel` does nothing, and the core would keep
            # what nobody has read of it for ever.
            self._call._cython_call.cancel("abandoned")  # type: ignore[attr-defined]  # no public way to it

    async def _start(self) -> None:
        await self._write(wire.start_to_pb(self._request))
        self._is_started = True
        self._write_waiting()

    def _write_waiting(self) -> None:
        # The transport takes one write at a time.
        if self._outbox and (self._writer is None or self._writer.done()):
            self._writer = asyncio.create_task(self._write_all())

    async def _write_all(self) -> None:
        while self._outbox:
            await self._write(self._outbox.popleft())

    async def _write(self, message: pb.GenerateRequest) -> None:
        try:
            await self._call.write(message)
        except asyncio.InvalidStateError:
            pass  # the call has ended: its reader knows why
        except grpc.aio.AioRpcError:
            self._has_failed_write = True
