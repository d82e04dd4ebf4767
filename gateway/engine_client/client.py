"""The channel to one engine and the calls on it.

A `Generate` call is one bidirectional stream: `EngineCall.events()` reads it, `cancel` and `reader_*` write to it.
Writes go through an outbox that the transport empties, so that they are plain functions and never overlap. An engine
that goes away is a typed error. Every call ends in `abandon`: an open call that nobody refers to would live on in the
transport.
"""

import asyncio
from collections import abc

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import wire
from gateway.engine_client.messages import CancelReason, EngineEvent, EngineRequest, Finished, ModelInfo
from gateway.errors import (
    ContextLengthError,
    EngineLostError,
    ExceedsKvPoolError,
    FieldViolation,
    GatewayError,
    InternalError,
    InvalidFieldError,
    NoEngineError,
)
from gateway.status import EngineStats

UNARY_TIMEOUT_S = 10.0
STATS_TIMEOUT_S = 2.0
_CHANNEL_OPTIONS = (
    # The engine is ours: a tokenizer may be larger than any limit on what strangers send.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A restarted engine is found again within a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.client_idle_timeout_ms", 2**31 - 1),
)
_FIELD_ERRORS = {
    "EXCEEDS_KV_POOL": ExceedsKvPoolError,
    "CONTEXT_LENGTH": ContextLengthError,
    "INVALID_FIELD": InvalidFieldError,
}


class EngineCall:
    """One running `Generate` call. Read by one task; its writes never wait."""

    def __init__(
        self,
        stub: "engine_pb2_grpc.EngineServiceAsyncStub",  # a name of the type stubs only
        request: EngineRequest,
        metadata: abc.Mapping[str, str],
        on_close: abc.Callable[[], None],
    ) -> None:
        self._on_close: abc.Callable[[], None] | None = on_close
        self._outbox: asyncio.Queue[pb.GenerateRequest | None] = asyncio.Queue()
        self._outbox.put_nowait(wire.start_to_pb(request))
        self._call = stub.Generate(self._requests(), metadata=tuple(metadata.items()))

    async def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """Yield what the engine says, up to and including `Finished`.

        Raises NoEngineError if the engine never answered, EngineLostError if it went away later, and the error that the
        engine's refusal stands for.
        """
        is_answered = False
        try:
            async for response in self._call:
                is_answered = True
                event = wire.event_from_pb(response)
                if event is not None:
                    yield event
                if isinstance(event, Finished):
                    return
        except grpc.aio.AioRpcError as error:
            raise _typed(error, is_answered=is_answered) from error
        raise EngineLostError

    def cancel(self, reason: CancelReason) -> None:
        """Ask the engine to end the request; it answers with `Finished`."""
        self._outbox.put_nowait(wire.cancel_to_pb(reason))

    def reader_blocked(self) -> None:
        """The client does not read: the engine holds the sequence."""
        self._outbox.put_nowait(pb.GenerateRequest(reader_blocked=pb.ReaderBlocked()))

    def reader_ready(self) -> None:
        """The client reads again."""
        self._outbox.put_nowait(pb.GenerateRequest(reader_ready=pb.ReaderReady()))

    def abandon(self) -> None:
        """The call is over, whatever its state. Idempotent."""
        # The transport leaves the outbox's reader waiting when a call has ended by itself.
        self._outbox.put_nowait(None)
        self._call.cancel()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    async def _requests(self) -> abc.AsyncIterator[pb.GenerateRequest]:
        while (request := await self._outbox.get()) is not None:
            yield request


class EngineClient:
    """One engine. Reconnects by itself; `close` ends it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.num_open_calls = 0
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub: engine_pb2_grpc.EngineServiceAsyncStub = engine_pb2_grpc.EngineServiceStub(self._channel)

    def generate(self, request: EngineRequest, metadata: abc.Mapping[str, str]) -> EngineCall:
        """Begin a call, which counts as open until it is abandoned; `metadata` carries the trace."""
        call = EngineCall(self._stub, request, metadata, self._note_closed)
        self.num_open_calls += 1
        return call

    async def model_info(self) -> ModelInfo:
        """What the engine serves.

        Raises NoEngineError if it does not answer, InternalError if it speaks another protocol version.
        """
        request = pb.GetModelInfoRequest(protocol_version=wire.PROTOCOL_VERSION)
        try:
            info = await self._stub.GetModelInfo(request, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise _typed(error, is_answered=False) from error
        if info.protocol_version != wire.PROTOCOL_VERSION:
            raise InternalError(
                f"the engine at {self.address} speaks protocol version {info.protocol_version},"
                f" this gateway speaks {wire.PROTOCOL_VERSION}"
            )
        return wire.model_info_from_pb(info)

    async def stats(self) -> EngineStats:
        """The engine's figures now. Raises NoEngineError if it does not answer."""
        try:
            return wire.stats_from_pb(await self._stub.GetStats(pb.GetStatsRequest(), timeout=STATS_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            raise NoEngineError from error

    async def until_lost(self) -> None:
        """Return when the connection that is up now has broken; at once if none is."""
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def close(self) -> None:
        await self._channel.close()

    def _note_closed(self) -> None:
        self.num_open_calls -= 1


def _typed(error: grpc.aio.AioRpcError, *, is_answered: bool) -> GatewayError:
    """The error of ours that the engine's status stands for."""
    info = _error_info(error)
    field_error = _FIELD_ERRORS.get(info.reason)
    if field_error is not None:
        text = error.details() or info.reason
        field = info.metadata.get("field", "")
        return field_error(FieldViolation(f"spec.{field}" if field else "spec", text), metadata=dict(info.metadata))
    if is_answered:
        return EngineLostError()
    if info.reason == "PROTOCOL_VERSION":
        return InternalError(f"the engine refuses this gateway's protocol version: {error.details()}")
    if error.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.ALREADY_EXISTS):
        return InternalError(f"the engine failed: {error.code().name}: {error.details()}")
    return NoEngineError()


def _error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The details of the engine's status; empty if it has none that can be read."""
    info = error_details_pb2.ErrorInfo()
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        return info
    for detail in status.details if status is not None else ():
        if detail.Unpack(info):
            return info
    return info
