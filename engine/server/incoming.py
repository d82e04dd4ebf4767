"""What comes in on a call: messages, parsed here and not by gRPC, and the caller's trace."""

from typing import TypeVar

import grpc
from google.protobuf.message import Message

from engine.server import convert
from evenflow.engine.v1 import engine_pb2 as pb

TRACE_KEYS = frozenset({"traceparent", "tracestate"})

Context = grpc.aio.ServicerContext[bytes, bytes]
MessageT = TypeVar("MessageT", bound=Message)


async def read(context: Context) -> pb.GenerateRequest | None:
    return await read_as(pb.GenerateRequest, context)


async def read_as(message_type: type[MessageT], context: Context) -> MessageT | None:
    """The next message, None after the last."""
    data = await context.read()
    if data is grpc.aio.EOF:  # type: ignore[comparison-overlap]  # the stubs forget it
        return None
    return convert.parse(message_type, data)


def trace_metadata(context: Context) -> dict[str, str]:
    metadata = context.invocation_metadata() or ()
    return {key: value for key, value in metadata if key in TRACE_KEYS and isinstance(value, str)}
