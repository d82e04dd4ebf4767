"""What the stack reads from its surroundings: addresses, ports, the engine's progress."""

import json
import os
import socket
from pathlib import Path

import pytest

from gateway.cli import up
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, UsageError
from gateway.cli.stack import Stack, StackSettings, engine_environment, listen_address, loading_percent
from gateway.cli.up import http_address
from gateway.cli.up_settings import GatewayOptions, check_engine
from gateway.errors import SettingsError
from tests.cli.command_line import CommandLine


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


def test_metrics_are_on_loopback_or_off():
    assert GatewayOptions(None).flags() == ()
    assert GatewayOptions("off").flags() == ("--metrics-listen", "off")
    assert GatewayOptions("[::1]:9464").flags() == ("--metrics-listen", "[::1]:9464")
    for text in ("0.0.0.0:9464", "9464", "on"):
        with pytest.raises(UsageError, match="--metrics-listen"):
            GatewayOptions(text).flags()


def test_tls_of_up_is_judged_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    certificate, key, authority = (tmp_path / name for name in ("tls.pem", "tls.key", "ca.pem"))
    both = GatewayOptions(tls_cert=certificate, tls_key=key)
    with pytest.raises(SettingsError, match="tls_cert: needs --tls-cert and --tls-key"):
        GatewayOptions(tls_cert=certificate).flags()
    with pytest.raises(UsageError, match=f"cannot read {certificate}"):
        both.flags()
    for path in (certificate, key, authority):
        path.touch()
    monkeypatch.delenv("EVENFLOW_CA_CERT", raising=False)
    with pytest.raises(UsageError, match="whom they trust"):
        both.flags()

    monkeypatch.setenv("EVENFLOW_CA_CERT", str(authority))

    assert both.flags() == ("--tls-cert", str(certificate), "--tls-key", str(key))
    with pytest.raises(UsageError, match="need a certificate, too"):
        GatewayOptions(tls_cert=certificate, tls_key=key, client_ca=authority).flags()


@pytest.mark.parametrize(
    ("arguments", "variables", "problem"),
    [
        (("--max-num-sqs", "4"), {}, "No such option: --max-num-sqs"),
        ((), {"EVENFLOW_ENGINE_MAX_NUM_SQS": "4"}, "EVENFLOW_ENGINE_MAX_NUM_SQS is no setting of the engine"),
        (("--scheduling-policy", "fiar"), {}, "scheduling_policy cannot be loaded"),
        (("--model", "/nope"), {}, "model is /nope, and there is no such file or folder"),
    ],
)
def test_up_refuses_what_the_engine_would_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, variables, problem: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    ran = CommandLine().run("up", "--data-dir", str(tmp_path / "data"), *arguments)

    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {problem}"), ran.stderr
    assert "Usage" not in ran.stderr
    assert not (tmp_path / "data").exists()


def test_settings_that_the_engine_takes_are_no_error():
    check_engine(("--max-num-seqs", "4", "--scheduling-policy", "fcfs"), {**os.environ})


def test_openais_clients_have_a_port_unless_it_is_off():
    assert http_address("off") == "off"
    assert settings("127.0.0.1:1").http_url is None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        text = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(CliError, match=text):
            http_address(text)
    assert http_address(text) == text


def test_a_common_port_that_somebody_has_keeps_nothing_from_starting(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(up, "DEFAULT_HTTP_LISTEN", f"127.0.0.1:{taken.getsockname()[1]}")

        host, _, port = http_address(None).rpartition(":")

    assert (host, int(port) > 0) == ("127.0.0.1", True)


@pytest.mark.parametrize("text", ["50051", ":50051", "host:", "host:http", "host:65536", ""])
def test_address_without_host_or_port_is_wrong_usage(text: str):
    with pytest.raises(UsageError, match="HOST:PORT"):
        listen_address(text)


def test_only_the_engines_progress_is_read_as_progress():
    assert loading_percent(json.dumps({"event": "loading model", "percent": 25})) == 25
    for line in ("", "loading model", '"loading model"', '{"event": "loading model"', '{"percent": 3}'):
        assert loading_percent(line) is None


def test_engine_sees_its_own_settings_and_no_secret_of_the_others():
    kept = {"PATH": "/bin", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "EVENFLOW_ENGINE_MODEL": "/model"}
    secrets = {
        "EVENFLOW_PEPPER": "p",
        "EVENFLOW_DATABASE_URL": "postgresql://u:p@h/d",
        "EVENFLOW_ADMIN_KEY": "k",
        "EVENFLOW_API_KEY": "k",
        "EVENFLOW_GATEWAY_LISTEN": "h:1",
        "EVENFLOW_MODEL": "smollm2",
        "PGPASSWORD": "p",
    }

    assert engine_environment({**kept, **secrets}) == kept


async def test_engine_is_started_with_that_environment_and_ends_with_its_supervisor(tmp_path: Path):
    class Recorder:
        """Notes the parts, and fails the first wait."""

        def __init__(self) -> None:
            self.parts = {}

        def keep(self, part):
            self.parts[part.name] = part
            return part

        async def until_ready(self, *parts) -> None:
            raise InterruptedError

    supervisor = Recorder()
    stack = Stack(
        StackSettings(
            data_dir=DataDir(tmp_path),
            sockets=tmp_path,
            listen="127.0.0.1:7",
            environment={"PATH": "/bin", "EVENFLOW_PEPPER": "0123456789abcdef"},
        ),
        supervisor,
        lambda part, detail: None,
    )

    with pytest.raises(InterruptedError):
        await stack.bring_up()

    engine = supervisor.parts["engine"]
    assert engine.env == {"PATH": "/bin"}
    assert engine.argv[-2:] == ("--parent-pid", str(os.getpid()))


async def test_pepper_that_is_too_short_starts_nothing(tmp_path: Path):
    settings = StackSettings(
        data_dir=DataDir(tmp_path), sockets=tmp_path, listen="127.0.0.1:7", environment={"EVENFLOW_PEPPER": "short"}
    )

    with pytest.raises(SettingsError, match="EVENFLOW_PEPPER"):
        await Stack(settings, supervisor=None, on_detail=None).bring_up()
