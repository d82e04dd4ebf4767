"""Organizations, teams, keys and policies from the command line, against the real admin service."""

import stat
from pathlib import Path

import pytest
import yaml

from gateway import api_key
from gateway.bootstrap import bootstrap
from gateway.status import PolicyChoice
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine

pytestmark = pytest.mark.usefixtures("service")


async def make_team(command_line: CommandLine) -> None:
    for arguments in (("orgs", "create", "acme"), ("teams", "create", "acme/search")):
        assert (await command_line(*arguments)).exit_code == 0


async def make_key(command_line: CommandLine, *options: str) -> dict:
    return (await command_line("keys", "create", "--team", "acme/search", "-o", "json", *options)).json()


async def test_organization_is_created_shown_listed_and_suspended(command_line: CommandLine):
    created = await command_line("orgs", "create", "acme", "--display-name", "Acme [Ltd]")
    shown = (await command_line("orgs", "show", "acme", "-o", "json")).json()
    await command_line("orgs", "update", "acme", "--state", "suspended")
    listed = await command_line("orgs", "list")

    assert "Acme [Ltd]" in created.stdout
    assert (shown["name"], shown["state"]) == ("organizations/acme", "STATE_ACTIVE")
    assert "suspended" in listed.stdout


async def test_team_is_created_and_listed_by_organization(command_line: CommandLine):
    await make_team(command_line)
    await command_line("orgs", "create", "beta")
    await command_line("teams", "create", "beta/ads", "--default-class", "batch", "--grant-class", "priority")

    of_beta = (await command_line("teams", "list", "beta", "-o", "json")).json()
    of_all = (await command_line("teams", "list", "-o", "json")).json()

    assert [team["default_priority_class"] for team in of_beta] == ["priorityClasses/batch"]
    assert len(of_all) == 2


async def test_administrators_say_which_teams_share_their_prefix_cache(command_line: CommandLine):
    await make_team(command_line)
    created = await command_line("teams", "create", "acme/ads", "--shares-prefix-cache", "-o", "json")
    teams = [created.json()]
    for arguments in (
        ["search", "--shares-prefix-cache"],
        ["ads", "--display-name", "Ads"],
        ["ads", "--no-shares-prefix-cache"],
    ):
        updated = await command_line("teams", "update", f"acme/{arguments[0]}", *arguments[1:], "-o", "json")
        teams.append(updated.json())

    assert [team["shares_prefix_cache"] for team in teams] == [True, True, True, False]


async def test_administrators_turn_drafts_off_for_a_team(command_line: CommandLine):
    await make_team(command_line)
    teams = [(await command_line("teams", "create", "acme/ads", "--no-speculation", "-o", "json")).json()]
    for arguments in (
        ["search", "--no-speculation"],
        ["search", "--display-name", "Search"],
        ["search", "--speculation"],
    ):
        updated = await command_line("teams", "update", f"acme/{arguments[0]}", *arguments[1:], "-o", "json")
        teams.append(updated.json())
    listed = await command_line("teams", "list", "acme")

    assert [team["speculation_disabled"] for team in teams] == [True, True, True, False]
    assert "SPECULATION" in listed.stdout


async def test_full_resource_names_are_taken_as_well(command_line: CommandLine):
    await make_team(command_line)

    shown = (await command_line("teams", "show", "organizations/acme/teams/search", "-o", "json")).json()

    assert shown["name"] == "organizations/acme/teams/search"


async def test_key_is_shown_once_with_how_to_use_it(command_line: CommandLine):
    await make_team(command_line)

    created = await command_line("keys", "create", "--team", "acme/search")

    (key,) = {word for word in created.stdout.split() if api_key.parse(word)}
    assert "only time" in created.stderr
    assert key in created.stderr
    assert key not in (await command_line("keys", "list")).stdout


async def test_saved_key_is_private_and_found_by_chat(command_line: CommandLine, tmp_path: Path):
    await make_team(command_line)

    key = await make_key(command_line, "--save")

    path = tmp_path / "data" / "api.key"
    assert path.read_text().strip() == key["secret"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_key_is_revoked_by_its_public_id_or_its_text(command_line: CommandLine, service: AdminService):
    await make_team(command_line)
    by_id, by_text = await make_key(command_line), await make_key(command_line)
    public_id = api_key.parse(by_id["secret"]).public_id

    first = (await command_line("keys", "revoke", public_id, "--yes", "--reason", "leaked", "-o", "json")).json()
    second = (await command_line("keys", "revoke", by_text["secret"], "--abort-inflight", "--yes", "-o", "json")).json()

    assert first["revoke_reason"] == "leaked"
    assert second["revoke_time"]
    assert [str(key_id) for key_id in service.aborted_keys] == [by_text["uid"]]
    assert (await command_line("keys", "list")).stdout.count("revoked") == 2


async def test_platform_key_is_listed_apart_and_revoked_by_its_public_id(
    command_line: CommandLine, service: AdminService, database_url: str
):
    await make_team(command_line)
    await make_key(command_line)
    own_id = api_key.parse(service.admin_key).public_id
    (service.data_dir / "admin.key").unlink()
    await bootstrap(service.data_dir, database_url)

    listed = (await command_line("keys", "list", "--platform", "-o", "json")).json()
    of_teams = (await command_line("keys", "list", "-o", "json")).json()
    table = await command_line("keys", "list", "--platform")
    revoked = (await command_line("keys", "revoke", own_id, "--yes", "--reason", "lost", "-o", "json")).json()
    last = await command_line("keys", "revoke", listed[1]["name"], "--yes")

    assert [key["name"] for key in listed] == [f"apiKeys/{own_id}", listed[1]["name"]]
    assert len(of_teams) == 1
    assert "(platform)" in table.stdout
    assert (revoked["name"], revoked["revoke_reason"]) == (f"apiKeys/{own_id}", "lost")
    assert last.exit_code != 0
    assert "last key of an administrator" in last.stderr
    assert "evenflow keys create --platform" in last.stderr


async def test_platform_keys_belong_to_no_team(command_line: CommandLine):
    ran = await command_line("keys", "list", "--platform", "--team", "acme/search")

    assert ran.exit_code == 2


async def test_key_that_never_expires_has_to_be_asked_for(command_line: CommandLine):
    await make_team(command_line)
    usual, for_ever = await make_key(command_line), await make_key(command_line, "--expires", "never")

    assert "expire_time" in usual
    assert "expire_time" not in for_ever
    updated = await command_line("keys", "update", usual["name"], "--expires", "never", "-o", "json")
    assert "expire_time" not in updated.json()


async def test_lists_of_a_key_are_replaced_by_update(command_line: CommandLine):
    await make_team(command_line)
    key = await make_key(command_line, "--cidr", "10.0.0.0/8", "--scope", "inference", "--model", "m")

    changed = ("--cidr", "127.0.0.0/8", "--cidr", "::1/128")
    updated = (await command_line("keys", "update", key["name"], *changed, "-o", "json")).json()

    assert (updated["ip_cidrs"], updated["model_grants"]) == (["127.0.0.0/8", "::1/128"], ["m"])


async def test_weight_and_limits_are_set_merged_and_cleared(command_line: CommandLine):
    await make_team(command_line)
    update = ("quota-policies", "update", "acme/search")

    await command_line(*update, "--weight", "2", "--limit", "requests=60/1m", "--limit", "concurrency=4")
    merged = await command_line(*update, "--limit", "requests=600/1h:burst=7", "--limit", "total_tokens=5000/30s")
    replaced = await command_line(*update, "--clear-limits", "--limit", "concurrency=2")
    cleared = await command_line(*update, "--clear-limits")

    for text in ("concurrency=4", "requests=600/1h:burst=7", "total_tokens=5000/30s:burst=833"):
        assert text in merged.stdout
    assert "concurrency=2" in replaced.stdout
    assert "requests" not in replaced.stdout
    assert "none" in cleared.stdout
    assert "2" in cleared.stdout


async def test_policies_of_every_depth_are_listed(command_line: CommandLine):
    await make_team(command_line)
    key = await make_key(command_line)
    public_id = api_key.parse(key["secret"]).public_id
    node = f"acme/search/{public_id}"
    await command_line("quota-policies", "create", node, "--limit", "concurrency=1")

    listed = (await command_line("quota-policies", "list", "-o", "json")).json()
    of_org = (await command_line("quota-policies", "list", "acme", "-o", "json")).json()
    shown = (await command_line("quota-policies", "show", node, "-o", "json")).json()

    assert len(listed) == 3
    assert of_org == listed  # the organization's own, and those of everything below
    assert shown == listed[-1]


async def test_system_is_shown_with_its_tenants(command_line: CommandLine):
    await make_team(command_line)

    table = await command_line("status")
    data = (await command_line("status", "-o", "json")).json()

    for text in ("fair (mode=strict)", "over_served", "acme/search", "NOT REACHABLE", "54 of 64 blocks"):
        assert text in table.stdout
    for text in ("12 of 32 on the host", "3 being copied", "swap 9.4 ms out and in, compute again 250.0 ms"):
        assert text in table.stdout
    for text in (
        "25.0%",
        "50.0%",
        "http://127.0.0.1:9100/metrics",
        "http://127.0.0.1:9101/metrics",
        "https://127.0.0.1:8000/v1, the base URL",
    ):
        assert text in table.stdout
    for text in ("5 events wait for the store, the oldest for 1.5 s", "LOST: 2 events, 99 bytes of the spool"):
        assert text in table.stdout
    assert "OUT OF MEMORY in 2 steps since its start, 5 requests were sent back" in table.stdout
    assert "USAGE LOST of 3 requests that no gateway has acknowledged, 6 are kept" in table.stdout
    for text in (
        "prefix cache: 60.0% of 1,500 prompt tokens found, 6 blocks kept and 2 on the host, 21 evicted",
        "speculation draft by small: 25.0% of 400 drafts right",
    ):
        assert text in table.stdout
    saved = table.stdout.partition("PROMPTS")[2]
    (row,) = [line.split() for line in saved.splitlines() if line.strip().startswith("acme/search")]
    assert row[1:] == ["400", "75.0%", "5", "40", "75.0%"]
    assert data["engines"][0]["tenants"][0]["running"] == 1


async def test_policy_is_set_on_every_engine_and_what_was_before_is_shown(
    command_line: CommandLine, service: AdminService
):
    arguments = ("--option", "mode=strict", "--preemption", "never", "--preemption-option", "x=1=2")
    switched = await command_line("engines", "set-policy", "fair", *arguments, "-o", "json")
    tried = await command_line("engines", "set-policy", "vtc", "--engine", "unix:/e.sock", "--validate-only")

    assert [switch["previous_scheduling_policy"] for switch in switched.json()] == ["fair", "fair"]
    assert (tried.exit_code, "unix:/gone.sock" in tried.stdout) == (0, False)
    assert "Nothing was changed: valid." in tried.stdout
    choice = PolicyChoice("fair", {"mode": "strict"}, "never", {"x": "1=2"})
    assert [told for told in service.engines[0].told if not told[1]] == [(choice, False)]


async def test_what_is_in_force_after_a_switch_is_shown(command_line: CommandLine, service: AdminService):
    switched = await command_line("engines", "set-policy", "fair", "--option", "mode=strict")

    for text in ("fair (mode=strict)", ", unchanged", "until the engine starts again"):
        assert text in switched.stdout


@pytest.mark.parametrize(
    "arguments", [(), ("fair", "--option", "strict"), ("fair", "--option", "a=1", "--option", "a=2")]
)
async def test_policy_that_is_not_said_clearly_is_wrong_usage(command_line: CommandLine, arguments: tuple[str, ...]):
    assert (await command_line("engines", "set-policy", *arguments)).exit_code == 2


async def test_engines_are_listed_with_their_policies(command_line: CommandLine):
    listed = await command_line("engines", "list")

    for text in ("unix:/e.sock", "fair (mode=strict)", "serving", "NOT REACHABLE"):
        assert text in listed.stdout


async def test_yaml_holds_the_same_as_json(command_line: CommandLine):
    await make_team(command_line)

    as_json = (await command_line("teams", "show", "acme/search", "-o", "json")).json()
    as_yaml = await command_line("teams", "show", "acme/search", "-o", "yaml")

    assert yaml.safe_load(as_yaml.stdout) == as_json


async def test_refusal_is_one_line_with_its_reason(command_line: CommandLine):
    refused = await command_line("orgs", "show", "ghost")

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert refused.stderr.strip() == "error: RESOURCE_NOT_FOUND: organizations/ghost was not found"


async def test_wrong_admin_key_is_refused(command_line: CommandLine, tmp_path: Path):
    generated = api_key.generate()
    (tmp_path / "data" / "admin.key").write_text(generated.text)

    refused = await command_line("orgs", "list")

    assert refused.exit_code == 1
    assert "CREDENTIAL_INVALID" in refused.stderr
