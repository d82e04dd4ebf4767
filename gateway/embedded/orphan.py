"""Servers that outlived the process that ran them, known by their working directory, and the pid file they leave.

Only for the holder of the directory's lock, who knows that nobody owns such a server any more.
"""

import contextlib
import signal
from pathlib import Path

import psutil

_ABORT_TIMEOUT_S = 5.0


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
    processes = psutil.process_iter(["name", "cwd", "ppid"])
    return [process for process in processes if (process.info["name"], process.info["cwd"]) == ("postgres", str(data))]


def _end(processes: list[psutil.Process], timeout_s: float) -> None:
    """Fast shutdown, for the root of the tree to pass on; then abort, which the next start recovers from; then kill."""
    pids = {process.pid for process in processes}
    roots = [process for process in processes if process.info["ppid"] not in pids]
    for number, targets, wait_s in (
        (signal.SIGINT, roots, timeout_s),
        (signal.SIGQUIT, processes, _ABORT_TIMEOUT_S),
        (signal.SIGKILL, processes, _ABORT_TIMEOUT_S),
    ):
        for process in targets:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        _, processes = psutil.wait_procs(processes, wait_s)
        if not processes:
            return
