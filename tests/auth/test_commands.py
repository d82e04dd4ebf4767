"""Issuers and roles from the command line, against the real admin service."""

import pytest

from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine
from tests.cli.conftest import command_line, service

__all__ = ["command_line", "service"]
pytestmark = pytest.mark.usefixtures("service")


async def test_an_issuer_is_made_shown_changed_and_deleted(command_line: CommandLine) -> None:
    made = await command_line(
        *("issuers", "create", "login", "--issuer", "https://login.example.test/", "--audience", "evenflow"),
        *("--jwks-uri", "https://login.example.test/keys", "--claim", "team=team", "--claim", "roles=groups"),
    )
    changed = await command_line("issuers", "update", "login", "--algorithm", "EdDSA", "-o", "json")
    listed = await command_line("issuers", "list")
    wrong = await command_line("issuers", "update", "login", "--claim", "team")
    nothing = await command_line("issuers", "update", "login")
    deleted = await command_line("issuers", "delete", "login", "--yes")
    shown = await command_line("issuers", "show", "login")

    assert "roles=groups, team=team" in made.stdout
    assert changed.json()["algorithms"] == ["EdDSA"]
    assert "https://login.example.test/keys" in listed.stdout
    assert (wrong.exit_code, nothing.exit_code, deleted.exit_code) == (2, 2, 0)
    assert shown.exit_code == 1
    assert "RESOURCE_NOT_FOUND" in shown.stderr


async def test_a_role_is_given_listed_and_taken_away(command_line: CommandLine, service: AdminService) -> None:
    await service.create_org()
    await service.create_team()
    key = await service.create_key(scopes=["admin.read"])
    public_id = key.name.rpartition("/")[2]

    given = await command_line("roles", "grant", "team-admin", "--to", key.secret, "--at", "acme/search")
    twice = await command_line("roles", "grant", "team-admin", "--to", public_id, "--at", "acme/search")
    viewer = await command_line("roles", "grant", "platform-viewer", "--to", public_id)
    listed = (await command_line("roles", "list", "-o", "json")).json()
    of_team = (await command_line("roles", "list", "acme/search", "--of", public_id, "-o", "json")).json()
    taken = await command_line("roles", "revoke", "team-admin", "--to", public_id, "--at", "acme/search")
    again = await command_line("roles", "revoke", "team-admin", "--to", public_id, "--at", "acme/search")
    left = (await command_line("roles", "list", "-o", "json")).json()

    assert "acme/search" in given.stdout
    assert "ALREADY_EXISTS" in twice.stderr or "RESOURCE_EXISTS" in twice.stderr
    assert "(platform)" in viewer.stdout
    assert (len(listed), len(of_team), len(left)) == (2, 1, 1)
    assert (taken.exit_code, again.exit_code) == (0, 2)


async def test_the_subject_of_a_token_gets_a_role_by_issuer_and_name(
    command_line: CommandLine, service: AdminService
) -> None:
    await service.create_org()
    await command_line(
        *("issuers", "create", "login", "--issuer", "https://login.example.test/", "--audience", "evenflow"),
        *("--jwks-uri", "https://login.example.test/keys", "--org", "acme"),
    )

    given = await command_line("roles", "grant", "org-admin", "--to", "login/auth0|17", "--at", "acme", "-o", "json")
    unknown = await command_line("roles", "grant", "org-admin", "--to", "other/alice", "--at", "acme")
    platform = await command_line("roles", "grant", "platform-admin", "--to", "login/alice")

    assert given.json()["principal"] == "jwtIssuers/login/subjects/auth0|17"
    assert "there is no issuer" in unknown.stderr
    assert "speaks for another organization" in platform.stderr
