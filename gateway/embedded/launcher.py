"""Becomes one PostgreSQL program, under another account and tied to its parent's life. Run as a file, not imported.

`launcher.py PARENT_PID SIGNAL UID GID CAPABILITY PROGRAM [ARGUMENT…]`; UID `-` keeps the user, CAPABILITY `-` keeps
none. The kernel sends SIGNAL when the parent dies, however it dies (Linux only). Standard library only: it runs before
each server, so it must be quick. Sources: prctl(2), capabilities(7), capset(2).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
LINUX_CAPABILITY_VERSION_3 = 0x20080522


def main(arguments: list[str]) -> None:
    """Never returns: the process is the program, or it has ended."""
    parent_pid, death_signal, uid, gid, capability, program, *rest = arguments
    libc = ctypes.CDLL(None, use_errno=True)
    if uid != "-":
        _change_user(libc, int(uid), int(gid), None if capability == "-" else int(capability))
    if sys.platform == "linux":
        _call(libc.prctl, PR_SET_PDEATHSIG, signal.Signals[death_signal], 0, 0, 0)
        if os.getppid() != int(parent_pid):  # it died before the kernel was asked to watch it
            sys.exit("the parent process is gone")
    os.execv(program, [program, *rest])  # noqa: S606 - a list of arguments from our own process


def _change_user(libc: ctypes.CDLL, uid: int, gid: int, capability: int | None) -> None:
    if capability is not None:
        _call(libc.prctl, PR_SET_KEEPCAPS, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    if capability is None:
        return
    # Effective, permitted, inheritable; the second triple holds capabilities 32 and up.
    bit = 1 << capability
    header = (ctypes.c_uint32 * 2)(LINUX_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    _call(libc.capset, header, data)
    _call(libc.prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability, 0, 0)


def _call(function: "ctypes._FuncPointer", *arguments: object) -> None:
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    main(sys.argv[1:])
