"""The record of changes, exported and checked: whatever is done to the file or to the table is seen."""

import json
import stat
from pathlib import Path

import pytest
from sqlalchemy import text

from gateway.cli.audit_file import read_events
from gateway.store.audit_chain import ChainedEvent, chain_hash
from tests.admin.service import AdminService
from tests.cli.command_line import CommandLine, Ran


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def write(file: Path, text: str) -> None:
    file.write_text(text)


def read_lines(file: Path) -> list[str]:
    return file.read_text().splitlines()


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


async def export(command_line: CommandLine, service: AdminService, file: Path) -> list[str]:
    """Five changes, one of them with text that JSON spells in more than one way; the file's lines."""
    await service.create_org(display_name='Ünï "çode" \\ 🙂')
    await service.create_team()
    await service.create_key()
    assert (await command_line("orgs", "update", "acme", "--state", "suspended")).exit_code == 0
    assert (await command_line("audit", "export", "--file", str(file))).exit_code == 0
    return read_lines(file)


async def verify(command_line: CommandLine, file: Path, lines: list[str], *options: str) -> Ran:
    write(file, "\n".join(lines) + "\n")
    return await command_line("audit", "verify", str(file), *options)


async def test_untouched_record_is_intact_in_the_file_and_at_the_server(
    command_line: CommandLine, service: AdminService, file: Path
):
    lines = await export(command_line, service, file)
    await service.create_org("later")

    alone = await command_line("audit", "verify", str(file))
    both = (await command_line("audit", "verify", str(file), "--server", "-o", "json")).json()

    assert len(lines) == 6
    assert alone.exit_code == 0
    assert "5 events, intact" in alone.stdout
    assert both == {
        str(file): {"verdict": "intact", "num_events": 5},
        "server": {"verdict": "intact", "num_events": 6},
    }
    assert mode_of(file) == 0o600


async def test_file_is_checked_without_any_server(command_line: CommandLine, service: AdminService, file, monkeypatch):
    await export(command_line, service, file)
    monkeypatch.setenv("EVENFLOW_DATA_DIR", str(file.parent / "nothing-here"))

    assert (await command_line("audit", "verify", str(file))).exit_code == 0


async def test_every_changed_field_is_seen(command_line: CommandLine, service: AdminService, file: Path):
    lines = await export(command_line, service, file)
    event = json.loads(lines[2])
    for field in event:
        changed = {**event, field: {"x": 1} if field in ("before", "after") else event[field]}
        if field in ("id", "revision"):
            changed[field] = event[field] + 100
        elif field == "event_time":
            changed[field] = event[field].replace(":", ";", 1).replace(";", ":").replace("20", "21", 1)
        elif field in ("hash", "previous_hash"):
            changed[field] = "00" * 32
        elif field not in ("before", "after"):
            changed[field] = event[field] + "x"

        ran = await verify(command_line, file, [*lines[:2], json.dumps(changed), *lines[3:]])

        assert ran.exit_code == 1, field
        assert "was changed" in ran.stdout, field


async def test_removed_reordered_and_added_events_are_seen(
    command_line: CommandLine, service: AdminService, file: Path
):
    lines = await export(command_line, service, file)
    for tampered in (
        lines[1:],
        [*lines[:2], *lines[3:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:3], lines[2], *lines[3:]],
        [*lines[:-2], lines[-1]],
        lines[:-1],
        [*lines[:-2], lines[-1], lines[-2]],
        [],
    ):
        ran = await verify(command_line, file, tampered)
        assert ran.exit_code == 1, tampered
        assert "intact" not in ran.stdout


async def test_file_that_was_made_again_with_new_hashes_is_seen_by_the_servers_record(
    command_line: CommandLine, service: AdminService, file: Path
):
    lines = await export(command_line, service, file)
    events = [event for event in read_events(file) if isinstance(event, ChainedEvent)]
    forged, previous = [], bytes(32)
    for line, event in zip(lines, events, strict=False):
        content = {**event.content, "actor": "somebody else"}
        new_hash = chain_hash(previous, content)
        changes = {"actor": "somebody else", "previous_hash": previous.hex(), "hash": new_hash.hex()}
        forged.append(json.dumps(json.loads(line) | changes))
        previous = new_hash
    forged.append(json.dumps({"head": previous.hex(), "num_events": len(events)}))

    alone = await verify(command_line, file, forged)
    with_server = await verify(command_line, file, forged, "--server")

    assert alone.exit_code == 0
    assert with_server.exit_code == 1
    assert "of the file is not in it" in with_server.stdout


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_event SET actor = 'somebody else' WHERE id = 2",
        "DELETE FROM audit_event WHERE id = 2",
        "DELETE FROM audit_event WHERE id = (SELECT max(id) FROM audit_event)",
        "DELETE FROM audit_event",
        "UPDATE audit_event SET before = '{}' WHERE id = 3",
        """WITH gone AS (DELETE FROM audit_event WHERE id = 5)
        UPDATE policy_revision SET audit_head = (SELECT hash FROM audit_event WHERE id = 4)""",
        """WITH gone AS (DELETE FROM audit_event)
        UPDATE policy_revision SET audit_head = decode(repeat('00', 32), 'hex')""",
        """WITH gone AS (DELETE FROM audit_event)
        UPDATE policy_revision SET audit_head = decode(repeat('00', 32), 'hex'), revision = 0""",
    ],
)
async def test_what_is_done_to_the_table_is_seen(
    command_line: CommandLine, service: AdminService, file: Path, statement: str
):
    await export(command_line, service, file)
    async with service.database.session() as session:
        await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER ALL"))
        await session.execute(text(statement))

    ran = await command_line("audit", "verify", "--server")

    assert ran.exit_code == 1
    assert "intact" not in ran.stdout


async def test_event_that_is_too_large_is_named_and_the_rest_is_exported(
    command_line: CommandLine, service: AdminService, file: Path
):
    lines = await export(command_line, service, file)
    async with service.database.session() as session:
        await session.execute(text("ALTER TABLE audit_event DISABLE TRIGGER ALL"))
        huge = "jsonb_build_object('x', repeat('y', 20000000))"
        await session.execute(text(f"UPDATE audit_event SET after = {huge} WHERE id = 3"))

    verified = await command_line("audit", "verify", "--server")
    exported = await command_line("audit", "export")
    listed = await command_line("audit", "list", "-o", "json")

    assert verified.exit_code == 1
    assert "(id 3) was changed" in verified.stdout
    others = [line for number, line in enumerate(exported.stdout.splitlines()) if number != 2]
    assert others == [*lines[:2], *lines[3:]]
    assert len(listed.json()) == 5
    assert "too_large_bytes" in listed.stdout


async def test_file_of_nothing_is_not_intact(command_line: CommandLine, file: Path):
    ran = await verify(command_line, file, [json.dumps({"head": "00" * 32, "num_events": 0})])

    assert ran.exit_code == 1
    assert "events are missing" in ran.stdout


async def test_what_is_no_export_is_named_with_its_line(command_line: CommandLine, service: AdminService, file: Path):
    lines = await export(command_line, service, file)
    for line in ("{", "[]", '{"id": "one"}', '"head"', json.dumps({**json.loads(lines[1]), "hash": "xyz"})):
        ran = await verify(command_line, file, [lines[0], line, *lines[2:]])
        assert ran.exit_code == 1
        assert f"{file}:2" in ran.stderr


async def test_missing_file_and_nothing_to_check_are_wrong_usage(command_line: CommandLine, tmp_path: Path):
    assert (await command_line("audit", "verify", str(tmp_path / "none"))).exit_code == 2
    assert (await command_line("audit", "verify")).exit_code == 2


async def test_export_to_stdout_is_the_file(command_line: CommandLine, service: AdminService, file: Path):
    lines = await export(command_line, service, file)

    assert (await command_line("audit", "export")).stdout.splitlines() == lines


async def test_newest_changes_come_first_and_say_what_changed(command_line: CommandLine, service: AdminService, file):
    await export(command_line, service, file)

    listed = (await command_line("audit", "list", "--limit", "2", "-o", "json")).json()
    table = await command_line("audit", "list", "--filter", 'action = "organizations.*"')

    assert [event["action"] for event in listed] == ["organizations.update", "apiKeys.create"]
    assert 'state: "ACTIVE" → "SUSPENDED"' in table.stdout
    assert "apiKeys.create" not in table.stdout


async def test_event_that_was_changed_is_found_by_its_id_in_file_list_and_filter(
    command_line: CommandLine, service: AdminService, file: Path
):
    lines = await export(command_line, service, file)
    event = json.loads(lines[2])

    ran = await verify(command_line, file, [*lines[:2], json.dumps({**event, "actor": "x"}), *lines[3:]])
    told = await verify(command_line, file, [*lines[:2], json.dumps({**event, "actor": "x"}), *lines[3:]], "-o", "json")
    listed = await command_line("audit", "list", "--filter", f"id = {event['id']}", "-o", "json")
    table = await command_line("audit", "list", "--filter", f"id = {event['id']}")

    assert f"5 events, number 3 of them (id {event['id']}) was changed" in ran.stdout
    assert f"--filter 'id = {event['id']}'" in ran.stderr
    verdict = json.loads(told.stdout)[str(file)]
    assert (verdict["event_id"], verdict["position"], verdict["num_events"]) == (event["id"], 3, 5)
    assert [(one["action"], one["resource"]) for one in listed.json()] == [(event["action"], event["resource"])]
    (row,) = [line for line in table.stdout.splitlines() if event["action"] in line]
    assert row.split()[0] == str(event["id"])


async def test_list_says_what_was_granted_until_when_and_why(command_line: CommandLine, service: AdminService):
    await service.create_org()
    await command_line("quota-policies", "update", "acme", "--limit", "requests=60", "--budget", "month=10")
    for raised in (("--limit", "requests=600:burst=50:model="), ("--limit", "requests=600"), ("--budget", "month=99")):
        await command_line("quota", "grant", "acme", *raised, "--until", "2026-12-31T18:00Z", "--reason", "launch day")
    grants = (await command_line("quota-policies", "show", "acme", "-o", "json")).json()["temporary_quotas"]
    await command_line("quota", "end", "acme", grants[0]["uid"])

    table = await command_line("audit", "list", "--filter", 'action = "quotaPolicies.*Quota"')

    limit = f'requests=600 until 2026-12-31 18:00:00Z: "launch day" (id {grants[0]["uid"]})'
    assert f"granted {limit}" in table.stdout
    assert f"ended {limit}" in table.stdout
    assert f'granted month=99 until 2026-12-31 18:00:00Z: "launch day" (id {grants[1]["uid"]})' in table.stdout


async def test_list_says_what_was_made_and_which_policies_an_engine_switched(
    command_line: CommandLine, service: AdminService
):
    await service.create_org()
    await service.create_team()
    key = (await service.create_key()).name.rpartition("/")[2]
    await command_line("roles", "grant", "member", "--to", key, "--at", "acme/search")
    await command_line("engines", "set-policy", "vtc", "--option", "slack=1", "--engine", "unix:/e.sock")

    table = (await command_line("audit", "list")).stdout

    assert f'principal "apiKeys/{key}"' in table
    assert 'role "MEMBER"' in table
    assert 'unix:/e.sock scheduling_policy: "fair" → "vtc"' in table
    assert 'unix:/e.sock scheduling_options mode: "strict" → none' in table
    assert 'unix:/e.sock scheduling_options slack: none → "1"' in table
    assert "preemption" not in table
