"""What the stack reads from its surroundings: addresses, ports, the engine's progress."""

import json
import socket
from pathlib import Path

import pytest

from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, UsageError
from gateway.cli.stack import StackSettings, listen_address, loading_percent


def settings(listen: str) -> StackSettings:
    return StackSettings(data_dir=DataDir(Path("/data")), sockets=Path("/run"), listen=listen, environment={})


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:50051", "127.0.0.1:50051"),
        ("0.0.0.0:7", "127.0.0.1:7"),
        ("[::]:7", "[::1]:7"),
        ("example.org:7", "example.org:7"),
    ],
)
def test_clients_here_reach_what_listens_everywhere(listen: str, address: str):
    assert settings(listen).address == address


def test_port_zero_becomes_a_free_one():
    host, _, port = listen_address("127.0.0.1:0").rpartition(":")

    assert host == "127.0.0.1"
    assert int(port) > 0


def test_taken_port_is_refused_by_its_address():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(CliError, match=text):
            listen_address(text)


@pytest.mark.parametrize("text", ["50051", ":50051", "host:", "host:http", "host:65536", ""])
def test_address_without_host_or_port_is_wrong_usage(text: str):
    with pytest.raises(UsageError, match="HOST:PORT"):
        listen_address(text)


def test_only_the_engines_progress_is_read_as_progress():
    assert loading_percent(json.dumps({"event": "loading model", "percent": 25})) == 25
    for line in ("", "loading model", '"loading model"', '{"event": "loading model"', '{"percent": 3}'):
        assert loading_percent(line) is None
