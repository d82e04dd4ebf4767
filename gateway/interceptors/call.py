"""One incoming call as the interceptors see it."""

import re
from collections import abc
from dataclasses import dataclass

import grpc
import uuid_utils

from gateway.errors import GatewayError
from gateway.telemetry import RpcRecord

REQUEST_ID = "x-request-id"
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:/+=-]{1,128}", re.ASCII)

Context = grpc.aio.ServicerContext[object, object]


@dataclass(slots=True)
class Call:
    """Written by the interceptors only. `error` is what the caller is told, once that is known."""

    method: str
    context: Context
    record: RpcRecord
    error: GatewayError | None = None
    has_sent_metadata: bool = False

    @classmethod
    def begin(cls, method: str, context: Context) -> "Call":
        """The caller's `x-request-id` is taken where it is short and plain; otherwise the call gets one."""
        sent = next(iter(header_values(context, REQUEST_ID)), "")
        request_id = sent if _VALID_REQUEST_ID.fullmatch(sent) else str(uuid_utils.uuid7())
        return cls(method, context, RpcRecord(method.lstrip("/"), request_id))

    async def send_metadata(self) -> None:
        """The initial metadata is on its way.

        Only just before the first message: an error that is sent without it can be retried by the transport.
        """
        if not self.has_sent_metadata:
            self.has_sent_metadata = True
            await self.context.send_initial_metadata(((REQUEST_ID, self.record.request_id),))


def header_values(context: Context, name: str) -> list[str]:
    """Every text value that the caller sent under `name`."""
    return [value for key, value in headers(context) if key == name]


def headers(context: Context) -> abc.Iterator[tuple[str, str]]:
    """The caller's metadata without its binary entries."""
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            yield key, value
