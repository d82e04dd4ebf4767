"""What this machine lends the process: cores, free memory, a parent. Reads the operating system, decides nothing.

Containers: the limits of the control group (version 2) count where they are tighter than the machine's.
"""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")
PARENT_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """`free_bytes` of `device_type` ("cpu" or "cuda") that nobody uses now."""

    device_type: str
    free_bytes: int


def num_cores() -> int:
    """Cores that this process may use, at least 1."""
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _read(CGROUP / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        return max(1, min(affine, int(quota) // int(period)))
    return affine


def cpu_memory() -> DeviceMemory:
    """Main memory that is available without swapping."""
    free = _available_bytes()
    limit, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return DeviceMemory("cpu", free)


async def parent_exit(parent_pid: int) -> None:
    """Returns once the process `parent_pid`, which started this one, has ended; at once if it has by now.

    Polled: unlike Linux's parent-death signal it is not confused by the parent's threads, and works on every Unix.
    """
    while os.getppid() == parent_pid:  # noqa: ASYNC110  nothing in this process could set an event
        await asyncio.sleep(PARENT_POLL_S)


def _available_bytes() -> int:
    for line in _read(MEMINFO).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
