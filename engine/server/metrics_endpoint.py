"""The engine's page for Prometheus: HTTP on a loopback address, on threads of its own. Knows no metric.

It asks for no key, so it answers only where it is asked for by a loopback name: a web page in a browser on this machine
cannot read it under a name of its own.
"""

import selectors
import socket
import socketserver
import threading
from collections import abc
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from engine.errors import ListenError
from engine.loopback import host_of, is_loopback
from engine.server.listener import TcpAddress

READ_TIMEOUT_S = 10.0

# As PEP 3333 has them, which types neither.
Environ = abc.Mapping[str, object]
StartResponse = abc.Callable[..., object]


class MetricsEndpoint:
    """Use as: made (the address is taken), `start`, `close`."""

    def __init__(self, address: TcpAddress, collect: abc.Callable[[], list[Metric]]) -> None:
        """`collect` is called on any thread, several at a time. Raises ListenError."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Page(collect))
        server_class = _Server6 if ":" in address.host else _Server
        try:
            self._server = make_server(
                address.host, address.port, _Loopback(make_wsgi_app(registry)), server_class, _Handler
            )
        except OSError as error:
            raise ListenError(str(address), error.strerror or str(error)) from None
        self.address = str(TcpAddress(address.host, self._server.server_port))
        self._waker, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)

    def start(self) -> None:
        """The page can be read."""
        self._thread.start()

    def close(self) -> None:
        """The address is free again."""
        if self._thread.is_alive():
            self._waker.send(b"\0")
            self._thread.join()
        for end in (self._waker, self._woken):
            end.close()
        self._server.server_close()

    def _serve(self) -> None:
        """Until it is woken. The library's own loop looks twice a second whether it is to end, and ends that late."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._server, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while all(key.fileobj is not self._woken for key, _ in selector.select()):
                self._server.handle_request()


class _Page(Collector):
    def __init__(self, collect: abc.Callable[[], list[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> list[Metric]:
        return self._collect()


class _Server(ThreadingWSGIServer):
    timeout = 0  # of `handle_request`: who was seen to come may be gone

    def server_bind(self) -> None:
        """As the base does it, but for looking up the host's name, which may take as long as a name server likes."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = READ_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that it has where it is called
        """Nothing: a scrape every few seconds is no event."""


class _Loopback:
    """Answers under a loopback name only."""

    # Any: the types of PEP 3333 are those of whoever calls.
    def __init__(self, app: abc.Callable[..., abc.Iterable[bytes]]) -> None:
        self._app = app

    def __call__(self, environ: Environ, start_response: StartResponse) -> abc.Iterable[bytes]:
        if not is_loopback(host_of(str(environ.get("HTTP_HOST", "")))):
            start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
            return [b"this page is read by a loopback address only\n"]
        return self._app(environ, start_response)
