"""Whom a request comes from where proxies stand in between: by what the trusted ones say, from the right."""

from collections import abc

import pytest

from gateway.auth.forwarding import Origin, TrustedProxies

PROXY, OTHER_PROXY, CLIENT = "ipv4:10.0.0.1:4711", "10.0.0.2", "203.0.113.9"
NETWORKS = ("10.0.0.0/8", "2001:db8:aa::/48")
X, RFC = "x-forwarded-for", "forwarded"


def origin(peer: str, header: str = X, networks: tuple[str, ...] = NETWORKS, **sent: str) -> Origin:
    by_name = {name.replace("_", "-"): value for name, value in sent.items()}

    def values(name: str) -> abc.Sequence[str]:
        return [line for line in by_name.get(name, "").split("\n") if line]

    return TrustedProxies.of(networks, header).origin(peer, values)


@pytest.mark.parametrize(
    ("sent", "peer"),
    [
        ("", PROXY),
        (CLIENT, f"ipv4:{CLIENT}:0"),
        (f"1.1.1.1, {CLIENT}", f"ipv4:{CLIENT}:0"),  # the client made up the first one
        (f"{CLIENT}, {OTHER_PROXY}", f"ipv4:{CLIENT}:0"),
        (f"1.1.1.1,{CLIENT}\n{OTHER_PROXY}", f"ipv4:{CLIENT}:0"),  # a header that is there twice is one
        (f"{CLIENT}:50000", f"ipv4:{CLIENT}:0"),
        ("2001:db8::7", "ipv6:%5B2001%3Adb8%3A%3A7%5D:0"),
        ("[2001:db8::7]:50000", "ipv6:%5B2001%3Adb8%3A%3A7%5D:0"),
        ("10.0.0.3, 10.0.0.2", "ipv4:10.0.0.3:0"),  # somebody inside
        ("unknown", PROXY),
        (f"{CLIENT}, unknown, {OTHER_PROXY}", f"ipv4:{OTHER_PROXY}:0"),
        ("' or 1=1 --", PROXY),
        (", ,", PROXY),
    ],
)
def test_the_right_most_that_is_no_proxy_is_the_client(sent: str, peer: str) -> None:
    assert origin(PROXY, x_forwarded_for=sent).peer == peer


@pytest.mark.parametrize("networks", [(), ("192.0.2.0/24",)])
def test_nobody_else_is_believed(networks: tuple[str, ...]) -> None:
    found = origin(PROXY, networks=networks, x_forwarded_for=CLIENT, x_forwarded_proto="https", forwarded="for=1.1.1.1")

    assert found == Origin(PROXY)


def test_a_proxy_without_an_address_is_in_no_network() -> None:
    assert origin("unix:", x_forwarded_for=CLIENT) == Origin("unix:")


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (f"for={CLIENT}", Origin(f"ipv4:{CLIENT}:0")),
        (f'For="{CLIENT}:4711";Proto=https;by=10.0.0.1', Origin(f"ipv4:{CLIENT}:0", "https")),
        ('for="[2001:db8::7]:4711";host="a, b"', Origin("ipv6:%5B2001%3Adb8%3A%3A7%5D:0")),
        (f"for=1.1.1.1, for={CLIENT};proto=https, for={OTHER_PROXY};proto=http", Origin(f"ipv4:{CLIENT}:0", "https")),
        (f'for={CLIENT};ext="for=1.1.1.1, for=2.2.2.2"', Origin(f"ipv4:{CLIENT}:0")),
        ("for=_hidden;proto=https", Origin(PROXY)),
        (f"for={CLIENT};proto=gopher", Origin(f"ipv4:{CLIENT}:0")),
        ("proto=https", Origin(PROXY)),
    ],
)
def test_the_standard_header_says_the_same(sent: str, expected: Origin) -> None:
    assert origin(PROXY, RFC, forwarded=sent) == expected


def test_the_header_that_the_proxies_do_not_write_passes_unread() -> None:
    assert origin(PROXY, X, forwarded=f"for={CLIENT}") == Origin(PROXY)
    assert origin(PROXY, RFC, x_forwarded_for=CLIENT) == Origin(PROXY)


@pytest.mark.parametrize(
    ("sent", "scheme"),
    [
        (f"for={CLIENT}", None),
        (f"for={CLIENT};proto=http", "http"),
        (f"for=1.1.1.1;proto=https, for={CLIENT}, for={OTHER_PROXY};proto=https", None),  # what others say of others
        ("", None),
    ],
)
def test_with_the_standard_header_the_scheme_is_what_the_same_hop_says(sent: str, scheme: str | None) -> None:
    assert origin(PROXY, RFC, forwarded=sent, x_forwarded_proto="https").scheme == scheme


@pytest.mark.parametrize(("sent", "scheme"), [("https", "https"), ("http, HTTPS", "https"), ("javascript", None)])
def test_the_scheme_is_the_last_one_that_is_told(sent: str, scheme: str | None) -> None:
    assert origin(PROXY, x_forwarded_for=CLIENT, x_forwarded_proto=sent).scheme == scheme


def test_no_chain_is_followed_for_ever() -> None:
    endless = ",".join(["10.0.0.2"] * 100_000)

    assert origin(PROXY, x_forwarded_for=endless).peer == "ipv4:10.0.0.2:0"


@pytest.mark.parametrize("network", ["10.0.0.1/8", "proxies", "10.0.0.0/33"])
def test_what_is_no_network_is_refused(network: str) -> None:
    with pytest.raises(ValueError, match="is no network"):
        TrustedProxies.of((network,), X)
