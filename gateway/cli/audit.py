"""`evenflow audit`: who changed what, taken out of the house, and checked there or here.

An exported file has one event a line, in the order of the chain, and a last line with the chain's newest hash. What is
checked is the chain itself: this command computes each hash again and believes no server.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TextIO

import typer

from evenflow.admin.v1 import admin_pb2 as pb
from gateway.cli.audit_changes import changes, settings
from gateway.cli.audit_file import AuditFileError, event_from_pb, head_line, read_events, to_line
from gateway.cli.command import Admin, OpenAdmin, admin_command, connecting_command
from gateway.cli.errors import CliError, UsageError
from gateway.cli.output import Column, OutputFormat, OutputOption, print_data, print_many, stderr, stdout, time_text
from gateway.cli.resources import AuditFilterOption
from gateway.private_files import write_private
from gateway.store.audit_chain import ChainCheck
from gateway.words import counted, short_name

app = typer.Typer(help="Who changed what: the record of all changes.", no_args_is_help=True)

MAX_PAGE = 1000
INTACT = "intact"
FileArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Written by evenflow audit export.")]
ServerOption = Annotated[
    bool, typer.Option("--server", help="The server's own record; with FILE, both and each other.")
]
COLUMNS: tuple[Column[pb.AuditEvent], ...] = (
    Column("ID", lambda event: event.name.rpartition("/")[2]),
    Column("TIME", lambda event: time_text(event, "event_time")),
    Column("ACTOR", lambda event: short_name(event.actor)),
    Column("ACTION", lambda event: event.action),
    Column("RESOURCE", lambda event: short_name(event.resource)),
    Column("CHANGE", lambda event: _change_text(event)),
)


@app.command("list")
@admin_command
def list_(
    admin: Admin,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MAX_PAGE, help="The newest so many.")] = 50,
    condition: AuditFilterOption = "",
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show the newest changes, the newest first. Filter by id, actor, action, resource, request_id, event_time.

    Ids grow and have gaps: a change that was not made in the end has used its id up.
    """
    request = pb.ListAuditEventsRequest(page_size=limit, filter=condition, order_by="revision desc")
    page = admin.call(admin.stub.ListAuditEvents, request)
    print_many(list(page.audit_events), COLUMNS, output)


@app.command()
@admin_command
def export(
    admin: Admin,
    file: Annotated[Path | None, typer.Option("--file", "-f", help="Where to; left out: stdout.")] = None,
) -> None:
    """Write the whole record as JSON lines, with the hashes that make it a chain."""
    if file is None:
        _write_lines(admin, sys.stdout)
        return
    try:
        write_private(file, "")
        with file.open("w", encoding="utf-8") as lines:
            num_events = _write_lines(admin, lines)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    stderr().print(f"{counted(num_events, 'event')} in {file}")


@app.command()
@connecting_command
def verify(
    open_admin: OpenAdmin,
    file: FileArgument = None,
    server: ServerOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Check that no event was changed, removed or put elsewhere: in FILE, at the server, or in both.

    A file that somebody has made again from its beginning, hashes and all, agrees with itself: only the server's record
    tells. Exit code 1 if anything is wrong.
    """
    if file is None and not server:
        raise UsageError("nothing to check: give FILE, or --server")
    verdicts: dict[str, dict[str, object]] = {}
    exported = None if file is None else _check_file(file)
    if exported is not None:
        verdicts[str(file)] = exported.verdict()
    if server:
        with open_admin() as admin:
            verdicts["server"] = _check_server(admin, exported)
    if output is OutputFormat.TABLE:
        for name, verdict in verdicts.items():
            num_events = verdict["num_events"]
            assert isinstance(num_events, int), "as Checked.verdict has it"
            stdout().print(f"{name}: {counted(num_events, 'event')}, {verdict['verdict']}")
    else:
        print_data(verdicts, output)
    if any(verdict["verdict"] != INTACT for verdict in verdicts.values()):
        broken = next((verdict["event_id"] for verdict in verdicts.values() if "event_id" in verdict), None)
        hint = "" if broken is None else f"what the server has: evenflow audit list --filter 'id = {broken}' -o json"
        raise CliError("the record is not what was written", hint=hint)


@dataclass(slots=True)
class Checked:
    """A chain that was read to its end; `head` and `revision` are its newest by another witness, None without one.

    Mutated by whoever reads.
    """

    check: ChainCheck
    head: bytes | None = None
    revision: int | None = None
    is_continued: bool = False
    foreign_id: int | None = None

    def verdict(self) -> dict[str, object]:
        """In words, and how many events there were; of a broken chain, where."""
        verdict: dict[str, object] = {"verdict": self._words(), "num_events": self.check.num_events}
        if (broken := self.check.broken) is not None:
            verdict |= {"event_id": broken.event_id, "position": broken.position}
        return verdict

    def _words(self) -> str:
        if (broken := self.check.broken) is not None:
            place = f"number {broken.position} of them (id {broken.event_id})"
            return f"{place} was changed, or does not follow from the one before it"
        if self.head is None or self.is_continued:
            return "the line with the chain's end is not the last one"
        if not self.check.num_events:
            return "events are missing: the first key of a server is one"
        if self.check.head != self.head or self.revision not in (None, self.check.last_revision):
            return "events are missing at the end"
        if self.foreign_id is not None:
            return f"event {self.foreign_id} of the file is not in it"
        return INTACT


def _check_file(path: Path) -> Checked:
    checked = Checked(ChainCheck())
    try:
        for item in read_events(path):
            checked.is_continued = checked.head is not None
            if isinstance(item, bytes):
                checked.head = item
            else:
                checked.check.add(item)
    except AuditFileError as error:
        raise CliError(str(error)) from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    return checked


def _check_server(admin: Admin, exported: Checked | None) -> dict[str, object]:
    """The verdict on the server's chain; it must hold the newest event of the file, and so all before it."""
    checked = Checked(ChainCheck())
    is_known = exported is None or not exported.check.num_events
    for message in admin.stream(admin.stub.ExportAudit, pb.ExportAuditRequest()):
        for event in map(event_from_pb, message.audit_events):
            checked.check.add(event)
            is_known = is_known or (exported is not None and event.hash == exported.check.head)
        checked.head, checked.revision = message.head or None, message.revision
    if exported is not None and not is_known:
        checked.foreign_id = exported.check.last_id
    return checked.verdict()


def _write_lines(admin: Admin, lines: TextIO) -> int:
    """Returns how many events there are."""
    num_events = 0
    for message in admin.stream(admin.stub.ExportAudit, pb.ExportAuditRequest()):
        for event in message.audit_events:
            lines.write(to_line(event_from_pb(event)))
            num_events += 1
        if message.head:
            lines.write(head_line(message.head, num_events))
    return num_events


def _change_text(event: pb.AuditEvent) -> str:
    """The settings that differ, one a line, as `weight: 1 → 2`."""
    before = json.loads(event.before) if event.before else {}
    after = json.loads(event.after) if event.after else {}
    if not event.before or not event.after:
        kind = "gone" if event.before else "new"
        return ": ".join(filter(None, (kind, ", ".join(settings(before or after)))))
    return "\n".join(changes(before, after)) or "-"
