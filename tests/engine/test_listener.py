"""Addresses: what may be listened on, and who is in the way."""

import os
import socket
import stat

import grpc
import pytest

from engine.errors import ListenError, SettingsError
from engine.server.listener import TcpAddress, UnixAddress, bind, parse_address


@pytest.fixture
async def server():
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    yield server
    await server.stop(None)


@pytest.mark.parametrize(
    "listen",
    ["", "unix:", "unix:" + "/x" * 54, "9000", ":9000", "localhost:", "localhost:http", "127.0.0.1:65536", "tcp://x:1"],
)
def test_malformed_address_is_refused_by_name(listen):
    with pytest.raises(SettingsError, match=r"^listen "):
        parse_address(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:9000", "10.1.2.3:9000", "example.com:9000", "[::]:9000"])
def test_address_that_other_machines_reach_is_refused(listen):
    with pytest.raises(SettingsError, match="must be a Unix socket or a loopback address"):
        parse_address(listen)


def test_addresses_in_their_three_forms():
    assert str(parse_address("127.0.0.1:90")) == "127.0.0.1:90"
    assert parse_address("[::1]:90") == TcpAddress("::1", 90)
    assert str(parse_address("[::1]:90")) == "[::1]:90"
    assert str(parse_address("unix:/run/e.sock")) == "unix:/run/e.sock"


def test_longest_socket_path_is_accepted_and_one_byte_more_is_not():
    assert parse_address("unix:/" + "x" * 105)
    with pytest.raises(SettingsError, match="107 bytes"):
        parse_address("unix:/" + "x" * 106)
    with pytest.raises(SettingsError, match="107 bytes"):
        parse_address("unix:/" + "é" * 53)


async def test_socket_belongs_to_its_owner_alone(server, tmp_path):
    path = tmp_path / "e.sock"
    umask = os.umask(0)
    try:
        assert bind(server, UnixAddress(path)) == f"unix:{path}"
        assert os.umask(0) == 0
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_socket_that_somebody_listens_on_is_left_to_them(server, tmp_path):
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(ListenError, match=f"{path}.*another process listens"):
            bind(server, UnixAddress(path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))


async def test_stale_socket_is_replaced(server, tmp_path):
    path = tmp_path / "e.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
    bind(server, UnixAddress(path))
    await server.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


async def test_file_that_is_no_socket_is_kept(server, tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(ListenError, match=r"notes\.txt"):
        bind(server, UnixAddress(path))
    assert path.read_text() == "mine"


async def test_missing_folder_is_named(server, tmp_path):
    with pytest.raises(ListenError, match=f"{tmp_path / 'missing'}"):
        bind(server, UnixAddress(tmp_path / "missing" / "e.sock"))


async def test_port_in_use_is_named(server):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}"):
            bind(server, TcpAddress("127.0.0.1", port))


async def test_port_zero_takes_a_free_one(server):
    host, port = bind(server, TcpAddress("127.0.0.1", 0)).split(":")
    assert host == "127.0.0.1"
    assert int(port) > 0
