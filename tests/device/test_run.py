"""The script for machines with a GPU, at tiny sizes in Triton's interpreter, as somebody would start it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton for this kind of machine")

SCRIPT = Path(__file__).parent / "run.py"


def run(tmp_path, *arguments, **environment):
    command = [sys.executable, SCRIPT, *arguments]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)


# What a machine with a card need not have.
MISSING = ("gguf", "grpc", "llguidance", "opentelemetry", "pydantic", "safetensors", "structlog", "transformers")
BLOCK = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
"""


def test_engine_says_the_exact_text_swapped_at_every_step_and_every_timing_can_be_taken(tmp_path):
    results = tmp_path / "results.json"
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    arguments = ("--interpret", "--part", "engine", "--part", "timings", "--json", str(results))
    told = run(tmp_path, *arguments, PYTHONPATH=str(tmp_path))
    assert told.returncode == 0, told.stdout + told.stderr
    assert "Traceback" not in told.stderr
    document = json.loads(results.read_text())
    assert all(check["holds"] for check in document["checks"])
    assert len([check for check in document["checks"] if check["kernel"] == "engine, exact text"]) == 3
    names = {timing["name"] for timing in document["timings"]}
    assert names == {"copy in device memory", "decode attention", "prefill attention", "decode step", "swap"}
    assert all(timing["milliseconds"] > 0 and timing["rate"] > 0 for timing in document["timings"])
    assert told.stdout.count("| ok |") == len(document["checks"])


@pytest.mark.slow
def test_every_kernel_is_checked_by_the_script(tmp_path):
    told = run(tmp_path, "--interpret", "--part", "kernels")
    assert told.returncode == 0, told.stdout + told.stderr
    assert " 0 do not" in told.stdout


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_device_it_says_so(tmp_path):
    told = run(tmp_path)
    assert told.returncode == 2
    assert "no CUDA device" in told.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.timeout(600)
def test_everything_holds_on_this_machines_card(tmp_path):
    told = run(tmp_path)
    assert told.returncode == 0, told.stdout + told.stderr
