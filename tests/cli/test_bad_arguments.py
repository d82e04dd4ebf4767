"""What no message can carry and no file should hold ends with one line and an exit code, never with a traceback."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gateway.cli.audit_file import AuditFileError, read_events
from gateway.cli.errors import UsageError
from gateway.cli.keys import parse_expiry
from gateway.cli.limits import parse_duration, parse_limit
from gateway.cli.policy_file import read_policy_file
from gateway.cli.quota import parse_until
from gateway.durations import MAX_DURATION
from tests.cli.command_line import CommandLine


@pytest.mark.parametrize("text", ["99999999999999d", "9" * 6000 + "ms", f"{MAX_DURATION.days + 1}d"])
def test_a_time_that_is_too_long_is_refused(text: str) -> None:
    for parse in (parse_duration, lambda text: parse_expiry(text, datetime.now(UTC)), parse_until):
        with pytest.raises(UsageError):
            parse(text)
    with pytest.raises(UsageError, match="too long"):
        parse_limit(f"requests=5/{text}")


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:59-12:00"])
def test_a_moment_outside_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="outside the years"):
        parse_until(text)


def test_a_length_of_time_at_the_end_of_the_range_can_be_sent() -> None:
    text = f"{MAX_DURATION.days}d"

    assert parse_duration(text) == MAX_DURATION
    assert parse_expiry(text, datetime.now(UTC)).seconds > 0
    assert parse_limit(f"requests=5/{text}").period.ToTimedelta() == MAX_DURATION


@pytest.mark.parametrize(
    "arguments",
    [
        ("classes", "create", "x", "--rank", "9" * 20),
        ("classes", "update", "x", "--rank", "-" + "9" * 20),
        ("classes", "list", "--filter", "\udcff\udcfe"),
        ("orgs", "create", "acme", "--display-name", "\udcff"),
        ("quota-policies", "update", "acme", "--limit", "\udcff"),
    ],
)
def test_an_argument_that_no_message_can_carry_is_wrong_usage(arguments: tuple[str, ...]) -> None:
    ran = CommandLine().run(*arguments, "--address", "127.0.0.1:1")

    assert ran.exit_code == 2
    assert any(words in ran.stderr for words in ("is no UTF-8 text", "Invalid value"))


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\n", b"[" * 100_000 + b"\n", b'{"id": NaN}\n', b'{"head": "\\ud800"}\n', b"{}\n"]
)
def test_a_file_that_is_no_audit_export_is_told_with_its_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)

    with pytest.raises(AuditFileError, match="f:1: is no line"):
        list(read_events(tmp_path / "f"))


def test_a_policy_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("organizations: " + "[" * 5000)

    with pytest.raises(UsageError, match="too deeply"):
        read_policy_file(tmp_path / "f")
