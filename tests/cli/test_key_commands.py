"""API keys and roles from the command line: what is printed, what is kept where, and what a person is told to do."""

import pytest

from gateway import api_key
from tests.admin.service import AdminService
from tests.admin.test_rotation import end_grace
from tests.cli.command_line import CommandLine


@pytest.fixture(autouse=True)
async def team(service: AdminService) -> str:
    """acme/search, which exists."""
    await service.create_org()
    await service.create_team()
    return "acme/search"


async def make_key(command_line: CommandLine, *options: str) -> dict:
    arguments = options if "--platform" in options else ("--team", "acme/search", *options)
    return (await command_line("keys", "create", *arguments, "-o", "json")).json()


def public_id(key: dict) -> str:
    return key["name"].rpartition("/")[2]


def kept(service: AdminService, name: str) -> str:
    return (service.data_dir / name).read_text().strip()


async def test_rotating_the_administrators_own_key_keeps_the_command_line_working(
    command_line: CommandLine, service: AdminService
):
    own = api_key.parse(service.admin_key).public_id

    ran = await command_line("keys", "rotate", own, "--grace", "0s", "--yes")

    assert ran.exit_code == 0
    assert f"{service.data_dir / 'admin.key'} has the new secret" in ran.stderr
    assert "chat" not in ran.stderr
    assert kept(service, "admin.key") in ran.stdout.split()
    assert (service.data_dir / "admin.key").stat().st_mode & 0o777 == 0o600
    assert (await command_line("orgs", "list")).exit_code == 0


async def test_rotating_the_key_that_chat_uses_keeps_its_new_secret(command_line: CommandLine, service: AdminService):
    key = await make_key(command_line, "--save")

    rotated = (await command_line("keys", "rotate", public_id(key), "-o", "json")).json()

    assert kept(service, "api.key") == rotated["secret"] != key["secret"]
    assert kept(service, "admin.key") == service.admin_key


async def test_rotating_any_other_key_leaves_the_kept_ones_alone(command_line: CommandLine, service: AdminService):
    saved, other = await make_key(command_line, "--save"), await make_key(command_line)

    ran = await command_line("keys", "rotate", public_id(other))

    assert (kept(service, "api.key"), kept(service, "admin.key")) == (saved["secret"], service.admin_key)
    assert "old secret" not in ran.stderr


@pytest.mark.parametrize("source", ["variable", "file"])
async def test_where_the_old_secret_is_still_kept_is_told(
    command_line: CommandLine, service: AdminService, monkeypatch: pytest.MonkeyPatch, tmp_path, source: str
):
    (service.data_dir / "admin.key").unlink()
    options: tuple[str, ...] = ()
    if source == "variable":
        monkeypatch.setenv("EVENFLOW_ADMIN_KEY", service.admin_key)
    else:
        (tmp_path / "mine").write_text(service.admin_key)
        options = ("--admin-key-file", str(tmp_path / "mine"))

    ran = await command_line("keys", "rotate", api_key.parse(service.admin_key).public_id, *options)

    place = {"variable": "the variable EVENFLOW_ADMIN_KEY", "file": str(tmp_path / "mine")}[source]
    assert f"{place} holds the old secret, which works until" in ran.stderr


async def test_old_secret_is_called_so_and_its_source_is_named(command_line: CommandLine, service: AdminService):
    await command_line("keys", "rotate", api_key.parse(service.admin_key).public_id, "--grace", "1h")
    await end_grace(service)
    (service.data_dir / "admin.key").write_text(service.admin_key)

    ran = await command_line("orgs", "list")

    assert ran.exit_code == 1
    assert "KEY_EXPIRED: this is an old secret of the API key" in ran.stderr
    assert str(service.data_dir / "admin.key") in ran.stderr


async def test_administrator_makes_another_ones_key_and_ends_their_own(
    command_line: CommandLine, service: AdminService, monkeypatch: pytest.MonkeyPatch
):
    own = api_key.parse(service.admin_key).public_id
    refused = await command_line("keys", "revoke", own, "--yes")
    made = await command_line("keys", "create", "--platform", "--display-name", "ops", "--expires", "never")
    (secret,) = {word for word in made.stdout.split() if api_key.parse(word)}

    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", secret)
    revoked = await command_line("keys", "revoke", own, "--reason", "leaked", "--yes")

    assert refused.exit_code == 1
    assert "evenflow keys create --platform" in refused.stderr
    assert "(platform)" in made.stdout
    assert f"EVENFLOW_ADMIN_KEY={secret}" in made.stderr
    assert "--admin-key-file" in made.stderr
    assert "chat" not in made.stderr
    assert revoked.exit_code == 0


async def test_key_is_told_to_be_used_for_what_it_can_do(command_line: CommandLine):
    chats = await command_line("keys", "create", "--team", "acme/search")
    reads = await command_line("keys", "create", "--team", "acme/search", "--scope", "admin.read")

    assert "evenflow chat" in chats.stderr
    assert "EVENFLOW_ADMIN_KEY" not in chats.stderr
    assert "evenflow chat" not in reads.stderr
    assert "EVENFLOW_ADMIN_KEY=ef_live_" in reads.stderr
    assert "evenflow roles grant team-admin --to" in reads.stderr


@pytest.mark.parametrize(
    "options", [(), ("--platform", "--team", "acme/search"), ("--platform", "--save")], ids=lambda options: str(options)
)
async def test_whose_key_it_is_must_be_said(command_line: CommandLine, options: tuple[str, ...]):
    assert (await command_line("keys", "create", *options)).exit_code == 2


async def test_second_rotation_names_the_option_that_mends_a_lost_answer(command_line: CommandLine):
    key = await make_key(command_line)
    await command_line("keys", "rotate", public_id(key), "--grace", "2h")

    again = await command_line("keys", "rotate", public_id(key))
    until = (await command_line("keys", "show", public_id(key))).stdout.partition("old secret until ")[2][:20]

    assert again.exit_code == 1
    assert f"evenflow keys rotate {public_id(key)} --discard-newest" in again.stderr
    assert until.endswith("Z")
    assert until in again.stderr


async def test_revoked_key_shows_when_and_why_and_that_it_was_so_before(command_line: CommandLine):
    key = public_id(await make_key(command_line))

    first = await command_line("keys", "revoke", key, "--reason", "leaked in a log", "--yes")
    second = await command_line("keys", "revoke", key, "--reason", "another", "--yes")
    shown = await command_line("keys", "show", key)

    assert "revoked before" not in first.stderr
    assert "had been revoked before, at 20" in second.stderr
    assert "its reason stays 'leaked in a log'" in second.stderr
    for ran in (first, second, shown):
        lines = dict(line.split(maxsplit=1) for line in ran.stdout.splitlines() if line)
        assert lines["reason"] == "leaked in a log"
        assert lines["revoked"].endswith("Z")


async def test_key_shows_what_it_is_restricted_to_and_when_it_is_gone(command_line: CommandLine):
    key = public_id(await make_key(command_line, "--cidr", "10.0.0.0/8", "--model", "small"))
    plain = await command_line("keys", "show", public_id(await make_key(command_line)))

    await command_line("keys", "delete", key, "--yes")
    shown = await command_line("keys", "show", key)

    words = " ".join(shown.stdout.split())
    for line in ("networks 10.0.0.0/8", "models small", "deleted 20", "gone from 20"):
        assert line in words
        assert line.split()[0] not in plain.stdout


async def test_what_is_not_deleted_is_not_said_to_exist_already(command_line: CommandLine):
    key = public_id(await make_key(command_line))
    living = [await command_line(noun, "undelete", name) for noun, name in (("keys", key), ("teams", "acme/search"))]
    living.append(await command_line("orgs", "undelete", "acme"))
    await command_line("keys", "revoke", key, "--yes")
    revoked = await command_line("keys", "undelete", key)

    for ran in living:
        assert ran.exit_code == 1
        assert "is not deleted" in ran.stderr
    assert revoked.exit_code == 1
    assert "is revoked, not deleted, and that cannot be taken back" in revoked.stderr
    assert not any("exists already" in ran.stderr for ran in (*living, revoked))


async def test_role_of_the_platform_for_a_teams_key_is_warned_of(command_line: CommandLine):
    powerless = public_id(await make_key(command_line))
    reader = public_id(await make_key(command_line, "--scope", "admin.read"))

    platform = await command_line("roles", "grant", "platform-viewer", "--to", reader)
    unusable = await command_line("roles", "grant", "team-admin", "--to", powerless, "--at", "acme/search")
    usual = await command_line("roles", "grant", "team-admin", "--to", reader, "--at", "acme/search")

    assert f"{reader} is a key of acme/search: whoever has it may now read what is everybody's" in platform.stderr
    assert f"evenflow keys update {powerless} --scope inference --scope quota.read" in unusable.stderr
    assert (platform.exit_code, unusable.exit_code, usual.exit_code) == (0, 0, 0)
    assert usual.stderr == ""


async def test_empty_list_of_roles_says_what_keys_may_do_without_one(command_line: CommandLine):
    empty = await command_line("roles", "list")
    data = await command_line("roles", "list", "-o", "json")
    await command_line(
        "roles", "grant", "member", "--to", public_id(await make_key(command_line)), "--at", "acme/search"
    )

    assert "a platform key is `platform-admin`" in empty.stderr
    assert (data.json(), data.stderr) == ([], "")
    assert (await command_line("roles", "list")).stderr == ""


async def test_who_may_not_see_everybodys_usage_is_told_whose_they_may(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
):
    key = await make_key(command_line, "--scope", "admin.read")
    await command_line("roles", "grant", "team-admin", "--to", public_id(key), "--at", "acme/search")
    monkeypatch.setenv("EVENFLOW_ADMIN_KEY", key["secret"])

    everybody = await command_line("usage", "report")
    audit = await command_line("audit", "list")
    own = await command_line("usage", "report", "acme/search")

    assert (everybody.exit_code, audit.exit_code, own.exit_code) == (1, 1, 0)
    for ran in (everybody, audit):
        assert "yours allow it at organizations/acme/teams/search" in ran.stderr
    assert "evenflow usage report ORG/TEAM" in everybody.stderr
