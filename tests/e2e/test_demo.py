"""The demo from outside: a report at its end, nothing left behind, whenever it ends."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.installation import EVENFLOW, ROOT


def start(tmp_path: Path) -> subprocess.Popen[str]:
    """The demo, with all that it leaves behind under `tmp_path`."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.Popen(
        (*EVENFLOW, "demo"), cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_interrupted_demo_leaves_nothing_behind(tmp_path: Path):
    process = start(tmp_path)
    deadline_s = time.monotonic() + 60
    while not list(tmp_path.glob("evenflow-demo-*/admin.key")):
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)

    assert process.returncode == 130
    assert psutil.wait_procs(family, timeout=10)[1] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_demo_compares_the_policies_and_says_how_to_go_on(tmp_path: Path):
    process = start(tmp_path)

    _, shown = process.communicate(timeout=1200)

    assert process.returncode == 0, shown
    report = ("chat: first token after, median", "chat: pauses", "batch: pauses")
    for text in ("policy fcfs", "policy fair", *report, "To go on", "keys create"):
        assert text in shown
    assert list(tmp_path.iterdir()) == []
