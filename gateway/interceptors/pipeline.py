"""The one server interceptor: every method of every arity runs inside the same scope.

It replaces a method's handler by one that takes raw bytes, so that a message that cannot be decoded is refused with the
same details as any other bad request. A handler is wrapped once and kept.
"""

import inspect
from collections import abc
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from gateway.errors import FieldViolation, InvalidFieldError, UnknownMethodError
from gateway.errors_requests import PromptTooLargeError
from gateway.interceptors.admission_metadata import apply_admission_metadata
from gateway.interceptors.authentication import AUTHORIZATION, Gatekeeper, authorize_message
from gateway.interceptors.call import Call, Context, reader_loss_as_cancellation
from gateway.interceptors.errors import errors_as_status
from gateway.interceptors.list_sizes import require_short_lists
from gateway.interceptors.measuring import measured
from gateway.interceptors.routes import is_public
from gateway.interceptors.tracing import server_span
from gateway.telemetry import enter_rpc

MAX_MESSAGE_BYTES = 16 * 2**20

# Any: the interceptor is the same for every message type, and the stubs want one handler type per method.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Behavior = abc.Callable[[object, Context], abc.Awaitable[object]]
Continuation = abc.Callable[[grpc.HandlerCallDetails], abc.Awaitable["Handler | None"]]


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Gives each call a request id, a span, an identity, and each failure a status."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper
        self._wrapped: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "Handler | None":
        method = handler_call_details.method
        wrapped = self._wrapped.get(method)
        if wrapped is not None:
            return wrapped
        handler = await continuation(handler_call_details)
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(partial(_refuse_unknown, method))
        wrapped = self._wrapped[method] = self._wrap(method, handler)
        return wrapped

    @asynccontextmanager
    async def _scope(self, method: str, context: Context) -> abc.AsyncIterator[Call]:
        call = Call.begin(method, context)
        enter_rpc(call.record)
        if is_public(method):
            with measured(call, self._gatekeeper.meters):
                async with errors_as_status(call):
                    yield call
            return
        with measured(call, self._gatekeeper.meters), server_span(call, self._gatekeeper.tracer):
            async with errors_as_status(call):
                credentials = call.header_values(AUTHORIZATION)
                peer = self._gatekeeper.proxies.origin(context.peer(), call.header_values).peer
                call.verdict = await self._gatekeeper.admit(method, credentials, peer)
                yield call

    def _wrap(self, method: str, handler: Handler) -> Handler:
        behavior = _behavior(handler)
        parse = _parser(handler)

        async def respond_once(raw: object, context: Context) -> object:
            async with self._scope(method, context) as call:
                response = await behavior(_accepted(parse(raw), call), context)
                await call.send_metadata()
                return response
            raise AssertionError("the scope ends the call when it swallows an error")

        async def respond_many(raw: object, context: Context) -> None:
            async with self._scope(method, context) as call:
                await _relay(behavior, _accepted(parse(raw), call), call)

        return _handler_like(handler, respond_many if handler.response_streaming else respond_once)


def _accepted(message: object, call: Call) -> object:
    """`message`, which the caller may send, with what its metadata adds. A public method takes whatever comes."""
    if call.verdict is not None:
        if isinstance(message, Message):
            require_short_lists(message)
        authorize_message(call.method, message, call.verdict)
        apply_admission_metadata(message, call.header_values)
    return message


async def _refuse_unknown(method: str, _requests: object, context: Context) -> None:
    """The transport's own answer would carry no details. Any arity can be answered without reading a message."""
    async with errors_as_status(Call.begin(method, context)):
        raise UnknownMethodError


async def _relay(behavior: Behavior, request: object, call: Call) -> None:
    """Write what a streaming behavior yields; one that writes by itself is awaited."""
    if not inspect.isasyncgenfunction(behavior):
        await behavior(request, call.context)
        return
    async with aclosing(behavior(request, call.context)) as responses:
        async for response in responses:
            if not call.has_sent_metadata:
                await call.send_metadata()
            with reader_loss_as_cancellation():
                await call.context.write(response)


def _behavior(handler: Handler) -> Behavior:
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    assert found is not None, "a handler has one behavior"
    # The stubs type behaviors as those of the synchronous server.
    return found  # type: ignore[return-value]


def _handler_like(handler: Handler, behavior: abc.Callable[..., abc.Awaitable[object]]) -> Handler:
    """A handler of the same arity that takes raw bytes."""
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(behavior, request_deserializer=None, response_serializer=handler.response_serializer)


def _parser(handler: Handler) -> abc.Callable[[object], object]:
    deserialize = handler.request_deserializer
    assert deserialize is not None, "every generated handler has one"

    def parse(raw: object) -> object:
        assert isinstance(raw, bytes)
        if len(raw) > MAX_MESSAGE_BYTES:
            raise PromptTooLargeError(FieldViolation("", f"a request may have at most {MAX_MESSAGE_BYTES} bytes"))
        try:
            return deserialize(raw)
        except DecodeError as error:
            # The text names the message type and what is wrong with the bytes, and quotes none of them.
            raise InvalidFieldError(FieldViolation("", str(error))) from None

    async def parse_each(raws: abc.AsyncIterator[bytes]) -> abc.AsyncIterator[object]:
        async for raw in raws:
            yield parse(raw)

    return parse_each if handler.request_streaming else parse  # type: ignore[return-value]
