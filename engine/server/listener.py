"""The address that the engine listens on. gRPC itself would take over a Unix socket that somebody else listens on, and
share a port; here both are refused, by name. A stale socket, left by a process that was killed, is removed.
"""

import errno
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

import grpc

from engine.errors import ListenError, SettingsError
from engine.loopback import is_loopback

MAX_SOCKET_PATH_BYTES = 106  # the same for every socket of ours: one less than unix(7) has room for
OWNER_ONLY_UMASK = 0o177


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A socket in the file system; only its owner may connect."""

    path: Path

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A port of this machine that others cannot reach. Port 0: any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Address = UnixAddress | TcpAddress


def parse_address(listen: str) -> Address:
    """`unix:PATH` or `HOST:PORT`. Raises SettingsError."""
    scheme, _, path = listen.partition(":")
    if scheme == "unix":
        size = len(os.fsencode(path))
        if not 0 < size <= MAX_SOCKET_PATH_BYTES:
            raise SettingsError(
                "listen", f"has a path of {size} bytes, a socket takes 1 to {MAX_SOCKET_PATH_BYTES}: {path}"
            )
        return UnixAddress(Path(path))
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise SettingsError("listen", f"must be unix:PATH or HOST:PORT, not {listen!r}")
    return TcpAddress(_loopback(host.strip("[]")), int(port))


def bind(server: grpc.aio.Server, address: Address) -> str:
    """Bind `server`; returns the address that clients use. Raises ListenError if somebody listens there."""
    if isinstance(address, TcpAddress):
        _check_free(address)
        return str(TcpAddress(address.host, _add_port(server, address)))
    _remove_stale(address)
    # The file must never be there with wider permissions, not even for a moment.
    umask = os.umask(OWNER_ONLY_UMASK)
    try:
        _add_port(server, address)
    finally:
        os.umask(umask)
    return str(address)


def _loopback(host: str) -> str:
    if not is_loopback(host):
        # The wire has no authentication of its own.
        raise SettingsError("listen", f"must be a Unix socket or a loopback address, not {host}")
    return host


def _check_free(address: TcpAddress) -> None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            raise ListenError(str(address), error.strerror or str(error)) from None


def _remove_stale(address: UnixAddress) -> None:
    path = address.path
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ListenError(str(address), f"{path.parent} is no folder that can be written to")
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        raise ListenError(str(address), "there is a file of that name that is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)  # a full backlog does not block, it means that somebody listens
        if probe.connect_ex(os.fsencode(path)) != errno.ECONNREFUSED:
            raise ListenError(str(address), "another process listens there")
    path.unlink()


def _add_port(server: grpc.aio.Server, address: Address) -> int:
    try:
        return server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise ListenError(str(address), str(error)) from None
