"""Every Triton kernel compiles for cards that are not there, as it is launched."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="there is no Triton for this kind of machine")

ROOT = Path(__file__).parents[2]
KERNELS = {
    "_add_rms_norm",
    "_add_splits",
    "_argmax_finite",
    "_attend_decodes",
    "_attend_tiles",
    "_copy_blocks",
    "_draw",
    "_norm_heads",
    "_rotate_and_store",
    "_silu_mul",
}
SHARED_BYTES = {80: 163 << 10, 90: 227 << 10}  # of one program, at most
MAX_STACK_BYTES = 16  # an address or two that are needed once; a spilled tile takes hundreds


def compile_all(tmp_path, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.kernels.compile_kernels", *arguments]
    told = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def check(results):
    by_arch = {arch: {result["kernel"] for result in results if result["arch"] == arch} for arch in SHARED_BYTES}
    assert by_arch == dict.fromkeys(SHARED_BYTES, KERNELS)
    for result in results:
        assert result["cubin_bytes"] > 1000, result
        assert result["stack_bytes"] <= MAX_STACK_BYTES, f"registers are spilled: {result}"
        assert result["shared_bytes"] <= SHARED_BYTES[result["arch"]], result


def test_every_kernel_compiles_for_ampere_and_hopper_without_spills(tmp_path):
    check(compile_all(tmp_path, "80", "90"))


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_shape_and_dtype_compiles(tmp_path):
    check(compile_all(tmp_path, "80", "90", "--whole"))
