"""The directory of one installation: where each file is, and that only one `evenflow up` uses it at a time.

pepper, admin.key   secrets (0600), made at the first start      endpoint    the running gateway's address
api.key             the key that `chat` takes by default (0600)  up.lock     held by the running `evenflow up`
postgres/           the embedded database                        logs/, run/ output of the parts, sockets
"""

import fcntl
import json
import os
import shutil
import tempfile
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.private_files import ADMIN_KEY_FILE, API_KEY_FILE, UP_LOCK_FILE, make_private_dir
from gateway.settings import MAX_UNIX_PATH_BYTES, default_data_dir


class DataDirError(Exception):
    """The directory cannot be used; the message names it."""


@dataclass(frozen=True, slots=True)
class DataDir:
    """Where things are under `path`. Exists from `lock` on."""

    path: Path

    @staticmethod
    def at(path: Path | None) -> "DataDir":
        """The directory at `path`, or this user's default one."""
        return DataDir((path or default_data_dir()).expanduser().absolute())

    @property
    def admin_key(self) -> Path:
        return self.path / ADMIN_KEY_FILE

    @property
    def api_key(self) -> Path:
        return self.path / API_KEY_FILE

    @property
    def endpoint(self) -> Path:
        return self.path / "endpoint"

    def is_in_use(self) -> bool:
        """Whether an `evenflow up` runs here, so that `endpoint` is its own. Raises DataDirError."""
        try:
            with (self.path / UP_LOCK_FILE).open() as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError as error:
            raise DataDirError(f"cannot use {self.path}: {error.strerror}") from error
        return False

    def log(self, part: str) -> Path:
        return self.path / "logs" / f"{part}.log"

    @contextmanager
    def lock(self) -> abc.Iterator["Lock"]:
        """The directory exists, and no other process gets in here. Raises DataDirError, PrivateFileError."""
        make_private_dir(self.path)
        try:
            # "a": opening must not empty the file of the one that holds the lock.
            file = (self.path / UP_LOCK_FILE).open("a+")
        except OSError as error:
            raise DataDirError(f"cannot use {self.path}: {error.strerror}") from error
        with file:
            try:
                # The kernel drops the lock with the process, however it ends. Children do not inherit the descriptor.
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                file.seek(0)
                raise DataDirError(f"evenflow is already running in {self.path}{_owner(file.read())}") from error
            try:
                self.endpoint.unlink(missing_ok=True)  # of a predecessor that was killed
                yield Lock(file.fileno())
            finally:
                self.endpoint.unlink(missing_ok=True)

    @contextmanager
    def socket_dir(self) -> abc.Iterator[Path]:
        """A directory for Unix sockets, whose paths must be short: a temporary one where this one's path is long."""
        usual = self.path / "run"
        if len(os.fsencode(usual / "engine.sock")) <= MAX_UNIX_PATH_BYTES:
            usual.mkdir(mode=0o700, exist_ok=True)
            yield usual
            return
        short = Path(tempfile.mkdtemp(prefix="evenflow-", dir="/tmp"))  # TMPDIR may be long too
        try:
            yield short
        finally:
            shutil.rmtree(short, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Lock:
    """The held lock file; says to others who holds it."""

    descriptor: int

    def describe(self, address: str) -> None:
        """A second `evenflow up` is told this process and `address`."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, json.dumps({"pid": os.getpid(), "address": address}).encode(), 0)


def _owner(lock_text: str) -> str:
    try:
        owner = json.loads(lock_text)
        return f": process {owner['pid']}, serving {owner['address']}"
    except (ValueError, KeyError):
        return ""  # the other one has only just begun
