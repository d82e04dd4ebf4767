"""`evenflow up` as a user runs it: a process of its own, a directory of its own, the real model."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.cli.command_line import CommandLine, Ran

ROOT = Path(__file__).parents[2]
EVENFLOW = (sys.executable, "-m", "gateway.cli.main")
# Small enough to start beside other work on a small machine.
ENGINE_FLAGS = ("--num-device-blocks", "256", "--max-num-seqs", "8", "--num-threads", "1")
START_TIMEOUT_S = 90.0


@dataclass
class Installation:
    """One data directory, and the `up` that runs on it, if any."""

    data_dir: Path
    process: subprocess.Popen[str] | None = None
    family: list[psutil.Process] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EVENFLOW_")}
        return {**clean, "EVENFLOW_DATA_DIR": str(self.data_dir)}

    @property
    def address(self) -> str:
        return (self.data_dir / "endpoint").read_text().strip()

    @property
    def api_key(self) -> str:
        return (self.data_dir / "api.key").read_text().strip()

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def up(self) -> None:
        """It serves, and `family` are all of its processes."""
        argv = (*EVENFLOW, "up", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", *ENGINE_FLAGS)
        with (self.data_dir.parent / "up.log").open("a") as log:
            self.process = subprocess.Popen(argv, cwd=ROOT, env=self.environment, stderr=log, text=True)
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not (self.data_dir / "endpoint").exists():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.1)
        self.family = psutil.Process(self.process.pid).children(recursive=True)

    def log(self) -> str:
        """What every `up` of this directory has printed."""
        return (self.data_dir.parent / "up.log").read_text()

    def run(self, *arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A finished command."""
        return subprocess.run(
            (*EVENFLOW, *arguments),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def call(self, *arguments: str) -> Ran:
        """The same command in this process: starting one takes longer than what most of them do."""
        foreign = {name: None for name in os.environ if name.startswith("EVENFLOW_")}
        return CommandLine(environment={**foreign, "EVENFLOW_DATA_DIR": str(self.data_dir)}).run(*arguments)

    def child(self, command: str) -> psutil.Process:
        """The running child that is `evenflow COMMAND`."""
        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        (found,) = [child for child in children if command in child.cmdline()]
        return found

    def stop(self) -> int:
        """The exit code after SIGTERM."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def survivors(self) -> list[psutil.Process]:
        """Processes of the last `up` that are still there, when they had the time to go."""
        _, alive = psutil.wait_procs(self.family, timeout=20)
        return alive
