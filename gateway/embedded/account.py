"""The operating system account that the server runs under.

PostgreSQL refuses to run as root. For root, the server runs as `nobody`, on files that belong to it; where its binaries
or its data lie below a directory that `nobody` may not enter (`/root`, say), it keeps the one capability that lets it
pass, so that no permission of the machine is changed and no account is made. For everybody else it runs as they do.
"""

import os
import pwd
import stat
from collections import abc
from dataclasses import dataclass
from pathlib import Path

UNPRIVILEGED = "nobody"
# Numbers of linux/capability.h. The first only reads and passes; the second is what containers usually grant.
CAP_DAC_READ_SEARCH = 2
CAP_DAC_OVERRIDE = 1
CAP_CHOWN, CAP_SETGID, CAP_SETUID = 0, 6, 7
_STATUS = Path("/proc/self/status")


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as; `capability` is kept through the change of user, `changes_user` says if there is one."""

    uid: int
    gid: int
    changes_user: bool
    capability: int | None = None


def server_account(paths: abc.Iterable[Path]) -> Account:
    """The account for a server that must reach `paths`. Raises PermissionError, saying what is missing."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), changes_user=False)
    held = _held_capabilities()
    if not {CAP_CHOWN, CAP_SETGID, CAP_SETUID} <= held:
        raise PermissionError("root may not change its user here")
    try:
        user = pwd.getpwnam(UNPRIVILEGED)
    except KeyError:
        raise PermissionError(f"the system has no account {UNPRIVILEGED!r}") from None
    if all(_is_passable(path) for path in paths):
        return Account(user.pw_uid, user.pw_gid, changes_user=True)
    for capability in (CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE):
        if capability in held:
            return Account(user.pw_uid, user.pw_gid, changes_user=True, capability=capability)
    raise PermissionError(f"{UNPRIVILEGED!r} may not enter the directories above")


def own_user_name() -> str:
    """The name that the server's peer authentication will see. Raises PermissionError where there is none."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise PermissionError(f"user id {os.geteuid()} has no name on this system") from None


def _is_passable(path: Path) -> bool:
    # A directory that is still to be made counts as closed: its mode will depend on the umask.
    return all(parent.exists() and parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def _held_capabilities() -> set[int]:
    if not _STATUS.exists():
        return set()
    for line in _STATUS.read_text().splitlines():
        if line.startswith("CapEff:"):
            mask = int(line.split()[1], 16)
            return {number for number in range(mask.bit_length()) if mask >> number & 1}
    return set()
