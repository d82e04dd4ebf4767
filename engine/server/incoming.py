"""What comes in on a call: messages, parsed here and not by gRPC, and the caller's trace."""

from contextlib import suppress
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from engine.errors import InvalidFieldError
from engine.server import convert
from engine.server.usage_outbox import UsageCall
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


async def take_acknowledgements(call: UsageCall, context: Context) -> None:
    """Hand on what a ledger says that it has, until it says no more."""
    with suppress(InvalidFieldError):  # nothing is acknowledged any more, so everything will be told again
        while (message := await read_as(pb.StreamUsageRequest, context)) is not None:
            if message.HasField("kept_output"):
                call.note_kept(message.kept_output.generation_id, message.kept_output.output_tokens)
            call.acknowledge(message.after_sequence)
