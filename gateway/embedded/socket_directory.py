"""Where the server's socket lies: `run/` beside its data, or a short path where that one is too long for a socket.

The short path is random (`mkdtemp`: nobody can lay it out beforehand) and remembered, so that the URL stays the same
from start to start.
"""

import os
import tempfile
from pathlib import Path

from gateway.embedded.account import Account

MAX_SOCKET_PATH_BYTES = 107  # sun_path of unix(7), less the closing NUL
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


def _remembered(memo: Path, account: Account) -> Path | None:
    try:
        directory = Path(memo.read_text(encoding="utf-8"))
        status = directory.lstat()
    except FileNotFoundError:
        return None
    is_ours = directory.is_dir() and not directory.is_symlink() and status.st_uid == account.uid
    return directory if is_ours and status.st_mode & 0o077 == 0 else None


def _make_short(memo: Path) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="evenflow-", dir="/tmp"))  # TMPDIR may be as long again
    memo.write_text(str(directory), encoding="utf-8")
    return directory
