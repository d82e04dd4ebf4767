"""The HTTP port: its socket, its connections, and their end. Knows no path.

uvicorn's protocol over the gateway's own event loop. Its server is not used: that one is made for a process of its own,
with signals and the start and stop of an application.
"""

import asyncio
import os
import socket
import ssl

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from gateway.accepting import stop_accepting
from gateway.errors import SettingsError
from gateway.http.protocol import KEEP_ALIVE_S, GuardedProtocol
from gateway.settings import http_base_url

BACKLOG = 2048
HANDSHAKE_PATIENCE_S = 10.0
# 64 KiB for each round trip is more than any model writes.
SEND_BUFFER_BYTES = 64 * 1024
# A peer that has vanished is noticed after about a minute.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3
# What a request takes to notice that its client is gone, and to end when it is cancelled, is far less.
LAST_WAIT_S = 5.0

log = structlog.get_logger()


class HttpDoor:
    """Use as: made (the address is taken), `start`, `stop`."""

    def __init__(
        self,
        address: tuple[str, int],
        app: ASGIApp,
        *,
        max_connections: int,
        tls: ssl.SSLContext | None = None,
        reuse_port: bool = False,
    ) -> None:
        """Raises SettingsError if the address cannot be listened on."""
        self._socket = _bound(address, reuse_port=reuse_port)
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.url = http_base_url(self.address, has_tls=tls is not None)
        self._tls = tls
        self._max_connections = max_connections
        self._state = ServerState()
        self._config = _settings(app)
        self._server: asyncio.Server | None = None
        self._is_stopping = False

    async def start(self) -> None:
        """The port answers."""
        self._config.load()
        self._server = await asyncio.get_running_loop().create_server(
            self._connection,
            sock=self._socket,
            ssl=self._tls,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_PATIENCE_S,
            backlog=BACKLOG,
        )
        log.info("http listening", address=self.address)

    async def stop(self, grace_s: float) -> None:
        """Answers that are under way have `grace_s` to end; then no connection is left. Idempotent.

        Requests that do not end without their clients are cancelled, and left behind if they do not end even then.
        """
        self._is_stopping = True
        if self._server is not None:
            await stop_accepting(self._server)
        self._socket.close()
        for connection in list(self._state.connections):
            connection.shutdown()
        await self._wait_for_requests(grace_s)
        for connection in list(self._state.connections):
            connection.transport.abort()
        # They find that their client is gone.
        if stuck := await self._wait_for_requests(LAST_WAIT_S):
            log.error("http requests do not end", num_requests=len(stuck))
            for request in stuck:
                request.cancel()
            await self._wait_for_requests(LAST_WAIT_S)

    async def _wait_for_requests(self, patience_s: float) -> set[asyncio.Task[None]]:
        """Those that have not ended after that long."""
        requests = set(self._state.tasks)
        if not requests:
            return set()
        _, running = await asyncio.wait(requests, timeout=patience_s)
        return running

    def _connection(self) -> GuardedProtocol:
        return GuardedProtocol(self._config, self._state, has_room=self._has_room)

    def _has_room(self, num_connections: int) -> bool:
        """At most `max_connections`, and none once the door stops: a client may still have been shaking hands."""
        return not self._is_stopping and num_connections <= self._max_connections


def _settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=GuardedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        # A request that was pipelined is started by the one before it, and must not take over who that was.
        reset_contextvars=True,
    )


def _bound(address: tuple[str, int], *, reuse_port: bool) -> socket.socket:
    host, port = address
    bare = host.strip("[]")
    try:
        family = socket.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        # By its protocol asyncio knows that small writes are not to wait for each other's acknowledgement, which takes
        # 40 ms where a head and a body are written apart.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            # Fixed, so that what a client has not read waits in its generation's journal, not in the kernel.
            found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            _keep_alive(found)
            found.bind((bare, port))
        except BaseException:
            found.close()
            raise
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise SettingsError(f"http_listen: cannot listen on {host}:{port}: {reason}") from error
    found.settimeout(0)
    return found


def _keep_alive(listening: socket.socket) -> None:
    """Accepted connections inherit it."""
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
    ):
        if hasattr(socket, name):
            listening.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
