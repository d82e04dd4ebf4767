"""uvicorn's HTTP/1.1, with limits on what a connection may hold without saying anything.

A request's head has to come whole within a few seconds and a few kilobytes, also one that comes while another request
is answered, and so have the trailers of a body; a connection that waits between requests is closed after a while; one
whose request was answered unread ends with the answer. Bytes that are no HTTP, a head that is too large, and one that
does not say for which host it is get an answer in the door's own words, unless another answer is under way.
"""

import asyncio
import json
import logging
from collections import abc
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_PATIENCE_S = 10.0
MAX_HEAD_BYTES = 64 * 1024
# Longer than the minute for which load balancers keep connections that they reuse.
KEEP_ALIVE_S = 75

# What a client was sending when it was refused is read and dropped: whoever closes at once takes the answer back.
MAX_LINGER_BYTES = 2**20
LINGER_S = 1.0


@dataclass(frozen=True, slots=True)
class Problem:
    """Why bytes are no request that can be served."""

    status: HTTPStatus
    code: str
    message: str

    def answer(self) -> bytes:
        """The whole of it, after which nothing follows on the connection."""
        error = {"message": self.message, "type": "invalid_request_error", "param": None, "code": self.code}
        body = json.dumps({"error": error | {"reason": self.code.upper()}}).encode()
        head = (
            b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
            % (self.status, self.status.phrase.encode(), len(body))
        )
        return head + body


NOT_HTTP = Problem(HTTPStatus.BAD_REQUEST, "invalid_http", "these bytes are no HTTP/1.1 request")
# RFC 9112, §3.2; proxies and servers that read different hosts out of one request can be played against each other.
NO_HOST = Problem(HTTPStatus.BAD_REQUEST, "invalid_host", "a request has exactly one `Host` header")
HEAD_TOO_LARGE = Problem(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "request_head_too_large",
    f"the target and the headers of a request may have at most {MAX_HEAD_BYTES} bytes",
)


class GuardedProtocol(HttpToolsProtocol):
    """One connection. It is closed at once where `has_room` says that there may not be so many."""

    def __init__(self, config: Config, server_state: ServerState, *, has_room: abc.Callable[[int], bool]) -> None:
        super().__init__(config, server_state, {})
        self._has_room = has_room
        self.logger = _SILENT  # it writes a line of its own form for each client that talks nonsense
        self._head_timer: asyncio.TimerHandle | None = None
        self._num_unread_bytes = 0  # since a head, a piece of a body, or a request was whole
        self._problem = NOT_HTTP
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._await_head()
        if not self._has_room(len(self.connections)):
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._num_unread_bytes += len(data)
            if self._num_unread_bytes > MAX_LINGER_BYTES:
                self.transport.close()
            return
        if self._head_timer is None and self._is_idle:
            self._await_head()
        if self._num_unread_bytes > MAX_HEAD_BYTES:
            self._refuse(HEAD_TOO_LARGE)
            return
        self._num_unread_bytes += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        if self._head_timer is None:  # it comes behind a request that is not answered yet
            self._await_head()
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._num_unread_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_unread_bytes = 0
        super().on_message_complete()

    def on_headers_complete(self) -> None:
        """Raises ValueError, which the parser passes on as a fault of the bytes."""
        self._head_has_come()
        self._check_head()
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(self._problem)

    def _check_head(self) -> None:
        size, num_hosts = len(self.url), 0
        for name, value in self.headers:
            size += len(name) + len(value)
            num_hosts += name == b"host"
        if size > MAX_HEAD_BYTES:  # it came at once, so that nobody has counted it
            self._problem = HEAD_TOO_LARGE
        elif num_hosts != 1 and (num_hosts or self.parser.get_http_version() == "1.1"):
            self._problem = NO_HOST
        if self._problem is not NOT_HTTP:
            raise ValueError(self._problem.code)

    def _refuse(self, problem: Problem) -> None:
        """The client is told, and nothing of what it sends is looked at any more."""
        self._head_has_come()
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # it would be read as a part of that answer
            return
        self._is_refused = True
        self.transport.write(problem.answer())
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._head_timer = self.loop.call_later(LINGER_S, self.transport.close)

    @property
    def _is_idle(self) -> bool:
        """Whether what comes next is a new request."""
        return self.cycle is None or (self.cycle.response_complete and not self.cycle.more_body)

    def _await_head(self) -> None:
        self._num_unread_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_PATIENCE_S, self.transport.close)

    def _head_has_come(self) -> None:
        self._num_unread_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


_SILENT = logging.Logger("gateway.http", logging.CRITICAL + 1)
