"""Policies from a file: shown, applied, applied again; what is wrong is named with file, line and path."""

from pathlib import Path

import pytest
import yaml

from gateway.cli.errors import UsageError
from gateway.cli.policy_fields import CLASS_FIELDS, ORGANIZATION_FIELDS, QUOTA_FIELDS, TEAM_FIELDS
from gateway.cli.policy_file import read_policy_file
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine

POLICIES = """
priority_classes:
  nightly: {rank: 300, min_share: 0.05, max_queue_wait: 10m}
organizations:
  acme:
    display_name: Acme
    quota:
      weight: 2
      limits: [total_tokens=100000/1m]
    teams:
      search:
        default_class: default
        classes: [nightly]
        quota:
          limits:
            - requests=60/1m
            - concurrency=4
      ads:
        quota: {weight: 0.5, mode: shadow, limits: ["requests=10/1m:burst=10"]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policies.yaml"
    path.write_text(POLICIES)
    return path


EVERYTHING = """
organizations:
  acme:
    teams:
      search:
        display_name: Search
        state: suspended
        default_class: batch
        classes: [nightly]
        durable_usage: true
        shares_prefix_cache: true
        speculation_disabled: true
        quota:
          weight: 2.5
          mode: borrow
          limits: ["concurrency=4", "requests=60/1m:burst=9", "total_tokens=500/1h:burst=50:model=small"]
          budgets: ["day=500:model=small", month=5000]
          cost_weights:
            "*": {input_token: 1, cached_input_token: 0, output_token: 3}
            small: {input_token: 2, cached_input_token: 1, output_token: 4}
          reservation: expected
          time_zone: Europe/Berlin
          strict: true
          on_store_loss: fail-closed
          max_overdraft: 7
        keys:
          KEY: {quota: {limits: [concurrency=1]}}
"""


def write(file: Path, text: str) -> None:
    file.write_text(text)


def line_of(file: Path, text: str) -> int:
    return next(number for number, line in enumerate(file.read_text().splitlines(), start=1) if text in line)


async def test_dry_run_shows_the_difference_and_changes_nothing(
    command_line: CommandLine, service: AdminService, file: Path
):
    ran = await command_line("quota-policies", "apply", "-f", str(file), "--dry-run")

    assert ran.exit_code == 0
    for line in (
        "+ class nightly",
        "+ organization acme",
        "~ quota of acme",
        "weight: 1.0 → 2.0",
        "+ team acme/search",
        '    class_grants: ["nightly"]',
        "requests=60/1m:burst=10",
        "Nothing was changed",
    ):
        assert line in ran.stdout, line
    assert (await command_line("orgs", "list", "-o", "json")).json() == []


async def test_applied_file_is_in_force_and_the_second_time_nothing_differs(
    command_line: CommandLine, service: AdminService, file: Path
):
    first = await command_line("quota-policies", "apply", "-f", str(file))
    second = await command_line("quota-policies", "apply", "-f", str(file))

    policies = (await command_line("quota-policies", "list", "acme/-", "-o", "json")).json()
    assert first.exit_code == second.exit_code == 0
    assert "Nothing differs." in second.stdout
    assert [policy["weight"] for policy in policies] == [1.0, 0.5]
    assert policies[1]["mode"] == "QUOTA_MODE_SHADOW"


async def test_what_a_file_leaves_out_stays(command_line: CommandLine, service: AdminService, file: Path):
    await command_line("quota-policies", "apply", "-f", str(file))
    write(file, "organizations: {acme: {quota: {weight: 3}, teams: {ads: {quota: {limits: []}}}}}")

    ran = await command_line("quota-policies", "apply", "-f", str(file), "-o", "json")

    assert [(change["name"], [field["path"] for field in change["fields"]]) for change in ran.json()["changes"]] == [
        ("organizations/acme/quotaPolicies/default", ["weight"]),
        ("organizations/acme/teams/ads/quotaPolicies/default", ["limits"]),
    ]


async def test_etag_of_a_dry_run_guards_what_is_applied(command_line: CommandLine, service: AdminService, file: Path):
    dry_run = (await command_line("quota-policies", "apply", "-f", str(file), "--dry-run", "-o", "json")).json()
    await service.create_org("other")

    ran = await command_line("quota-policies", "apply", "-f", str(file), "--etag", dry_run["etag"])

    assert ran.exit_code == 1
    assert "ETAG_MISMATCH" in ran.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("organisations: {}", ":1: organisations: unknown; there are priority_classes, organizations"),
        ("organizations:\n  acme:\n    quota:\n      wieght: 2", ":4: organizations.acme.quota.wieght: unknown"),
        ("organizations:\n  acme: {teams: {a: {limits: []}}}", ":2: organizations.acme.teams.a.limits: unknown"),
        ("organizations: [acme]", ":1: organizations: must be a mapping"),
        ("organizations:\n  acme:\n  acme:", ":3: organizations.acme: is there twice"),
        ("organizations: {acme: {quota: {weight: two}}}", "organizations.acme.quota.weight: must be a number"),
        ("organizations: {acme: {quota: {weight: '2'}}}", "organizations.acme.quota.weight: must be a number"),
        ("organizations: {acme: {quota: {strict: 1}}}", "organizations.acme.quota.strict: must be true or false"),
        ("organizations: {acme: {quota: {mode: off}}}", "organizations.acme.quota.mode: must be one of enforce"),
        ("organizations: {acme: {quota: {limits: [x]}}}", "organizations.acme.quota.limits[0]: 'x' is no limit"),
        ("organizations: {acme: {quota: {budgets: [x]}}}", "organizations.acme.quota.budgets[0]: 'x' is no budget"),
        ("organizations: {acme: {state: gone}}", "organizations.acme.state: must be one of active, suspended"),
        ("priority_classes: {a: {rank: 1.5}}", "priority_classes.a.rank: must be a whole number"),
        ("priority_classes: {a: {max_queue_wait: long}}", "priority_classes.a.max_queue_wait: 'long' is no length"),
        ("priority_classes: {a: {rank: 99999999999}}", "priority_classes.a.rank:"),
        ("a: b: c", "is no YAML"),
    ],
)
def test_what_does_not_belong_is_named_with_file_line_and_path(file: Path, text: str, problem: str):
    file.write_text(text)

    with pytest.raises(UsageError) as refused:
        read_policy_file(file)

    assert str(refused.value).startswith(str(file))
    assert problem in str(refused.value)


def test_empty_file_asks_for_nothing(file: Path):
    for text in ("", "# nothing", "organizations:", "organizations: {}"):
        file.write_text(text)
        assert read_policy_file(file).entries == []


async def test_what_the_server_refuses_names_the_entry_and_changes_nothing(
    command_line: CommandLine, service: AdminService, file: Path
):
    write(file, POLICIES.replace("[nightly]", "[ghost]"))

    ran = await command_line("quota-policies", "apply", "-f", str(file))

    assert ran.exit_code == 1
    assert f"error: {file}:{line_of(file, '[ghost]')}: organizations.acme.teams.search.classes: " in ran.stderr
    assert "ghost" in ran.stderr
    assert (await command_line("orgs", "list", "-o", "json")).json() == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("organizations:\n  acme:\n    quota:\n      weight: -3", ":4: organizations.acme.quota.weight: must be from"),
        ("organizations:\n  Acme: {}", ":2: organizations.Acme: name: 'Acme' is not the id"),
        (
            "organizations:\n  acme:\n    quota:\n      limits:\n        - requests=5\n        - requests=6",
            ":6: organizations.acme.quota.limits[1]: an earlier limit",
        ),
        (
            "organizations:\n  acme:\n    quota:\n      limits:\n        - requests=5\n        - input_tokens=0/1m",
            ":6: organizations.acme.quota.limits[1]: limit: must be from 1",
        ),
        (
            "organizations:\n  acme:\n    quota:\n      budgets: [day=5, day=6]",
            ":4: organizations.acme.quota.budgets[1]: an earlier budget",
        ),
        (
            "organizations:\n  acme:\n    quota:\n      cost_weights:\n        '*':\n          input_token: -1",
            ":6: organizations.acme.quota.cost_weights.*.input_token: must be from 0",
        ),
        (
            "organizations:\n  acme:\n    teams:\n      a:\n        keys:\n          AAAAAAAAAAAA:\n"
            "            quota: {limits: [requests=1]}",
            ":7: organizations.acme.teams.a.keys.AAAAAAAAAAAA.quota: RESOURCE_NOT_FOUND",
        ),
        ("priority_classes:\n  a:\n    rank: -1", ":3: priority_classes.a.rank: must not be negative"),
    ],
)
@pytest.mark.parametrize("command", [("apply",), ("apply", "--dry-run"), ("simulate",)])
async def test_what_the_server_refuses_is_told_at_its_place_in_the_file(
    shared_command_line: CommandLine, file: Path, text: str, problem: str, command
):
    write(file, text)

    ran = await shared_command_line("quota-policies", *command, "-f", str(file))

    assert ran.exit_code == 1
    assert f"error: {file}{problem}" in ran.stderr
    assert "entries[" not in ran.stderr


async def test_what_a_list_loses_is_said_before_it_is_lost(
    command_line: CommandLine, service: AdminService, file: Path
):
    await command_line("quota-policies", "apply", "-f", str(file))
    update = ("quota-policies", "update", "acme/search", "--budget", "month=5000", "--budget", "day=500:model=small")
    assert (await command_line(*update)).exit_code == 0
    write(
        file,
        "organizations: {acme: {teams: {search: {classes: [], quota: {limits: [requests=61], budgets: [month=9]}}}}}",
    )

    dry_run = await command_line("quota-policies", "apply", "-f", str(file), "--dry-run")
    simulation = await command_line("quota-policies", "simulate", "-f", str(file))

    for line in ('removes "nightly"', "removes concurrency=4", "removes day=500:model=small"):
        assert f"    {line}" in dry_run.stdout, dry_run.stdout
    assert "budgets: [day=500:model=small, month=5000] → [month=9]" in dry_run.stdout
    assert "removes requests" not in dry_run.stdout
    assert "removes month" not in dry_run.stdout
    assert "note: quota of acme/search: removes concurrency=4" in simulation.stdout
    assert "note: team acme/search: removes" in simulation.stdout


async def test_summary_counts_what_is_made_anew(command_line: CommandLine, service: AdminService, file: Path):
    dry_run = await command_line("quota-policies", "apply", "-f", str(file), "--dry-run")
    applied = await command_line("quota-policies", "apply", "-f", str(file))
    write(file, "organizations: {acme: {quota: {weight: 3}}}")
    changed = await command_line("quota-policies", "apply", "-f", str(file))

    made = "creates 1 class (nightly), 1 organization (acme), 2 teams (acme/search, acme/ads)"
    assert made in dry_run.stdout
    assert made in applied.stdout
    assert "1 change; creates nothing" in changed.stdout


async def test_misspelt_tenant_is_refused_where_nothing_may_be_created(
    command_line: CommandLine, service: AdminService, file: Path
):
    await command_line("quota-policies", "apply", "-f", str(file))
    apply = ("quota-policies", "apply", "-f", str(file), "--no-create")
    again = await command_line(*apply)
    write(file, "organizations: {acmee: {teams: {search: {quota: {weight: 3}}}}, acme: {teams: {adds: {}}}}")

    ran = await command_line(*apply)

    assert again.exit_code == 0
    assert ran.exit_code == 1
    assert "there is no organization acmee, no team acmee/search, no team acme/adds; nothing was changed" in ran.stderr
    assert [org["name"] for org in (await command_line("orgs", "list", "-o", "json")).json()] == ["organizations/acme"]


async def test_exported_file_changes_nothing_and_makes_the_same_elsewhere(
    command_line: CommandLine, service: AdminService, file: Path
):
    await command_line("quota-policies", "apply", "-f", str(file))
    await command_line("orgs", "create", "plain")
    key = (await command_line("keys", "create", "--team", "acme/search", "-o", "json")).json()
    key_id = key["name"].rpartition("/")[2]
    write(file, EVERYTHING.replace("KEY", key_id))
    assert (await command_line("quota-policies", "apply", "-f", str(file))).exit_code == 0

    exported = (await command_line("quota-policies", "export")).stdout
    of_one = (await command_line("quota-policies", "export", "acme")).stdout
    write(file, exported)
    again = await command_line("quota-policies", "apply", "-f", str(file))

    assert again.stdout == "Nothing differs.\n", again
    in_order, other_order = ('"day=500:model=small", month=5000', 'month=5000, "day=500:model=small"')
    write(file, EVERYTHING.replace("KEY", key_id).replace(in_order, other_order))
    reordered = await command_line("quota-policies", "apply", "-f", str(file))
    assert reordered.stdout == "Nothing differs.\n"
    data, one = yaml.safe_load(exported), yaml.safe_load(of_one)
    written = yaml.safe_load(EVERYTHING.replace("KEY", key_id))["organizations"]["acme"]
    assert data["organizations"]["acme"]["teams"]["search"] == written["teams"]["search"]
    assert data["organizations"]["acme"]["quota"] == {"weight": 2, "limits": ["total_tokens=100000/1m:burst=16666"]}
    assert data["organizations"]["plain"] == {}
    assert data["priority_classes"]["nightly"] == {
        "rank": 300,
        "min_share": 0.05,
        "preemptible": True,
        "max_queue_wait": "10m",
    }
    assert one == {"organizations": {"acme": data["organizations"]["acme"]}}


REFERENCE = (Path(__file__).parents[2] / "docs" / "quotas.md").read_text().partition("## The policies file")[2]


async def test_reference_shows_every_field_in_a_file_that_can_be_applied(
    command_line: CommandLine, service: AdminService, file: Path
):
    example = REFERENCE.partition("```yaml\n")[2].partition("```")[0]
    write(file, example.partition("        keys:")[0])

    ran = await command_line("quota-policies", "apply", "-f", str(file))

    assert ran.exit_code == 0, ran.stderr
    rows = "".join(line for line in REFERENCE.splitlines() if line.startswith("|"))
    for fields in (CLASS_FIELDS, ORGANIZATION_FIELDS, TEAM_FIELDS, QUOTA_FIELDS):
        for field in fields:
            assert f"{field}:" in example, field
            assert f"`{field}`" in rows, field
    assert "keys:" in example


async def test_missing_file_is_wrong_usage(command_line: CommandLine, service: AdminService, tmp_path: Path):
    assert (await command_line("quota-policies", "apply", "-f", str(tmp_path / "none.yaml"))).exit_code == 2
