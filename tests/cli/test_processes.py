"""Child processes as parts: real ones, small scripts that serve, die, refuse, and talk too much."""

import asyncio
import os
import signal
import sys
from collections import abc
from pathlib import Path

import psutil
import pytest

from gateway.cli.parts import PartError
from gateway.cli.processes import ProcessPart, RotatingLog

SERVE = (
    "import signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('drained'), sys.exit(0)))\n"
    "print('up', flush=True)\n"
    "while True: signal.pause()\n"
)
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"


async def yes() -> bool:
    return True


async def no() -> bool:
    return False


def make_part(
    log_path: Path, script: str, probe: abc.Callable[[], abc.Awaitable[bool]] = yes, **settings
) -> ProcessPart:
    argv = (sys.executable, "-c", script)
    return ProcessPart(name="part", argv=argv, env=os.environ, log_path=log_path, probe=probe, **settings)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "part.log"


async def test_child_drains_when_it_is_asked_to_end(log_path: Path):
    is_up = asyncio.Event()
    running = await make_part(log_path, SERVE, on_line=lambda _line: is_up.set()).start()
    await running.ready()
    await is_up.wait()

    await running.stop()

    exit_ = await running.wait()
    assert (exit_.code, exit_.tail) == (0, ("up", "drained"))
    assert contents(log_path) == "up\ndrained\n"


async def test_child_that_will_not_end_is_killed_after_its_grace_time(log_path: Path):
    is_up = asyncio.Event()
    running = await make_part(log_path, DEAF, grace_s=0.1, on_line=lambda _line: is_up.set()).start()
    await is_up.wait()

    await running.stop()

    assert (await running.wait()).code == -signal.SIGKILL


async def test_refused_settings_are_fatal_and_show_the_childs_words(log_path: Path):
    running = await make_part(log_path, "import sys; print('--port: must be a number'); sys.exit(2)", no).start()

    with pytest.raises(PartError, match="exit code 2 before it served") as caught:
        await running.ready()

    assert caught.value.fatal
    assert caught.value.refuses_settings
    assert caught.value.tail == ("--port: must be a number",)


async def test_other_early_ends_may_be_tried_again(log_path: Path):
    running = await make_part(log_path, "raise SystemExit(1)", no).start()

    with pytest.raises(PartError, match="exit code 1") as caught:
        await running.ready()

    assert not caught.value.fatal


async def test_child_that_does_not_serve_in_time_is_an_error(log_path: Path):
    running = await make_part(log_path, SERVE, no, start_timeout_s=0.3).start()

    with pytest.raises(PartError, match="did not serve within"):
        await running.ready()
    await running.stop()


async def test_command_that_does_not_exist_is_fatal(log_path: Path):
    part = ProcessPart(name="part", argv=("/no/such/program",), env={}, log_path=log_path, probe=no)
    running = await part.start()

    with pytest.raises(PartError) as caught:
        await running.ready()

    assert any("No such file" in line for line in caught.value.tail)


async def test_lines_are_told_as_they_come_and_long_ones_in_pieces(log_path: Path):
    lines: list[str] = []
    script = "print('short'); print('x' * 200_000); print('last')"
    running = await make_part(log_path, script, on_line=lines.append).start()

    await running.wait()

    assert (lines[0], lines[-1]) == ("short", "last")
    assert "".join(lines[1:-1]) == "x" * 200_000
    assert len(contents(log_path)) == len("short\n") + 200_001 + len("last\n")


async def test_child_dies_with_its_parent(tmp_path: Path):
    """A parent that is killed cannot stop anything: the kernel does."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import asyncio, os, sys\n"
        "from pathlib import Path\n"
        "from gateway.cli.processes import ProcessPart\n"
        "async def yes(): return True\n"
        "async def main():\n"
        "    argv = (sys.executable, '-c', 'import time; time.sleep(600)')\n"
        f"    log = Path({str(tmp_path)!r}) / 'child.log'\n"
        "    part = ProcessPart(name='part', argv=argv, env=os.environ, log_path=log, probe=yes)\n"
        "    running = await part.start()\n"
        "    print(running.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).parents[2]
    parent = await asyncio.create_subprocess_exec(sys.executable, str(script), cwd=root, stdout=asyncio.subprocess.PIPE)
    assert parent.stdout is not None
    child = psutil.Process(int(await parent.stdout.readline()))

    parent.kill()
    await parent.wait()

    await asyncio.to_thread(psutil.wait_procs, [child], 10)
    assert not child.is_running()


def test_full_log_is_set_aside_and_the_oldest_is_dropped(tmp_path: Path):
    path = tmp_path / "part.log"
    log = RotatingLog(path, max_bytes=10, num_old=2)

    for number in range(5):
        log.write(f"line {number}\n".encode())
    log.close()

    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {
        "part.log": "line 4\n",
        "part.log.1": "line 3\n",
        "part.log.2": "line 2\n",
    }


def test_log_of_an_earlier_start_is_kept(tmp_path: Path):
    path = tmp_path / "part.log"
    for text in (b"first\n", b"second\n"):
        log = RotatingLog(path)
        log.write(text)
        log.close()

    assert path.read_text() == "first\nsecond\n"


def contents(path: Path) -> str:
    return path.read_text()
