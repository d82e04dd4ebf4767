"""The Prometheus endpoint: one page over HTTP/1.1 on a loopback address, for whoever is on this machine.

It names tenants and asks for no key, so it answers only where it is asked for by a loopback name: a web page in a
browser on this machine cannot read it under a name of its own. Knows no metric.
"""

import asyncio
import ipaddress
import socket
from collections import abc
from http import HTTPStatus

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gateway.accepting import stop_accepting
from gateway.errors import SettingsError

ANSWER_TIMEOUT_S = 10.0
PATHS = ("/", "/metrics")

log = structlog.get_logger()

Collect = abc.Callable[[], abc.Awaitable[list[Metric]]]


class MetricsEndpoint:
    """Use as: made (the address is taken), `start`, `close`."""

    def __init__(self, address: tuple[str, int], collect: Collect) -> None:
        """Raises SettingsError if the address cannot be listened on."""
        self._collect = collect
        self._socket = _bound(address)
        self._server: asyncio.Server | None = None
        host, port = self._socket.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    async def start(self) -> None:
        """The page can be read."""
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        log.info("metrics listening", address=self.address)

    async def close(self) -> None:
        """The address is free again."""
        if self._server is not None:
            await stop_accepting(self._server)
        self._socket.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head.decode("latin-1")))
                await writer.drain()
        # Whoever asks for it may go away, be slow or speak something else; the next one is served all the same.
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str) -> bytes:
        request, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        method, _, rest = request.partition(" ")
        if not _is_loopback(headers.get("host", "")):
            return _response(HTTPStatus.FORBIDDEN, "this page is read by a loopback address only\n")
        if method != "GET":
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "GET is all there is\n")
        if rest.split(" ")[0].split("?")[0] not in PATHS:
            return _response(HTTPStatus.NOT_FOUND, "the metrics are at /metrics\n")
        families = await self._collect()
        page, content_type = await asyncio.to_thread(_render, families, headers.get("accept", ""))
        return _head(HTTPStatus.OK, content_type, len(page)) + page


class Page(Collector):
    """Families that were collected already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


def _render(families: list[Metric], accept: str) -> tuple[bytes, str]:
    encode, content_type = choose_encoder(accept)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Page(families))
    return encode(registry), content_type


def _response(status: HTTPStatus, text: str) -> bytes:
    return _head(status, "text/plain; charset=utf-8", len(text)) + text.encode()


def _head(status: HTTPStatus, content_type: str, length: int) -> bytes:
    return (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n"
        "Connection: close\r\n\r\n"
    ).encode()


def _is_loopback(host: str) -> bool:
    """Whether a Host header names this machine to itself; a port may follow."""
    name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _bound(address: tuple[str, int]) -> socket.socket:
    host, port = address
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host.strip("[]"), port))
    except OSError as error:
        bound.close()
        raise SettingsError(f"metrics_listen: cannot listen on {host}:{port}: {error.strerror}") from error
    return bound
