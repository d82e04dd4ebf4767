"""The parts of `evenflow up` on their own: preparing a database, refusing to start a gateway."""

from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine


async def test_empty_database_is_prepared_once(command_line: CommandLine, empty_database_url: str, tmp_path: Path):
    first = await command_line("bootstrap", "--database-url", empty_database_url)
    second = await command_line("bootstrap", "--database-url", empty_database_url)

    key_file = tmp_path / "data" / "admin.key"
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert f"key made in {key_file}" in first.stderr
    assert f"key found in {key_file}" in second.stderr


async def test_database_that_is_away_is_one_line(command_line: CommandLine):
    ran = await command_line("bootstrap", "--database-url", "postgresql://nobody@127.0.0.1:1/none")

    assert ran.exit_code == 1
    assert ran.stderr.startswith("error: the database")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("variables", "arguments", "named"),
    [
        ({"EVENFLOW_TYPO": "1"}, (), "EVENFLOW_TYPO"),
        ({}, ("--database-url", "postgresql://x/y"), "--engine"),
        ({}, ("--engine", "unix:/e.sock"), "--database-url"),
        ({}, ("--engine", "unix:/e.sock", "--database-url", "x", "--drain-grace-s", "soon"), "--drain-grace-s"),
        ({"EVENFLOW_GATEWAY_LISTEN": "here"}, ("--engine", "unix:/e.sock", "--database-url", "x"), "_LISTEN"),
    ],
)
def test_setting_that_stops_a_gateway_is_named(
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    arguments: tuple[str, ...],
    named: str,
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    ran = command_line.run("gateway", *arguments)

    assert ran.exit_code == 2
    assert named in ran.stderr
