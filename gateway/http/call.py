"""One HTTP request as the handlers see it: its headers, its body within limits, and the one answer that it gets.

A body is given a time by its size: a few seconds to begin, and then at least `MIN_BYTES_PER_S`. Whoever sends less
holds nothing but a socket, and not for long.
"""

import asyncio
import time
from collections import abc
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from gateway.auth.address import peer_name
from gateway.errors import FieldViolation, GatewayError
from gateway.errors_requests import PromptTooLargeError
from gateway.http.refusals import Header, MediaTypeError, Renamed, RequestTooSlowError
from gateway.telemetry import RpcRecord

BODY_PATIENCE_S = 10.0
MIN_BYTES_PER_S = 4096
# Of a request that is refused unread: enough for what a client sends in one go, so that it gets to read the answer.
MAX_DISCARDED_BYTES = 2**20
DISCARD_PATIENCE_S = 1.0
JSON = "application/json"
IDENTITY = "identity"
UTF_8 = ("utf-8", "utf8", "")

CALL = "evenflow.call"
"""Where a scope has the call that was made of it, for the layers around the one that made it."""

CANCELLED = "CANCELLED"


class ClientGoneError(Exception):
    """The connection has ended: nobody is there to be answered."""


@dataclass(slots=True)
class HttpCall:
    """Written by the pipeline and by whoever answers.

    renamed  has the names of the path's parameters
    status   None until the answer has begun
    is_gone  nobody is there to hear it
    """

    scope: Scope
    receive: Receive
    send: Send
    record: RpcRecord
    renamed: Renamed = str
    started_s: float = field(default_factory=time.monotonic)
    status: int | None = None
    error: GatewayError | None = None
    is_body_read: bool = False
    is_gone: bool = False

    @property
    def error_type(self) -> str:
        """Why it failed, whatever its status: a reason, or that its client went away. Empty where it did not."""
        if self.error is not None:
            return self.error.reason
        return CANCELLED if self.is_gone else ""

    def headers(self, name: str) -> list[str]:
        """Every value that was sent under `name`, which is in lower case."""
        wanted = name.encode()
        return [value.decode("latin-1") for key, value in self.scope["headers"] if key == wanted]

    @property
    def peer(self) -> str:
        """Where from, in gRPC's names of peers."""
        return peer_name(self.scope["client"])

    async def body(self, max_bytes: int) -> bytes:
        """All of it. Raises PromptTooLargeError, RequestTooSlowError, MediaTypeError and ClientGoneError."""
        self._require_json()
        too_large = PromptTooLargeError(FieldViolation("", f"a request may have at most {max_bytes} bytes"))
        declared = next(iter(self.headers("content-length")), "")
        if declared.isdigit() and int(declared) > max_bytes:
            raise too_large
        body = bytearray()
        begun_s = time.monotonic()
        while not self.is_body_read:
            body += await self._chunk(begun_s + BODY_PATIENCE_S + len(body) / MIN_BYTES_PER_S)
            if len(body) > max_bytes:
                raise too_large
        return bytes(body)

    async def discard_body(self) -> None:
        """What the client was sending anyway is out of the way, if that is not much."""
        if self.is_body_read or self.headers("expect"):
            return
        until_s, num_bytes = time.monotonic() + DISCARD_PATIENCE_S, 0
        try:
            while not self.is_body_read and num_bytes <= MAX_DISCARDED_BYTES:
                num_bytes += len(await self._chunk(until_s))
        except RequestTooSlowError:
            return

    @asynccontextmanager
    async def while_connected(self) -> abc.AsyncIterator[None]:
        """The block is cancelled when the client is gone. Raises ClientGoneError then. The body has been read."""
        try:
            async with asyncio.timeout(None) as lifeline:
                watch = asyncio.create_task(self._cut_when_gone(lifeline))
                try:
                    yield
                finally:
                    watch.cancel()
        except TimeoutError:
            if not lifeline.expired():
                raise
            raise ClientGoneError from None

    async def respond(self, status: int, body: bytes, *headers: Header, media_type: str = JSON) -> None:
        """The whole answer is sent."""
        await self.begin(status, ("content-length", str(len(body))), *headers, media_type=media_type)
        await self.send({"type": "http.response.body", "body": body})

    async def begin(self, status: int, *headers: Header, media_type: str) -> None:
        """The answer has begun, with what the call's record has to tell."""
        self.status = status
        told = (
            ("content-type", media_type),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-request-id", self.record.request_id),
            *self.record.initial_metadata.items(),
            *headers,
        )
        raw = [(name.encode(), value.encode("latin-1", "replace")) for name, value in told]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    def _require_json(self) -> None:
        """A body without a type is taken to be JSON: it is the only kind there is."""
        for declared in self.headers("content-type"):
            kind, *parameters = declared.lower().split(";")
            if kind.strip() != JSON:
                raise MediaTypeError
            if any(charset not in UTF_8 for charset in map(_charset, parameters)):
                raise MediaTypeError("send JSON in UTF-8, which needs no `charset`")
        for coding in self.headers("content-encoding"):
            if coding.strip().lower() not in ("", IDENTITY):
                raise MediaTypeError("send the body as it is: no `content-encoding` is understood")

    async def _chunk(self, until_s: float) -> bytes:
        try:
            async with asyncio.timeout(max(0.0, until_s - time.monotonic())):
                message = await self.receive()
        except TimeoutError:
            raise RequestTooSlowError from None
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self.is_body_read = not message.get("more_body", False)
        chunk: bytes = message.get("body", b"")
        return chunk

    async def _cut_when_gone(self, lifeline: asyncio.Timeout) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
        lifeline.reschedule(asyncio.get_running_loop().time())


def _charset(parameter: str) -> str:
    """The charset that a parameter of a type names; empty where it is about something else."""
    name, _, value = parameter.partition("=")
    return value.strip().strip('"') if name.strip() == "charset" else ""
