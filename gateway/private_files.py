"""Files that only their owner may read: secrets of an installation, written whole or not at all."""

import os
import stat
from pathlib import Path

ADMIN_KEY_FILE = "admin.key"
API_KEY_FILE = "api.key"
PEPPER_FILE = "pepper"
UP_LOCK_FILE = "up.lock"
LEDGER_DIR = "ledger"  # usage on its way to Postgres

# Any of these says that a directory is an installation's.
_MARKERS = frozenset({ADMIN_KEY_FILE, API_KEY_FILE, PEPPER_FILE, UP_LOCK_FILE, LEDGER_DIR})
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class PrivateFileError(Exception):
    """A file or directory is missing or cannot be used; the message names it."""


def make_private_dir(path: Path) -> None:
    """`path` exists and is open to its owner only.

    It is new, empty (as service managers make it) or an installation's already; if it is open to others and this
    user's, it is closed to them. Otherwise PrivateFileError says what to do, and nothing was touched.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise PrivateFileError(f"cannot use {path}: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        names = set(os.listdir(descriptor))
        if names and not names & _MARKERS:
            raise PrivateFileError(f"{path} holds files that are not evenflow's: choose another directory")
        if not status.st_mode & _OTHERS:
            return
        if status.st_uid != os.geteuid():
            raise PrivateFileError(f"{path} is open to other users and belongs to user {status.st_uid}: chmod 700 it")
        os.fchmod(descriptor, 0o700)
    except OSError as error:
        raise PrivateFileError(f"cannot use {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)


def read_text(path: Path) -> str:
    """The stripped text of `path`, empty if there is no such file. Raises PrivateFileError."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise PrivateFileError(f"cannot read {path}: {error}") from error


def write_private(path: Path, text: str) -> None:
    """`path` holds `text`, whole, readable by this user only, whatever happens next. Raises PrivateFileError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # One that a killed process left may have any mode; a fresh one has this.
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise PrivateFileError(f"cannot write {path}: {error.strerror}") from error


def sync_directory(path: Path) -> None:
    """The names in the directory `path` are on disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
