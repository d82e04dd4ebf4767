"""What ends things from the command line, asked first; classes; and the two names of one switch."""

import pytest

from gateway import api_key
from gateway.status import PolicyChoice
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.usefixtures("service")


async def make_key(command_line: CommandLine) -> dict:
    for arguments in (("orgs", "create", "acme"), ("teams", "create", "acme/search")):
        assert (await command_line(*arguments)).exit_code == 0
    return (await command_line("keys", "create", "--team", "acme/search", "-o", "json")).json()


async def test_destructive_commands_ask_and_do_nothing_without_consent(command_line: CommandLine):
    key = await make_key(command_line)
    await command_line("quota-policies", "create", key["name"], "--limit", "requests=1")
    await command_line("classes", "create", "urgent", "--rank", "5")
    commands = (
        ("orgs", "delete", "acme"),
        ("teams", "delete", "acme/search"),
        ("keys", "delete", key["name"]),
        ("keys", "revoke", key["name"]),
        ("keys", "rotate", key["name"], "--grace", "0s"),
        ("classes", "delete", "urgent"),
        ("quota-policies", "delete", key["name"]),
    )
    before = (await command_line("audit", "export")).stdout
    for arguments in commands:
        for stdin in ("", "n\n"):
            ran = await command_line(*arguments, stdin=stdin)
            assert ran.exit_code == 1, arguments
            assert "nothing was changed" in ran.stderr
            assert "--yes" in ran.stderr
    assert (await command_line("audit", "export")).stdout == before

    assert (await command_line("classes", "delete", "urgent", stdin="y\n")).exit_code == 0
    assert (await command_line("quota-policies", "delete", key["name"], "-y")).exit_code == 0


async def test_key_is_rotated_with_grace_and_its_list_says_so(command_line: CommandLine):
    key = await make_key(command_line)

    rotated = (await command_line("keys", "rotate", key["secret"], "--grace", "2h", "-o", "json")).json()
    table = await command_line("keys", "list")
    again = await command_line("keys", "rotate", key["name"])
    mended = await command_line("keys", "rotate", key["name"], "--discard-newest", "--yes")

    assert rotated["name"] == key["name"]
    assert api_key.parse(rotated["secret"]) != api_key.parse(key["secret"])
    assert "active, old secret until" in table.stdout
    assert again.exit_code == 1
    assert "discard the newest" in again.stderr
    (secret,) = {word for word in mended.stdout.split() if api_key.parse(word)}
    assert "only time" in mended.stderr
    assert secret in mended.stderr


async def test_deleted_things_are_listed_on_request_and_come_back(command_line: CommandLine):
    key = await make_key(command_line)
    for arguments in (
        ("keys", "delete", key["name"], "-y"),
        ("teams", "delete", "acme/search", "-y"),
        ("orgs", "delete", "acme", "-y"),
    ):
        assert (await command_line(*arguments)).exit_code == 0

    for noun in ("orgs", "teams", "keys"):
        assert (await command_line(noun, "list", "-o", "json")).json() == []
        assert "deleted" in (await command_line(noun, "list", "--deleted")).stdout
    for arguments in (("orgs", "undelete", "acme"), ("teams", "undelete", "acme/search")):
        assert (await command_line(*arguments)).exit_code == 0
    undeleted = await command_line("keys", "undelete", key["name"], "-o", "yaml")

    assert undeleted.exit_code == 0
    assert "delete_time" not in undeleted.stdout


async def test_class_is_created_changed_listed_and_deleted(command_line: CommandLine):
    made = (
        await command_line(
            "classes", "create", "urgent", "--rank", "5", "--min-share", "0.2", "--max-queue-wait", "90s", "-o", "json"
        )
    ).json()
    updated = await command_line("classes", "update", "urgent", "--not-preemptible", "--max-queue-wait", "none")
    shown = (await command_line("classes", "show", "urgent", "-o", "json")).json()
    listed = await command_line("classes", "list", "--filter", "rank < 50")

    assert (made["rank"], made["min_share"], made["preemptible"], made["max_queue_wait"]) == (5, 0.2, True, "90s")
    assert updated.exit_code == 0
    assert (shown["rank"], shown["min_share"], shown["preemptible"]) == (5, 0.2, False)
    assert "max_queue_wait" not in shown
    assert [word in listed.stdout for word in ("priority", "urgent", "batch")] == [True, True, False]
    assert (await command_line("classes", "update", "urgent")).exit_code == 2
    assert (await command_line("classes", "delete", "urgent", "-y")).exit_code == 0
    assert (await command_line("classes", "show", "urgent")).exit_code == 1


async def test_lists_are_filtered_and_sorted(command_line: CommandLine):
    for name in ("b", "a", "c"):
        await command_line("orgs", "create", name)
    await command_line("orgs", "update", "b", "--state", "suspended")

    filtered = (await command_line("orgs", "list", "--filter", "state = SUSPENDED", "-o", "json")).json()
    ordered = (await command_line("orgs", "list", "--order-by", "name desc", "-o", "json")).json()
    bad = await command_line("orgs", "list", "--filter", "colour = red")

    assert [org["name"] for org in filtered] == ["organizations/b"]
    assert [org["name"] for org in ordered] == ["organizations/c", "organizations/b", "organizations/a"]
    assert bad.exit_code == 1
    assert "there is no 'colour'" in bad.stderr


async def test_scheduling_policies_are_switched_by_either_name(command_line: CommandLine, service: AdminService):
    first = await command_line("scheduling-policies", "set", "vtc", "--option", "a=1")
    second = await command_line("engines", "set-policy", "vtc", "--option", "a=1")

    assert first.stdout == second.stdout
    assert [told for told, is_check in service.engines[0].told if not is_check] == 2 * [PolicyChoice("vtc", {"a": "1"})]
    assert (await command_line("scheduling-policies", "list")).stdout == (await command_line("engines", "list")).stdout


async def test_policy_has_everything_that_its_options_say(command_line: CommandLine):
    key = await make_key(command_line)
    options = (
        *("--mode", "borrow", "--strict", "--budget", "month=1000", "--budget", "day=50:model=m"),
        *("--reservation", "expected", "--time-zone", "Europe/Berlin", "--max-overdraft", "7"),
    )
    made = (await command_line("quota-policies", "create", key["name"], *options, "-o", "json")).json()
    updated = (await command_line("quota-policies", "update", "acme", *options, "-o", "json")).json()
    changed = ("--budget", "week=9", "--not-strict")
    again = (await command_line("quota-policies", "update", "acme", *changed, "-o", "json")).json()
    table = await command_line("quota-policies", "show", key["name"])

    for policy in (made, updated):
        assert (policy["mode"], policy["strict"], policy["reservation"]) == (
            "QUOTA_MODE_BORROW",
            True,
            "RESERVATION_MODE_EXPECTED",
        )
        assert (policy["time_zone"], policy["max_overdraft"]) == ("Europe/Berlin", "7")
        assert {(budget["limit"], budget["model"]) for budget in policy["budgets"]} == {("1000", ""), ("50", "m")}
    assert (again["strict"], [budget["limit"] for budget in again["budgets"]]) == (False, ["9"])
    assert again["mode"] == "QUOTA_MODE_BORROW"
    for word in ("borrow", "month=1000", "day=50:model=m", "strict"):
        assert word in table.stdout
    assert (await command_line("quota-policies", "update", "acme", "--budget", "x")).exit_code == 2
