"""Who called, where proxies stand in between: what the trusted ones among them say, and nothing that a client says.

Each proxy appends the address that connected to it, so the entries are read from the right: the first that is no
trusted proxy is the client, whatever stands to its left. One header is read, the one that the proxies write; another
one would pass through them as the client sent it.
Sources: RFC 7239 (Forwarded); X-Forwarded-For as nginx, Envoy and AWS write it.
"""

import re
from collections import abc
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address

from gateway.addresses import IPNetwork, networks_of
from gateway.auth.address import is_inside, peer_name

FORWARDED_PROTO = "x-forwarded-proto"
SCHEMES = frozenset({"http", "https"})
MAX_HOPS = 64
_PAIR = re.compile(r'\s*([\w!#$%&\'*+.^`|~-]+)=("(?:[^"\\]|\\.)*"|[^",;]*)\s*')
_ELEMENTS = re.compile(r'(?:"(?:[^"\\]|\\.)*"|[^,"])+')

Values = abc.Callable[[str], abc.Sequence[str]]
"""Everything that was sent under a name, in order."""


class ForwardedHeader(StrEnum):
    """Which header the proxies write."""

    X_FORWARDED_FOR = "x-forwarded-for"
    FORWARDED = "forwarded"


@dataclass(frozen=True, slots=True)
class Origin:
    """`peer` in gRPC's names. `scheme` is None where no trusted proxy says by which one the client came."""

    peer: str
    scheme: str | None = None


@dataclass(frozen=True, slots=True)
class Hop:
    """What a proxy says of who connected to it. `address` is None where it does not say, or nothing that is one."""

    address: IPv4Address | IPv6Address | None
    scheme: str | None = None


@dataclass(frozen=True, slots=True)
class TrustedProxies:
    """Those whose `header` is believed. Without networks nobody is."""

    networks: tuple[IPNetwork, ...] = ()
    header: ForwardedHeader = ForwardedHeader.X_FORWARDED_FOR

    @classmethod
    def of(cls, networks: tuple[str, ...], header: str) -> "TrustedProxies":
        """As the settings have them. Raises ValueError."""
        return cls(networks_of(networks), ForwardedHeader(header))

    def origin(self, peer: str, values: Values) -> Origin:
        """The caller of a request that `peer` sent with these headers."""
        if not self.networks or not is_inside(peer, self.networks):
            return Origin(peer)
        scheme = self._said_scheme(values)
        found = Origin(peer, scheme)
        for hop in reversed(self._hops(values)[-MAX_HOPS:]):
            # What is left of a hop that is not named was said by nobody who is known.
            if hop.address is None:
                break
            found = Origin(peer_name((str(hop.address), 0)), hop.scheme or scheme)
            if not is_inside(found.peer, self.networks):
                break
        return found

    def _said_scheme(self, values: Values) -> str | None:
        """Of the whole way. With Forwarded each hop says its own, and the other header is the client's to make up."""
        return _proto(values(FORWARDED_PROTO)) if self.header is ForwardedHeader.X_FORWARDED_FOR else None

    def _hops(self, values: Values) -> list[Hop]:
        lines = ",".join(values(self.header))
        if self.header is ForwardedHeader.X_FORWARDED_FOR:
            return [Hop(_address(entry)) for entry in lines.split(",") if entry.strip()]
        return [_hop(element) for element in _ELEMENTS.findall(lines) if element.strip()]


def _hop(element: str) -> Hop:
    """Of `for="[2001:db8::1]:4711";proto=https`."""
    pairs = {name.lower(): value for name, value in _PAIR.findall(element)}
    return Hop(_address(_unquoted(pairs.get("for", ""))), _scheme(_unquoted(pairs.get("proto", ""))))


def _address(entry: str) -> IPv4Address | IPv6Address | None:
    """Of `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1` or `[2001:db8::1]:4711`."""
    bare = entry.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return ip_address(bare)
    except ValueError:
        return None


def _proto(values: abc.Sequence[str]) -> str | None:
    """What the last proxy says."""
    return _scheme(values[-1].rpartition(",")[2]) if values else None


def _scheme(text: str) -> str | None:
    scheme = text.strip().lower()
    return scheme if scheme in SCHEMES else None


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
