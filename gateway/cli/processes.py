"""A child process as a part: its output goes to a rotating log file, a probe tells when it serves.

Knows nothing of what the child is. FATAL_EXIT_CODE before it served means that the same start would fail again: it is
how this project's commands refuse their settings. On Linux the kernel ends the child with this process, whatever
ended it.
"""

import asyncio
import os
import signal
import sys
from collections import abc, deque
from dataclasses import dataclass
from pathlib import Path

from gateway.cli.parts import Exit, PartError
from gateway.embedded import launcher

PROBE_INTERVAL_S = 0.2
TAIL_LINES = 20
MAX_LOG_BYTES = 10 * 2**20
NUM_OLD_LOGS = 3
FATAL_EXIT_CODE = 2
# A child that is gone may have left its output open in a child of its own.
OUTPUT_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class ProcessPart:
    """A command that serves until it is told to end.

    `probe` answers whether it serves now; it may take long, it never raises. `on_line` gets each line of output.
    """

    name: str
    argv: tuple[str, ...]
    env: abc.Mapping[str, str]
    log_path: Path
    probe: abc.Callable[[], abc.Awaitable[bool]]
    on_line: abc.Callable[[str], None] = lambda _line: None
    start_timeout_s: float = 60.0
    grace_s: float = 10.0

    async def start(self) -> "ChildProcess":
        """Raises PartError if the command cannot be run."""
        log = RotatingLog(self.log_path)
        try:
            # A session of its own: Ctrl-C in the terminal reaches `up` only, which ends its children in order.
            process = await asyncio.create_subprocess_exec(
                *_leashed(self.argv),
                env=dict(self.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            log.close()
            raise PartError(self.name, f"cannot be started: {error}", fatal=True) from error
        return ChildProcess(self, process, log)


class ChildProcess:
    """A started command."""

    def __init__(self, part: ProcessPart, process: asyncio.subprocess.Process, log: "RotatingLog") -> None:
        self.pid = process.pid
        self._part = part
        self._process = process
        self._log = log
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._pump = asyncio.create_task(self._read_output(), name=f"log of {part.name}")
        self._ended = asyncio.create_task(self._reap(), name=f"end of {part.name}")

    async def ready(self) -> None:
        """Return once the probe says so. Raises PartError if the process ends, or takes too long, before that."""
        try:
            async with asyncio.timeout(self._part.start_timeout_s):
                while not self._ended.done():
                    if await self._part.probe():
                        return
                    await asyncio.wait((self._ended,), timeout=PROBE_INTERVAL_S)
        except TimeoutError as error:
            message = f"did not serve within {self._part.start_timeout_s:g} s"
            raise PartError(self._part.name, message, tail=self._tail) from error
        exit_ = await self._ended
        refuses = exit_.code == FATAL_EXIT_CODE
        raise PartError(self._part.name, f"{exit_} before it served", refuses_settings=refuses, tail=exit_.tail)

    async def wait(self) -> Exit:
        """Return when it has ended."""
        return await asyncio.shield(self._ended)

    async def stop(self) -> None:
        """It has ended: asked by SIGTERM, forced after `grace_s`."""
        if not self._ended.done():
            self._signal(signal.SIGTERM)
            await asyncio.wait((self._ended,), timeout=self._part.grace_s)
            self.kill()
        await self.wait()

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def _reap(self) -> Exit:
        code = await self._process.wait()
        await asyncio.wait((self._pump,), timeout=OUTPUT_GRACE_S)
        self._pump.cancel()
        self._log.close()
        return Exit(code, tuple(self._tail))

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        while line := await read_line(self._process.stdout):
            self._log.write(line)
            text = line.decode(errors="replace").rstrip()
            self._tail.append(text)
            self._part.on_line(text)


def _leashed(argv: tuple[str, ...]) -> tuple[str, ...]:
    """`argv`, run so that the kernel kills it when this process is gone."""
    keep_user = ("-", "-", "-")
    return (sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), "SIGKILL", *keep_user, *argv)


async def read_line(stream: asyncio.StreamReader) -> bytes:
    """The next line, cut where it is longer than the stream's buffer; empty at the end."""
    try:
        return await stream.readuntil()
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.read(max(1, error.consumed))


class RotatingLog:
    """A file that is set aside at `max_bytes`, keeping `num_old` predecessors as `.1` (the newest), `.2`, …"""

    def __init__(self, path: Path, max_bytes: int = MAX_LOG_BYTES, num_old: int = NUM_OLD_LOGS) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._max_bytes = max_bytes
        self._num_old = num_old
        self._file = path.open("ab", buffering=0)

    def write(self, line: bytes) -> None:
        if self._file.tell() + len(line) > self._max_bytes:
            self._rotate()
        self._file.write(line)

    def close(self) -> None:
        self._file.close()

    def _rotate(self) -> None:
        self._file.close()
        paths = [self._path, *(self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._num_old + 1))]
        for older, newer in zip(reversed(paths[1:]), reversed(paths[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
        self._file = self._path.open("ab", buffering=0)
