"""Files that only their owner may read: secrets of an installation, written whole or not at all."""

import os
from pathlib import Path

ADMIN_KEY_FILE = "admin.key"
PEPPER_FILE = "pepper"
# Which pepper a stored hash was made with; a second pepper will be 2.
PEPPER_VERSION = 1


class PrivateFileError(Exception):
    """A file or directory is missing or cannot be used; the message names it."""


def make_private_dir(path: Path) -> None:
    """`path` exists. A new one is open to this user only. Raises PrivateFileError."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PrivateFileError(f"cannot use {path}: {error.strerror}") from error


def read_text(path: Path) -> str:
    """The stripped text of `path`, empty if there is no such file. Raises PrivateFileError."""
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise PrivateFileError(f"cannot read {path}: {error}") from error


def write_private(path: Path, text: str) -> None:
    """`path` holds `text`, whole, readable by this user only. Raises PrivateFileError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        raise PrivateFileError(f"cannot write {path}: {error.strerror}") from error
