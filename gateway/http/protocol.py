"""uvicorn's HTTP/1.1, with limits on what a connection may hold without saying anything.

A request's head has to come whole within a few seconds and a few kilobytes, also one that comes while another request
is answered, and so have the trailers of a body; a connection that waits between requests is closed after a while; one
whose request was answered unread ends with the answer. Bytes that are no HTTP get an answer in the door's own words,
unless another answer is under way.
"""

import asyncio
import json
import logging
from email.utils import formatdate

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

HEAD_PATIENCE_S = 10.0
MAX_HEAD_BYTES = 64 * 1024
# Longer than the minute for which load balancers keep connections that they reuse.
KEEP_ALIVE_S = 75

_NOT_HTTP = {
    "message": "these bytes are no HTTP/1.1 request",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_http",
    "reason": "INVALID_HTTP",
}


class GuardedProtocol(HttpToolsProtocol):
    """One connection. A server has at most `max_connections`; what comes beyond them is closed at once."""

    def __init__(self, config: Config, server_state: ServerState, *, max_connections: int) -> None:
        super().__init__(config, server_state, {})
        self._max_connections = max_connections
        self.logger = _SILENT  # it writes a line of its own form for each client that talks nonsense
        self._head_timer: asyncio.TimerHandle | None = None
        self._num_unread_bytes = 0  # since a head, a piece of a body, or a request was whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the base class
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self._max_connections:
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_has_come()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_timer is None and self._is_idle:
            self._await_head()
        if self._num_unread_bytes > MAX_HEAD_BYTES:
            self.transport.close()
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
        self._head_has_come()
        self.server_state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        if self.cycle.more_body:
            self.transport.close()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.close()  # it would be read as a part of that answer
            return
        body = json.dumps({"error": _NOT_HTTP}).encode()
        head = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        )
        self.transport.write(head + body)
        self.transport.close()

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
