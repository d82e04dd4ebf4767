"""The public port: its transport options, TLS, and why it cannot be had."""

import errno
import os
import socket
from collections import abc

import grpc

from gateway.errors import SettingsError
from gateway.interceptors import MAX_MESSAGE_BYTES
from gateway.settings import GatewaySettings
from gateway.tls import ServerTls

# Messages a little over the limit arrive, so that they can be refused with a reason; larger ones end in the transport.
TRANSPORT_SLACK_BYTES = 4 * 2**20
# A token of the largest size, and everything else that a client sends beside it.
MAX_METADATA_BYTES = 16 * 1024


def server_options(settings: GatewaySettings) -> abc.Sequence[tuple[str, int]]:
    """Of the public port."""
    return (
        ("grpc.so_reuseport", int(settings.reuse_port)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + TRANSPORT_SLACK_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_concurrent_streams", settings.max_concurrent_rpcs),
        ("grpc.max_metadata_size", MAX_METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # A client that has vanished without a word is noticed; one that pings every few seconds is welcome.
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    )


def new_server(settings: GatewaySettings, interceptor: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
    """A server that listens nowhere yet; every call goes through `interceptor`."""
    server = grpc.aio.server(
        interceptors=[interceptor],
        options=server_options(settings),
        maximum_concurrent_rpcs=settings.max_concurrent_rpcs,
    )
    # The generated code offers each method twice. For one that is registered the transport waits on its own, and begins
    # all of these waits anew with every call; as generic ones they share a wait.
    server.add_registered_method_handlers = _leave_generic  # type: ignore[method-assign]  # there is no option
    return server


def listen(server: grpc.aio.Server, settings: GatewaySettings) -> str:
    """`server` has the port that the settings name; its address, with the number of the port. Raises SettingsError."""
    address, files = settings.listen, settings.tls_files
    try:
        if files is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, ServerTls(files).credentials())
    except RuntimeError as error:
        raise SettingsError(f"listen: {_bind_problem(address)}") from error
    return f"{address.rpartition(':')[0]}:{port}"


def _leave_generic(service_name: str, method_handlers: object) -> None:
    """The generic handlers have the same methods."""


def _bind_problem(address: str) -> str:
    """Why the address cannot be listened on, in the system's words: the transport does not say."""
    host, _, port = address.rpartition(":")
    try:
        infos = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, target in infos:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(target)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} of {host} is in use by another process"
        return f"cannot listen on {address}: {error.strerror or os.strerror(error.errno or 0)}"
    return f"cannot listen on {address}"
