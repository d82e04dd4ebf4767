"""Names of this machine to itself: what is served without a key is served there only. Pure."""

import ipaddress

MAX_PORT = 65535


def is_loopback(name: str) -> bool:
    """Whether a host's name or address, without brackets, is that of a machine to itself."""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def parse_loopback(text: str) -> tuple[str, int]:
    """Host, without brackets, and port of HOST:PORT. Raises ValueError for what is no such address."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > MAX_PORT:
        raise ValueError("must be HOST:PORT")
    if not is_loopback(host.strip("[]")):
        raise ValueError("must be a loopback address: nobody is asked for a key")
    return host.strip("[]"), int(port)


def host_of(header: str) -> str:
    """The host, without brackets, in a Host header; a port may follow."""
    return header.rpartition("]")[0].lstrip("[") if header.startswith("[") else header.partition(":")[0]
