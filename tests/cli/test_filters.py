"""What the help of `--filter` shows is understood by the server."""

import re

import pytest

from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine

EXAMPLE = re.compile(r"Such as '(.*?)'\.")
WITH_FILTER = ("orgs", "teams", "keys", "classes", "quota-policies", "audit")


@pytest.mark.parametrize("group", WITH_FILTER)
async def test_example_of_the_help_is_a_filter(
    command_line: CommandLine, service: AdminService, monkeypatch: pytest.MonkeyPatch, group: str
):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERMINAL_WIDTH", "300")
    helped = await command_line(group, "list", "--help")
    (example,) = [text for text in EXAMPLE.findall(helped.stdout) if "desc" not in text]

    ran = await command_line(group, "list", "--filter", example)

    assert ran.exit_code == 0, ran.stderr
