"""`GenerateMany`: the calls of one gateway on one stream. asyncio thread only.

No call has a task of its own: what comes in is handed on as it is read, and what there is to say of all calls since the
last write is one message. So a step that computes a token for each of a hundred requests costs one write, and load
makes messages larger instead of more frequent.
"""

import asyncio
from collections import abc
from dataclasses import dataclass, field
from functools import partial

import grpc
import structlog

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.errors import BrokenCallError, InvalidFieldError, NotReadyError, RefusedError
from engine.loop_messages import Refusal, Refused
from engine.server import incoming
from engine.server.calls import Calls
from engine.server.intake import Call
from evenflow.engine.v1 import engine_pb2 as pb

log = structlog.get_logger(__name__)

Context = grpc.aio.ServicerContext[bytes, bytes]
RefusalToPb = abc.Callable[[Refusal], pb.CallRefusal]


@dataclass(slots=True)
class _News:
    """What the gateway has not been told: of which calls there are updates, and what became of others at once."""

    calls: dict[int, Call] = field(default_factory=dict)
    refusals: dict[int, Refusal] = field(default_factory=dict)


class ManyCalls:
    """One stream, from `run` to its end; `close` ends it once everything is said."""

    def __init__(self, calls: Calls, context: Context, refusal_to_pb: RefusalToPb) -> None:
        self._calls = calls
        self._context = context
        self._refusal_to_pb = refusal_to_pb
        self._open: dict[int, Call] = {}
        self._news = _News()
        self._has_news = asyncio.Event()
        self._is_closing = False

    async def run(self) -> None:
        """Until the gateway cuts the stream, or `close`. What is open then is aborted. Raises InvalidFieldError."""
        reading = asyncio.create_task(self._read_forever(), name="calls of a gateway")
        try:
            await self._write_forever(reading)
        finally:
            reading.cancel()
            for call in self._open.values():
                self._calls.leave(call)
            self._open.clear()

    def close(self) -> None:
        """The engine stops."""
        self._is_closing = True
        self._has_news.set()

    async def _read_forever(self) -> None:
        """Ends with the gateway's last word, after which what is open goes on. Raises InvalidFieldError."""
        try:
            while (message := await incoming.read_as(pb.GenerateManyRequest, self._context)) is not None:
                for asked in message.calls:
                    self._take(asked)
        finally:
            self._has_news.set()

    def _take(self, asked: pb.CallRequest) -> None:
        call = self._open.get(asked.call_id)
        try:
            if asked.abandoned:
                self._end(asked.call_id)
            elif call is None:
                self._enter(asked)
            else:
                self._calls.take_control(call, asked.request)
        except InvalidFieldError as error:
            if call is None:
                self._refuse(asked.call_id, error)
            else:
                self._calls.reject(call, error)
        except NotReadyError as error:
            if call is None:  # otherwise the failure of the engine ends the call by itself
                self._refuse(asked.call_id, error)
        except (RefusedError, DuplicateRequestError, RequestTooLargeError) as error:
            self._refuse(asked.call_id, error)
        # Our own bug must not end the calls of everybody else.
        except Exception:
            log.exception("a call failed", call_id=asked.call_id)
            self._end(asked.call_id)
            self._refuse(asked.call_id, BrokenCallError())

    def _enter(self, asked: pb.CallRequest) -> None:
        if not asked.request.HasField("start"):
            return  # it is about a call that has ended meanwhile
        given = {"traceparent": asked.traceparent, "tracestate": asked.tracestate}
        call = self._calls.enter(asked.request, {name: value for name, value in given.items() if value})
        self._open[asked.call_id] = call
        call.mailbox.tell(partial(self._note, asked.call_id, call))

    def _note(self, call_id: int, call: Call) -> None:
        if self._open.get(call_id) is call:  # what ends because nobody wants it any more tells nobody
            self._news.calls[call_id] = call
            self._has_news.set()

    def _refuse(self, call_id: int, error: Refusal) -> None:
        self._news.refusals[call_id] = error
        self._has_news.set()

    def _end(self, call_id: int) -> None:
        """Nothing more is said of the call."""
        self._news.calls.pop(call_id, None)
        self._news.refusals.pop(call_id, None)
        call = self._open.pop(call_id, None)
        if call is not None:
            self._calls.leave(call)

    async def _write_forever(self, reading: "asyncio.Task[None]") -> None:
        while True:
            await self._has_news.wait()
            self._has_news.clear()
            news, self._news = self._news, _News()
            told, ended = self._told(news)
            if told:
                await self._context.write(pb.GenerateManyResponse(calls=told).SerializeToString())
            for call_id in ended:
                self._end(call_id)
            if reading.done():
                reading.result()
            is_unheard = reading.done() and not self._open
            if (self._is_closing or is_unheard) and not self._news.calls and not self._news.refusals:
                return

    def _told(self, news: _News) -> tuple[list[pb.CallResponse], list[int]]:
        """The news, and the calls that end with them."""
        told, ended = [], list(news.refusals)
        for call_id, error in news.refusals.items():
            told.append(pb.CallResponse(call_id=call_id, refusal=self._refusal_to_pb(error)))
        for call_id, call in news.calls.items():
            response, has_ended = self._updates(call_id, call)
            told.append(response)
            if has_ended:
                ended.append(call_id)
        return told, ended

    def _updates(self, call_id: int, call: Call) -> tuple[pb.CallResponse, bool]:
        """What there is to say of one call, and whether it ends with that."""
        response = pb.CallResponse(call_id=call_id)
        try:
            for update in call.mailbox.drain():
                if isinstance(update, Refused):
                    response.refusal.CopyFrom(self._refusal_to_pb(update.error))
                else:
                    response.responses.append(self._calls.response(call, update))
        except Exception:  # as in `_take`
            log.exception("a call failed", call_id=call_id)
            response.refusal.CopyFrom(self._refusal_to_pb(BrokenCallError()))
            return response, True
        return response, call.mailbox.has_ended
