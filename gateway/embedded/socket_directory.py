"""Where the server's socket lies: `run/` beside its data, or a short path where that one is too long for a socket.

The short path is random (`mkdtemp`: nobody can lay it out beforehand), removed with the server, and remembered, so that
the URL stays the same from start to start.
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from gateway.embedded.account import Account

MAX_SOCKET_PATH_BYTES = 106  # the same for every socket of ours: one less than unix(7) has room for
PORT = 5432  # nothing listens on it: it only names the socket
_SOCKET = f".s.PGSQL.{PORT}"
_SOCKET_LOCK = f"{_SOCKET}.lock"
_MEMO = "socket-directory"


def prepare_socket_directory(root: Path, account: Account) -> Path:
    """A directory that only `account` may enter, with nothing of an earlier server in it. No server may be running.

    Raises OSError.
    """
    beside = root / "run"
    if len(os.fsencode(beside / _SOCKET_LOCK)) <= MAX_SOCKET_PATH_BYTES:
        beside.mkdir(mode=0o700, exist_ok=True)
        directory = beside
    else:
        directory = _remembered(root / _MEMO, account) or _make_short(root / _MEMO)
    os.chown(directory, account.uid, account.gid)
    directory.chmod(0o700)
    for name in (_SOCKET, _SOCKET_LOCK):  # a lock whose number is taken by another process would keep the server out
        (directory / name).unlink(missing_ok=True)
    return directory


def remove_short_directory(root: Path) -> None:
    """Nothing is left outside `root`, unless a server that crashed left it; the next start uses that again."""
    with contextlib.suppress(OSError):
        Path((root / _MEMO).read_text(encoding="utf-8")).rmdir()


def _remembered(memo: Path, account: Account) -> Path | None:
    """The directory of the last start, made again if need be; None where its name is unknown or taken."""
    try:
        directory = Path(memo.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        return directory
    status = directory.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == account.uid and status.st_mode & 0o077 == 0
    return directory if is_ours else None


def _make_short(memo: Path) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="evenflow-", dir="/tmp"))  # TMPDIR may be as long again
    memo.write_text(str(directory), encoding="utf-8")
    return directory
