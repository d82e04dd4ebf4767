"""An engine process whose model is a fake: `python -m tests.engine.fake_process healthy|broken|loading FLAGS`.

For what a process does with signals and failures, where a real model would only cost seconds.
"""

import sys
import time

from engine.commands.engine import app
from engine.server import backend
from engine.server.backend import Backend
from tests.engine.fake_runner import CONFIG, MODEL, FakeRunner

STEP_S = 0.005


def load(kind: str) -> Backend:
    if kind == "loading":
        time.sleep(600)
    runner = FakeRunner(STEP_S)
    if kind == "broken":
        runner.errors = [RuntimeError("the device is gone")] * 100
    return Backend(runner, MODEL, CONFIG)


if __name__ == "__main__":
    kind, *flags = sys.argv[1:]
    backend.load_backend = lambda settings, on_progress: load(kind)
    app(flags)
