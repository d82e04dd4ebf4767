"""Many requests of one engine on one stream: what they say at one moment is one message, in either direction.

A stream of its own costs a request as much as all the rest that a gateway does for it. The stream is always read, and a
client that reads slowly makes the engine hold its sequence, so no request holds up another one.
"""

import asyncio
from collections import abc, deque

import grpc
import structlog

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import wire
from gateway.engine_client.messages import EngineEvent, EngineRequest, Finished
from gateway.engine_client.refusals import EngineStatus, typed_status
from gateway.errors import EngineLostError, GatewayError, NoEngineError

# What is longer has a stream of its own: others would wait for it.
MAX_PROMPT_TOKENS = 8192
MAX_BATCH_BYTES = 1 << 20

log = structlog.get_logger()


class SharedLine:
    """One request's part of a stream. Read by one task, filled by the stream's."""

    def __init__(self, stream: "SharedStream", call_id: int, on_refusal: abc.Callable[[], None]) -> None:
        self._stream = stream
        self._call_id = call_id
        self._on_refusal = on_refusal
        self._events: deque[EngineEvent] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._is_answered = False
        self._error: GatewayError | None = None
        self.has_ended = False

    async def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """See Line."""
        while True:
            while self._events:
                yield self._events.popleft()
            if self.has_ended:
                break
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        if self._error is not None:
            raise self._error

    def send(self, message: pb.GenerateRequest) -> None:
        if not self.has_ended:
            self._stream.send(pb.CallRequest(call_id=self._call_id, request=message))

    def abandon(self) -> None:
        self._stream.forget(self._call_id)
        if not self.has_ended:
            self.has_ended = True
            self._stream.send(pb.CallRequest(call_id=self._call_id, abandoned=True))

    def take(self, told: pb.CallResponse) -> None:
        """The engine says this."""
        for response in told.responses:
            self._is_answered = True
            event = wire.event_from_pb(response)
            if event is not None:
                self._events.append(event)
                self.has_ended = self.has_ended or isinstance(event, Finished)
        if told.HasField("refusal") and not self.has_ended:
            self._fail(EngineStatus.of_refusal(told.refusal))
        self._wake()

    def lose(self, status: EngineStatus | None) -> None:
        """The stream has ended with that status; None: with a good one."""
        if self.has_ended:
            return
        if status is not None:
            self._fail(status)
        else:
            self._end_with(EngineLostError() if self._is_answered else self._no_engine())
        self._wake()

    def _fail(self, status: EngineStatus) -> None:
        if not self._is_answered and status.code is grpc.StatusCode.UNAVAILABLE:
            self._end_with(self._no_engine())
        else:
            self._end_with(typed_status(status, is_answered=self._is_answered))

    def _no_engine(self) -> NoEngineError:
        self._on_refusal()
        return NoEngineError()

    def _end_with(self, error: GatewayError) -> None:
        self._error, self.has_ended = error, True

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


class SharedStream:
    """One `GenerateMany` call, as long as it lasts."""

    def __init__(self, stub: "engine_pb2_grpc.EngineServiceAsyncStub") -> None:
        self.is_over = False
        self._has_failed_write = False
        self._lines: dict[int, SharedLine] = {}
        self._num_calls = 0
        self._outbox: deque[pb.CallRequest] = deque()
        self._has_mail = asyncio.Event()
        self._call = stub.GenerateMany()
        self._tasks = [asyncio.create_task(part) for part in (self._read(), self._write_forever())]

    def open(
        self, request: EngineRequest, metadata: abc.Mapping[str, str], on_refusal: abc.Callable[[], None]
    ) -> SharedLine:
        """`request` is on its way. `on_refusal` is called if the engine takes no requests."""
        self._num_calls += 1
        line = self._lines[self._num_calls] = SharedLine(self, self._num_calls, on_refusal)
        first = pb.CallRequest(
            call_id=self._num_calls,
            request=wire.start_to_pb(request),
            traceparent=metadata.get("traceparent", ""),
            tracestate=metadata.get("tracestate", ""),
        )
        self.send(first)
        return line

    def send(self, message: pb.CallRequest) -> None:
        """`message` is on its way behind all others."""
        if not self.is_over:
            self._outbox.append(message)
            self._has_mail.set()

    def forget(self, call_id: int) -> None:
        """Nobody reads it any more."""
        self._lines.pop(call_id, None)

    async def close(self) -> None:
        """What is open is lost. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        self._end(None)  # a task that was cancelled before its first step has done nothing

    def _end(self, status: EngineStatus | None) -> None:
        """Nothing more comes or goes. Idempotent: what has ended before keeps its end."""
        self.is_over = True
        self._tasks[-1].cancel()
        self._call.cancel()
        for line in self._lines.values():
            line.lose(status)

    async def _read(self) -> None:
        status: EngineStatus | None = None
        try:
            async for response in self._call:
                for told in response.calls:
                    line = self._lines.get(told.call_id)
                    if line is not None:
                        line.take(told)
        except grpc.aio.AioRpcError as error:
            # A write that finds the stream over hides the engine's own status behind one of the transport's.
            is_away = self._has_failed_write
            status = EngineStatus(grpc.StatusCode.UNAVAILABLE, "") if is_away else EngineStatus.of_error(error)
        finally:
            self._end(status)

    async def _write_forever(self) -> None:
        try:
            while True:
                await self._has_mail.wait()
                self._has_mail.clear()
                while self._outbox:
                    await self._call.write(pb.GenerateManyRequest(calls=self._batch()))
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError):
            self._has_failed_write = True
        # Our own bug must not leave requests waiting for what nobody sends.
        except Exception:
            log.exception("the writer of a stream to the engine failed")
        finally:
            # The reader hears of it; for the transport the call may have ended with this write only.
            self.is_over = True
            self._call._cython_call.cancel("nothing is written any more")  # type: ignore[attr-defined]  # as in OwnLine

    def _batch(self) -> list[pb.CallRequest]:
        batch, size = [self._outbox.popleft()], 0
        while self._outbox and (size := size + batch[-1].ByteSize()) < MAX_BATCH_BYTES:
            batch.append(self._outbox.popleft())
        return batch
