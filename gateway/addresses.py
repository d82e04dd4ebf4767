"""Addresses and networks as settings have them. Pure."""

import ipaddress

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network


def split_address(text: str) -> tuple[str, int]:
    """Host and port. Raises ValueError for what is not HOST:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches it."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def networks_of(texts: tuple[str, ...]) -> tuple[IPNetwork, ...]:
    """`10.0.0.0/8`, or one address. Raises ValueError for what is neither, and for bits behind the network's."""
    networks: list[IPNetwork] = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise ValueError(f"{text!r} is no network: {error}") from None
    return tuple(networks)
