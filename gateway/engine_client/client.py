"""The channel to one engine: requests, and questions about it. An engine that goes away is a typed error."""

import asyncio
from collections import abc

import grpc

from evenflow.engine.v1 import engine_pb2 as pb
from evenflow.engine.v1 import engine_pb2_grpc
from gateway.engine_client import administration, wire
from gateway.engine_client.call import EngineCall, Line, OwnLine
from gateway.engine_client.messages import (
    CancelReason,
    EngineRequest,
    ModelInfo,
    NodeUpdate,
    PriorityClass,
)
from gateway.engine_client.refusals import typed, typed_switch
from gateway.engine_client.requests import (
    RequestExplanation,
    RequestSelection,
    RequestSummary,
    explanation_from_pb,
    summary_from_pb,
)
from gateway.engine_client.shared import MAX_PROMPT_TOKENS, SharedStream
from gateway.engine_client.usage import UsageCall
from gateway.errors import InternalError, NoEngineError
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


class EngineClient:
    """One engine. Reconnects by itself; `close` ends it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.num_open_calls = 0
        self._has_shared = False
        self._shared: SharedStream | None = None
        self._refused = asyncio.Event()
        self._channel = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._stub: engine_pb2_grpc.EngineServiceAsyncStub = engine_pb2_grpc.EngineServiceStub(self._channel)
        # Bytes, which are read in a thread: an engine may have thousands of tenants.
        self._get_stats: grpc.aio.UnaryUnaryMultiCallable[pb.GetStatsRequest, bytes] = self._channel.unary_unary(
            f"/{SERVICE}/GetStats", request_serializer=pb.GetStatsRequest.SerializeToString
        )

    def generate(self, request: EngineRequest, metadata: abc.Mapping[str, str]) -> EngineCall:
        """Begin a call, which counts as open until it is abandoned; `metadata` carries the trace."""
        call = EngineCall(self._line(request, metadata), request, self._note_closed)
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
        self._has_shared = info.generates_many
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
        if self._shared is not None:
            await self._shared.close()
        await self._channel.close()

    def _line(self, request: EngineRequest, metadata: abc.Mapping[str, str]) -> Line:
        # What is long, or has to be compiled first, would hold up the others.
        is_slow = len(request.prompt_token_ids) > MAX_PROMPT_TOKENS or request.sampling.grammar is not None
        if not self._has_shared or is_slow:
            return OwnLine(self._stub, request, metadata, self._refused.set)
        if self._shared is None or self._shared.is_over:
            self._shared = SharedStream(self._stub)
        return self._shared.open(request, metadata, self._refused.set)

    def _note_closed(self) -> None:
        self.num_open_calls -= 1
