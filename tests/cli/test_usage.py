"""What is wrong on the command line is said before any server is asked."""

from datetime import UTC, datetime

import pytest

from gateway.api_key import NEVER_EXPIRES
from gateway.cli.errors import UsageError
from gateway.cli.keys import parse_expiry
from tests.cli.command_line import CommandLine


@pytest.mark.parametrize(
    "arguments",
    [
        ("orgs", "update", "acme"),
        ("orgs", "show", "Not A Name"),
        ("teams", "show", "acme"),
        ("teams", "update", "acme/search"),
        ("keys", "show", "acme"),
        ("keys", "create"),
        ("keys", "create", "--team", "acme/search", "--expires", "soon"),
        ("quota-policies", "update", "acme"),
        ("quota-policies", "update", "acme", "--limit", "requests"),
        ("quota-policies", "update", "acme", "--limit", "apples=5"),
        ("quota-policies", "update", "acme", "--limit", "requests=5/1fortnight"),
        ("quota-policies", "update", "acme", "--limit", "requests=5:color=red"),
        ("orgs", "list", "-o", "xml"),
        ("bootstrap", "--database-url", "postgresql://u@h/d", "--pepper", "0123456789abcdef"),
    ],
)
def test_wrong_usage_ends_with_two(
    command_line: CommandLine, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", "ef_live_x")
    monkeypatch.setenv("EVENFLOW_ADDRESS", "127.0.0.1:1")

    ran = command_line.run(*arguments)

    assert ran.exit_code == 2
    assert ran.stderr


def test_expiry_is_a_length_a_day_or_never():
    now = datetime(2026, 1, 1, 12, tzinfo=UTC)

    assert parse_expiry("90d", now).ToDatetime(tzinfo=UTC) == datetime(2026, 4, 1, 12, tzinfo=UTC)
    assert parse_expiry("2027-01-31", now).ToDatetime(tzinfo=UTC) == datetime(2027, 1, 31, tzinfo=UTC)
    assert parse_expiry("never", now).ToDatetime(tzinfo=UTC) == NEVER_EXPIRES
    with pytest.raises(UsageError):
        parse_expiry("2027-02-31", now)
