"""A peer's driver as a process: a list of requests in, what became of them out. It waits without a core meanwhile."""

import contextlib
import json
import os
import signal
import subprocess
from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.workloads import Row

FOLDER = Path(__file__).parent
DRIVERS = {
    "vllm": "run_vllm.py",
    "llama.cpp": "run_llama_cpp.py",
    "openvino": "run_openvino.py",
    "transformers": "run_transformers.py",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Seconds: until the last request ended, and of each, since it was due, until its first token. None: not told."""

    wall_s: float
    ttft_s: list[float | None]


class Peer:
    """Started, and ready, once it is made. Raises RuntimeError where it ends before."""

    def __init__(self, name: str, python: str, model: str, dtype: str, num_threads: int) -> None:
        command = [python, str(FOLDER / DRIVERS[name]), model, dtype, str(num_threads)]
        environment = os.environ | {"OMP_NUM_THREADS": str(num_threads)}
        # A group of its own: a peer's workers end with it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True, start_new_session=True
        )
        self.description = self._read()

    def serve(self, rows: abc.Sequence[Row]) -> Outcome:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"rows": [row.as_json() for row in rows]}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        first = zip(rows, answer["first_s"], strict=True)
        return Outcome(answer["wall_s"], [None if at is None else at - row.arrival_s for row, at in first])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with code {self._process.wait()}")
        return json.loads(line)
