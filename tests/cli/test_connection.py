"""Where commands find the server and the key, and what they say when they do not."""

from pathlib import Path

import pytest

from gateway.cli.connection import Target, find_address, find_admin_key, find_api_key
from gateway.cli.data_dir import DataDir
from gateway.cli.errors import CliError, ExitCode, UsageError
from gateway.settings import DEFAULT_LISTEN
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataDir:
    for name in ("EVENFLOW_API_KEY", "EVENFLOW_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
    return DataDir(tmp_path)


def test_flag_wins_over_the_endpoint_file_and_that_over_the_default(data_dir: DataDir):
    assert find_address(Target(None, data_dir, None)) == DEFAULT_LISTEN
    with data_dir.lock():
        data_dir.endpoint.write_text("127.0.0.1:7\n")
        assert find_address(Target(None, data_dir, None)) == "127.0.0.1:7"
        assert find_address(Target("host:8", data_dir, None)) == "host:8"


def test_keys_of_a_directory_are_not_sent_to_whoever_listens_while_nothing_runs_there(data_dir: DataDir):
    data_dir.admin_key.write_text("key\n")
    with data_dir.lock(), pytest.raises(CliError, match="no gateway serves in"):
        find_address(Target(None, data_dir, None))  # it has only begun to start
    data_dir.endpoint.write_text("127.0.0.1:7\n")  # left by one that was killed

    with pytest.raises(CliError, match="no gateway serves in") as refused:
        find_address(Target(None, data_dir, None))

    assert refused.value.exit_code is ExitCode.UNREACHABLE
    assert find_address(Target("host:8", data_dir, None)) == "host:8"


def test_named_file_wins_over_the_environment_and_that_over_the_usual_file(
    data_dir: DataDir, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    data_dir.admin_key.write_text("usual\n")
    assert find_admin_key(Target(None, data_dir, None)).text == "usual"
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", "variable")
    assert find_admin_key(Target(None, data_dir, None)).text == "variable"
    named = tmp_path / "named"
    named.write_text("named\n")
    assert find_admin_key(Target(None, data_dir, named)).text == "named"


def test_missing_keys_say_how_to_get_one(data_dir: DataDir):
    with pytest.raises(UsageError) as admin:
        find_admin_key(Target(None, data_dir, None))
    with pytest.raises(UsageError) as tenant:
        find_api_key(Target(None, data_dir, None))

    assert "evenflow up" in admin.value.hint
    assert "keys create --team acme/search --save" in tenant.value.hint


def test_empty_key_file_is_refused_by_its_name(data_dir: DataDir, tmp_path: Path):
    empty = tmp_path / "empty"
    empty.touch()

    with pytest.raises(UsageError, match="empty holds no key"):
        find_api_key(Target(None, data_dir, empty))


def test_server_that_is_not_there_ends_with_three(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", "ef_live_x")

    ran = command_line.run("status", "--address", "127.0.0.1:1")

    assert ran.exit_code == 3
    assert "cannot reach the gateway at 127.0.0.1:1" in ran.stderr
    assert "evenflow up" in ran.stderr


def test_no_key_ends_with_two(command_line: CommandLine):
    assert command_line.run("status").exit_code == 2
    assert command_line.run("chat", "hello").exit_code == 2


@pytest.mark.parametrize("address", ["localhost", "localhost:", ":50051", "host:http", "host:0", "host:65536", "::1:5"])
@pytest.mark.parametrize("arguments", [("orgs", "list"), ("chat", "Hi"), ("status",)])
def test_address_without_a_port_is_wrong_usage(command_line: CommandLine, monkeypatch, address: str, arguments):
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", "ef_live_x")
    monkeypatch.setenv("EVENFLOW_API_KEY", "ef_live_x")

    ran = command_line.run(*arguments, "--address", address)

    assert ran.exit_code == 2
    assert f"--address: {address!r} is not HOST:PORT" in ran.stderr


@pytest.mark.parametrize(
    "address", ["localhost:1", "[::1]:50051", "10.0.0.1:443", "unix:/run/gateway.sock", "dns:///gateway:50051"]
)
def test_addresses_that_the_transport_knows_pass(data_dir: DataDir, address: str):
    assert find_address(Target(address, data_dir, None)) == address


async def test_refused_key_is_told_with_where_it_is_from(
    command_line: CommandLine, service: AdminService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    wrong = "ef_live_" + "A" * 12 + "_" + "b" * 43
    (tmp_path / "wrong.key").write_text(wrong)
    by_file = await command_line("orgs", "list", "--admin-key-file", str(tmp_path / "wrong.key"))
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", wrong)
    by_variable = await command_line("orgs", "list")
    monkeypatch.delenv("EVENFLOW_ADMIN_KEY")
    (tmp_path / "data" / "admin.key").write_text(wrong)
    by_default = await command_line("orgs", "list")

    assert f"the key is from {tmp_path}/wrong.key; another one: --admin-key-file" in by_file.stderr
    assert "the key is from the variable EVENFLOW_ADMIN_KEY" in by_variable.stderr
    assert f"the key is from {tmp_path}/data/admin.key" in by_default.stderr


@pytest.mark.parametrize(
    ("command", "variable"), [(("chat",), "EVENFLOW_API_KEY"), (("orgs", "list"), "EVENFLOW_ADMIN_KEY")]
)
def test_help_names_the_variable_of_the_key(command_line: CommandLine, monkeypatch, command, variable: str):
    monkeypatch.setenv("COLUMNS", "300")

    assert variable in command_line.run(*command, "--help").stdout
