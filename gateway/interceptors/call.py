"""One incoming call as the interceptors see it."""

import asyncio
import re
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass

import grpc
import uuid_utils

from gateway.auth import Verdict
from gateway.errors import GatewayError
from gateway.telemetry import RpcRecord

REQUEST_ID = "x-request-id"
_VALID_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:/+=-]{1,128}", re.ASCII)

Context = grpc.aio.ServicerContext[object, object]


@contextmanager
def reader_loss_as_cancellation() -> abc.Iterator[None]:
    """What the block cannot send any more has lost its reader, of which the transport may tell only afterwards."""
    try:
        yield
    except grpc.aio.InternalError as error:
        raise asyncio.CancelledError from error


@dataclass(slots=True)
class Call:
    """Written by the interceptors only. `error` is what the caller is told, once that is known; `verdict` is on who it
    is, None where nobody asks. `headers` is the caller's metadata without its binary entries."""

    method: str
    context: Context
    record: RpcRecord
    headers: tuple[tuple[str, str], ...] = ()
    error: GatewayError | None = None
    verdict: Verdict | None = None
    has_sent_metadata: bool = False

    @classmethod
    def begin(cls, method: str, context: Context) -> "Call":
        """The caller's `x-request-id` is taken where it is short and plain; otherwise the call gets one."""
        # Once: the transport makes it anew whenever it is asked.
        headers = tuple([(key, value) for key, value in context.invocation_metadata() or () if isinstance(value, str)])
        request_id = request_id_of([value for key, value in headers if key == REQUEST_ID])
        return cls(method, context, RpcRecord(method.lstrip("/"), request_id), headers)

    async def send_metadata(self) -> None:
        """The initial metadata is on its way.

        Only just before the first message: an error that is sent without it can be retried by the transport.
        """
        if not self.has_sent_metadata:
            self.has_sent_metadata = True
            told = self.record.initial_metadata.items()
            with reader_loss_as_cancellation():
                await self.context.send_initial_metadata(((REQUEST_ID, self.record.request_id), *told))

    @property
    def cancelled_code(self) -> grpc.StatusCode:
        """What a cancellation is: a deadline that passed, or a caller who is gone."""
        time_left_s = self.context.time_remaining()
        is_late = time_left_s is not None and time_left_s <= 0
        return grpc.StatusCode.DEADLINE_EXCEEDED if is_late else grpc.StatusCode.CANCELLED

    def header_values(self, name: str) -> list[str]:
        """Every text value that the caller sent under `name`."""
        return [value for key, value in self.headers if key == name]


def request_id_of(sent: abc.Sequence[str]) -> str:
    """The first of the ids that a caller sent, where it is short and plain; otherwise one of ours."""
    if sent and _VALID_REQUEST_ID.fullmatch(sent[0]):
        return sent[0]
    return str(uuid_utils.uuid7())
