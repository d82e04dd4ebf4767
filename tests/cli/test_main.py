"""The root command: plug-ins, version, help."""

from importlib.metadata import EntryPoint, version

import typer

from gateway.cli.main import COMMAND_GROUP
from tests.cli.command_line import CommandLine

plugin = typer.Typer()


@plugin.callback(invoke_without_command=True)
def greet(name: str = "world") -> None:
    """Say hello."""
    typer.echo(f"hello {name}")


def count() -> None:
    """Count to three."""
    typer.echo("1 2 3")


def entry_point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, COMMAND_GROUP)


def test_plugin_is_a_typer_or_a_function():
    found = [entry_point("greet", "tests.cli.test_main:plugin"), entry_point("count", "tests.cli.test_main:count")]
    command_line = CommandLine(found)

    assert command_line.run("greet", "--name", "you").stdout == "hello you\n"
    assert command_line.run("count").stdout == "1 2 3\n"


def test_broken_plugin_says_what_is_wrong_and_breaks_nothing_else():
    found = [entry_point("sick", "no_such_module:app"), entry_point("count", "tests.cli.test_main:count")]
    command_line = CommandLine(found)

    sick = command_line.run("sick", "--any", "option")

    assert sick.exit_code == 1
    assert "no_such_module" in sick.stderr
    assert command_line.run("count").exit_code == 0
    assert "sick" in command_line.run("--help").stdout


def test_own_commands_cannot_be_replaced():
    command_line = CommandLine([entry_point("status", "tests.cli.test_main:count")])

    assert "1 2 3" not in command_line.run("status", "--help").stdout
    assert "tenants at work" in command_line.run("status", "--help").stdout


def test_version_is_the_distributions():
    assert CommandLine().run("--version").stdout == f"evenflow {version('evenflow')}\n"


def test_unknown_command_ends_with_two():
    assert CommandLine().run("nonsense").exit_code == 2
