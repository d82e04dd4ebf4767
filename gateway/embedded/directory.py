"""The directory of one embedded server: whose it is, who runs it, whether it is whole.

`<data-dir>/postgres/` holds the marker `evenflow.json` (ours, and which PostgreSQL made the data), the lock that its
owner holds while it lives, `data/` (PostgreSQL's own), `run/` (the socket), the log and the two files of access rules.
All checks read only; nothing is written into a directory before it is known to be ours.
"""

import fcntl
import json
import os
import subprocess
from enum import Enum
from pathlib import Path

from gateway.embedded.errors import (
    DamagedDirectoryError,
    DirectoryInUseError,
    ForeignDirectoryError,
    ServerStartError,
)
from gateway.private_files import sync_directory

MARKER = "evenflow.json"
_MARKER_DRAFT = f"{MARKER}.new"
LOCK = "evenflow.lock"
DATA = "data"
NEW_DATA = "data.new"
FORMAT = 1
_CONTROL_TIMEOUT_S = 10.0
_REQUIRED = ("PG_VERSION", "postgresql.conf", "global/pg_control", "base", "pg_wal", "pg_xact")


class DirectoryState(Enum):
    """How far the making of a directory came.

    EMPTY       nothing there yet
    UNFINISHED  ours, without data
    UNMARKED    ours, with all its data, of which the marker does not know yet
    COMPLETE    ours, with all its data
    """

    EMPTY = "empty"
    UNFINISHED = "unfinished"
    UNMARKED = "unmarked"
    COMPLETE = "complete"


def inspect(root: Path, postgres_major: int, pg_controldata: Path) -> DirectoryState:
    """What is at `root`. Writes nothing. Raises ForeignDirectoryError, DamagedDirectoryError, ServerStartError."""
    if not root.exists():
        return DirectoryState.EMPTY
    if not root.is_dir():
        raise ForeignDirectoryError(root, "not a directory")
    # A first start that was killed before the marker had its name leaves the lock and the draft.
    if not {entry.name for entry in root.iterdir()} - {LOCK, _MARKER_DRAFT}:
        return DirectoryState.EMPTY
    if not (root / MARKER).is_file():
        raise ForeignDirectoryError(root, f"not empty and not made by evenflow (no {MARKER}): choose another directory")
    made_by, is_initialized = _read_marker(root)
    if made_by != postgres_major:
        raise DamagedDirectoryError(
            root, f"holds data of PostgreSQL {made_by}, this is {postgres_major}: dump it with the former, load it anew"
        )
    # `data/` gets its name when it is whole, the marker afterwards.
    if not is_initialized and not (root / DATA).exists():
        return DirectoryState.UNFINISHED
    _require_whole(root, postgres_major, pg_controldata)
    return DirectoryState.COMPLETE if is_initialized else DirectoryState.UNMARKED


def write_marker(root: Path, postgres_major: int, *, is_initialized: bool) -> None:
    """The marker is on disk, whole, whatever happens next."""
    content = {"format": FORMAT, "postgres_major": postgres_major, "is_initialized": is_initialized}
    draft = root / _MARKER_DRAFT
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(root / MARKER)
    sync_directory(root)


class DirectoryLock:
    """Held from `acquire` to `release`; the kernel releases it when the process dies, however it dies."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, root: Path) -> "DirectoryLock":
        """Raises DirectoryInUseError, with the owner's pid."""
        descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, 32).strip()
            os.close(descriptor)
            raise DirectoryInUseError(root, int(owner) if owner.isdigit() else None) from None
        return cls(descriptor)

    def sign(self) -> None:
        """Others can read who holds the lock."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Another process can hold the lock."""
        os.close(self._descriptor)


def _read_marker(root: Path) -> tuple[int, bool]:
    try:
        content = json.loads((root / MARKER).read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise DamagedDirectoryError(root, f"{MARKER} has format {content['format']}, this release reads {FORMAT}")
        return int(content["postgres_major"]), bool(content["is_initialized"])
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDirectoryError(root, f"{MARKER} cannot be read: {error}") from error


def _require_whole(root: Path, postgres_major: int, pg_controldata: Path) -> None:
    data = root / DATA
    missing = [name for name in _REQUIRED if not (data / name).exists()]
    if missing:
        raise DamagedDirectoryError(
            root, f"{DATA}/{missing[0]} is missing; restore the directory from a backup, or move it away to begin anew"
        )
    version = (data / "PG_VERSION").read_text(encoding="ascii", errors="replace").strip()
    if version != str(postgres_major):
        raise DamagedDirectoryError(root, f"{DATA}/PG_VERSION says {version[:20]!r}, expected {postgres_major}")
    # Checks the file's checksum; a wrong one is a warning on stderr, with exit status 0.
    command = [str(pg_controldata), "-D", str(data)]
    try:
        report = subprocess.run(
            command, env={"LC_ALL": "C"}, capture_output=True, check=False, timeout=_CONTROL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        reason = f"{DATA}/global/pg_control could not be read within {_CONTROL_TIMEOUT_S:g} s"
        raise ServerStartError(root, reason) from None
    if report.returncode != 0 or report.stderr:
        raise DamagedDirectoryError(root, f"{DATA}/global/pg_control is damaged; restore the directory from a backup")
