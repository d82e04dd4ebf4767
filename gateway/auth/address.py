"""Where a call comes from, in gRPC's names of peers, and whether that is inside a key's networks."""

from collections import abc
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import quote, unquote

from gateway.store.records import IPNetwork

_MAPPED = IPv6Network("::ffff:0:0/96")  # RFC 4291, §2.5.5.2: IPv4 as IPv6 sockets see it
_MAPPED_BITS = 96


def peer_name(client: tuple[str, int] | None) -> str:
    """gRPC's name of the peer whose address and port a socket tells; of a Unix socket where it tells none."""
    if client is None:
        return "unix:"
    host, port = client
    return f"ipv6:{quote(f'[{host}]')}:{port}" if ":" in host else f"ipv4:{host}:{port}"


def peer_address(peer: str) -> IPv4Address | IPv6Address | None:
    """The address in gRPC's name of a peer (`ipv4:10.0.0.1:4711`, `ipv6:%5B::1%5D:4711`); None for a Unix socket."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return None
    host = unquote(rest).rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_inside(peer: str, networks: abc.Sequence[IPNetwork]) -> bool:
    """Whether the peer has an address in one of the networks. A Unix socket has none, so it is in no network."""
    address = peer_address(peer)
    return address is not None and any(address in _unmapped(network) for network in networks)


def _unmapped(network: IPNetwork) -> IPNetwork:
    """An IPv6 network of IPv4 addresses as the IPv4 network that it is."""
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        mapped = network.network_address.ipv4_mapped
        return ip_network((mapped, network.prefixlen - _MAPPED_BITS)) if mapped is not None else network
    return network
