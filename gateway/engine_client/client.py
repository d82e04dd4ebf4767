"""The channel to one engine and the calls on it.

A `Generate` call is one bidirectional stream: `EngineCall.events()` reads it, `cancel` and `reader_*` write to it.
Writes go through an outbox, so that they are plain functions and never overlap. An engine that goes away is a typed
error. Every call ends in `abandon`: an open call that nobody refers to would live on in the transport.
"""

import asyncio
from collections import abc, deque

import grpc

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import administration, wire
from gateway.engine_client.messages import (
    CancelReason,
    EngineEvent,
    EngineRequest,
    Finished,
    ModelInfo,
    NodeUpdate,
    PriorityClass,
    RequestSelection,
)
from gateway.engine_client.refusals import typed, typed_switch
from gateway.engine_client.requests import (
    RequestExplanation,
    RequestSummary,
    explanation_from_pb,
    summary_from_pb,
)
from gateway.engine_client.usage import UsageCall
from gateway.errors import EngineLostError, InternalError, NoEngineError
from gateway.status import EngineStats, PolicyChoice

SERVICE = pb.DESCRIPTOR.services_by_name["EngineService"].full_name
UNARY_TIMEOUT_S = 10.0
STATS_TIMEOUT_S = 2.0
SWITCH_TIMEOUT_S = 5.0  # an administrator's change is open meanwhile, and the engine answers between two steps
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
# A message of so many nodes is taken between two steps without anybody noticing.
NODES_PER_MESSAGE = 1000


class EngineCall:
    """One running `Generate` call. Read by one task; `cancel` and `reader_*` never wait."""

    def __init__(
        self,
        stub: "engine_pb2_grpc.EngineServiceAsyncStub",  # a name of the type stubs only
        request: EngineRequest,
        metadata: abc.Mapping[str, str],
        on_close: abc.Callable[[], None],
        on_refusal: abc.Callable[[], None],
    ) -> None:
        self._on_close: abc.Callable[[], None] | None = on_close
        self._on_refusal = on_refusal
        self._request = request
        self._outbox: deque[pb.GenerateRequest] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._is_started = False
        self._has_failed_write = False
        self._call = stub.Generate(metadata=tuple(metadata.items()))

    async def events(self) -> abc.AsyncGenerator[EngineEvent, None]:
        """Send the request and yield what the engine says; after `Finished` only the end of the call is awaited.

        Raises NoEngineError if the engine never answered, EngineLostError if it went away later, and the error that the
        engine's refusal stands for.
        """
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

    def cancel(self, reason: CancelReason, num_kept_tokens: int | None = None) -> None:
        """Ask the engine to end the request; it answers with `Finished`.

        With a stop string, `num_kept_tokens` of the output belong to the request.
        """
        self._send(wire.cancel_to_pb(reason, num_kept_tokens))

    def grant(self, max_output_tokens: int) -> None:
        """So many output tokens are allowed from now on; a sequence that has used them up pauses."""
        self._send(wire.grant_to_pb(max_output_tokens))

    def set_class(self, priority_class: PriorityClass) -> None:
        """The request goes on in another class."""
        self._send(wire.set_class_to_pb(priority_class, self._request.policy_revision))

    def reader_blocked(self) -> None:
        """The client does not read: the engine holds the sequence."""
        self._send(pb.GenerateRequest(reader_blocked=pb.ReaderBlocked()))

    def reader_ready(self) -> None:
        """The client reads again."""
        self._send(pb.GenerateRequest(reader_ready=pb.ReaderReady()))

    def abandon(self) -> None:
        """The call is over, whatever its state. Idempotent."""
        if self._writer is not None:
            self._writer.cancel()
        self._call.cancel()
        if self._has_failed_write:
            # For the transport the call ended with the failed write, so `cancel` does nothing, and the core would keep
            # what nobody has read of it for ever.
            self._call._cython_call.cancel("abandoned")  # type: ignore[attr-defined]  # no public way to it
        if self._on_close is not None:
            self._on_close()
            self._on_close = None

    async def _start(self) -> None:
        await self._write(wire.start_to_pb(self._request))
        self._is_started = True
        self._write_waiting()

    def _send(self, message: pb.GenerateRequest) -> None:
        self._outbox.append(message)
        if self._is_started:
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


class EngineClient:
    """One engine. Reconnects by itself; `close` ends it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.num_open_calls = 0
        self._refused = asyncio.Event()
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub: engine_pb2_grpc.EngineServiceAsyncStub = engine_pb2_grpc.EngineServiceStub(self._channel)
        # Bytes, which are read in a thread: an engine may have thousands of tenants.
        self._get_stats: grpc.aio.UnaryUnaryMultiCallable[pb.GetStatsRequest, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/GetStats", request_serializer=pb.GetStatsRequest.SerializeToString
        )

    def generate(self, request: EngineRequest, metadata: abc.Mapping[str, str]) -> EngineCall:
        """Begin a call, which counts as open until it is abandoned; `metadata` carries the trace."""
        call = EngineCall(self._stub, request, metadata, self._note_closed, self._refused.set)
        self.num_open_calls += 1
        return call

    def usage(self, ledger_id: str) -> UsageCall:
        """Begin to listen to what requests used; to be abandoned."""
        return UsageCall(self._stub, ledger_id)

    async def model_info(self) -> ModelInfo:
        """What the engine serves.

        Raises NoEngineError if it does not answer, InternalError if it speaks another protocol version.
        """
        request = pb.GetModelInfoRequest(protocol_version=wire.PROTOCOL_VERSION)
        try:
            info = await self._stub.GetModelInfo(request, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise typed(error, is_answered=False) from error
        if info.protocol_version != wire.PROTOCOL_VERSION:
            raise InternalError(
                f"the engine at {self.address} speaks protocol version {info.protocol_version},"
                f" this gateway speaks {wire.PROTOCOL_VERSION}"
            )
        return wire.model_info_from_pb(info)

    async def require_open(self) -> None:
        """The engine takes requests, as far as it says. Raises NoEngineError if it does not answer or is stopping."""
        if (await self.stats()).is_draining:
            raise NoEngineError
        self._refused.clear()

    async def stats(self) -> EngineStats:
        """The engine's figures now. Raises NoEngineError if it does not answer."""
        try:
            data = await self._get_stats(pb.GetStatsRequest(), timeout=STATS_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise NoEngineError from error
        return await asyncio.to_thread(administration.stats_from_bytes, data)

    async def requests(self, size: int, token: str) -> tuple[list[RequestSummary], str]:
        """A page of its unfinished requests, and the token of the next one or "". Raises NoEngineError."""
        request = pb.ListRequestsRequest(page_size=size, page_token=token)
        try:
            page = await self._stub.ListRequests(request, timeout=STATS_TIMEOUT_S)
            return [summary_from_pb(each) for each in page.requests], page.next_page_token
        except grpc.aio.AioRpcError as error:
            raise NoEngineError from error

    async def explain(self, generation_id: str) -> RequestExplanation | None:
        """Why a request stands where it stands; None if it is not unfinished there. Raises NoEngineError."""
        request = pb.ExplainRequestRequest(generation_id=generation_id)
        try:
            return explanation_from_pb(await self._stub.ExplainRequest(request, timeout=STATS_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise NoEngineError from error

    async def cancel_requests(self, selection: RequestSelection, reason: CancelReason) -> list[str]:
        """Those that were unfinished end; their ids. Raises NoEngineError."""
        try:
            request = wire.selection_to_pb(selection, reason)
            return list((await self._stub.CancelRequests(request, timeout=STATS_TIMEOUT_S)).generation_ids)
        except grpc.aio.AioRpcError as error:
            raise NoEngineError from error

    async def set_policies(self, choice: PolicyChoice, *, validate_only: bool) -> PolicyChoice:
        """The engine decides by `choice`; returns what it decided by before.

        Raises InvalidFieldError for a policy or an option that it cannot take, NoEngineError if it does not answer.
        """
        request = administration.switch_to_pb(choice, validate_only=validate_only)
        try:
            response = await self._stub.SetSchedulingPolicy(request, timeout=SWITCH_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise typed_switch(error) from error
        return administration.previous_from_pb(response)

    async def update_nodes(self, updates: abc.Sequence[NodeUpdate]) -> None:
        """The weights govern what the engine has. Raises NoEngineError if it does not answer."""
        try:
            for first in range(0, len(updates), NODES_PER_MESSAGE):
                request = administration.nodes_to_pb(updates[first : first + NODES_PER_MESSAGE])
                await self._stub.UpdateNodes(request, timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise typed(error, is_answered=False) from error

    async def update_classes(self, classes: abc.Iterable[PriorityClass], revision: int) -> None:
        """The classes govern what the engine has. Raises NoEngineError if it does not answer."""
        try:
            await self._stub.UpdateClasses(administration.classes_to_pb(classes, revision), timeout=UNARY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise typed(error, is_answered=False) from error

    async def until_disconnected(self) -> None:
        """Return when the connection that is up now has broken, at once if none is."""
        state = self._channel.get_state(try_to_connect=True)
        if state is grpc.ChannelConnectivity.READY:
            await self._channel.wait_for_state_change(state)

    async def until_lost(self) -> None:
        """Return when the connection that is up now has broken, at once if none is; or when a request was turned away.

        An engine that turns requests away has few of them open, and would attract all others.
        """
        signs = [asyncio.ensure_future(sign) for sign in (self.until_disconnected(), self._refused.wait())]
        try:
            await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for sign in signs:
                sign.cancel()

    async def close(self) -> None:
        await self._channel.close()

    def _note_closed(self) -> None:
        self.num_open_calls -= 1
