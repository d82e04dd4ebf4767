"""Servers that outlived the process that ran them, known by their working directory, and the pid file they leave.

Only for the holder of the directory's lock, who knows that nobody owns such a server any more.
"""

import contextlib
import signal
import time
from pathlib import Path

import psutil

_ABORT_TIMEOUT_S = 5.0
_POLL_S = 0.02


def stop_orphans(data: Path, timeout_s: float) -> None:
    """No server process runs in `data`, and no pid file is in the next one's way. Blocks.

    A pid file proves nothing: its number may be another process's by now, or that of a dead process which nobody has
    waited for. PostgreSQL takes both for a running server and refuses to start.
    """
    if data.exists():
        _end(_find_servers(data.resolve()), timeout_s)
        (data / "postmaster.pid").unlink(missing_ok=True)


def _find_servers(data: Path) -> list[psutil.Process]:
    # What cannot be read (a zombie's, somebody else's) is None.
    processes = psutil.process_iter(["name", "cwd", "cmdline"])
    return [process for process in processes if (process.info["name"], process.info["cwd"]) == ("postgres", str(data))]


def _end(processes: list[psutil.Process], timeout_s: float) -> None:
    """Fast shutdown, which the first process passes on; then abort, which the next start recovers from; then kill."""
    # The others have titles such as "postgres: checkpointer", and mean other things by the signal.
    titles = [(process, " ".join(process.info["cmdline"] or ())) for process in processes]
    _signal([process for process, title in titles if not title.startswith("postgres:")], signal.SIGINT)
    processes = _wait(processes, timeout_s)
    for number in (signal.SIGQUIT, signal.SIGKILL):
        _signal(processes, number)
        processes = _wait(processes, _ABORT_TIMEOUT_S)


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _wait(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run at the end. A zombie has ended; where no init process reaps it, it stays one for ever."""
    deadline = time.monotonic() + timeout_s
    while (running := [process for process in processes if is_running(process)]) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
    return running


def is_running(process: psutil.Process) -> bool:
    """Whether the process still does anything."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
