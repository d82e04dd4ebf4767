"""Compiled kernels on disk: found by the next process, and in nobody's way."""

import hashlib
import os
import pickle
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from numba import njit

from engine.kernels.cpu import disk_cache
from engine.kernels.cpu.disk_cache import CACHE_VARIABLE, MAX_VERSIONS, DiskCache, cache_folder, version

ROOT = Path(__file__).parents[2]
# For each line a process, forked when everything is imported and nothing compiled. Each of its numbers is added in a
# kernel of its own; tells how often that was compiled and how often found.
PROGRAM = """
import os
import sys
import numpy as np
from engine.kernels.cpu.compiled import unlocked

def adder(step):
    def add(numbers):
        for index in range(len(numbers)):
            numbers[index] += step
    return unlocked(add, step)

for line in sys.stdin:
    if os.fork():
        assert os.wait()[1] == 0
        continue
    for step in map(int, line.split()):
        kernel, numbers = adder(step), np.zeros(3)
        kernel(numbers)
        assert numbers.tolist() == [step] * 3
        print(sum(kernel.stats.cache_misses.values()), sum(kernel.stats.cache_hits.values()), flush=True)
    os._exit(0)
"""


@contextmanager
def new_processes(cache):
    """Runs kernels in a new process at each call; returns (compiled, found) of each kernel."""
    environment = os.environ | {CACHE_VARIABLE: str(cache), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as program:

        def run(*steps):
            program.stdin.write(f"{' '.join(map(str, steps))}\n")
            return [tuple(map(int, program.stdout.readline().split())) for _ in steps]

        yield run
    assert program.returncode == 0


def entries(cache):
    return sorted(cache.glob("kernels/*/*.kernel"))


def test_the_next_process_finds_what_one_compiled_and_compiles_what_is_broken(tmp_path):
    with new_processes(tmp_path) as run:
        assert run(2, 3) == [(1, 0), (1, 0)]
        [one, other] = entries(tmp_path)
        assert one.parent.stat().st_mode & 0o777 == 0o700
        # Forms that were compiled in different processes are found side by side.
        assert run(5) == [(1, 0)]
        content = one.read_bytes()
        one.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        other.write_bytes(other.read_bytes()[:20])
        assert run(3, 5, 2) == [(1, 0), (0, 1), (1, 0)]
        assert run(3, 5, 2) == [(0, 1)] * 3


@pytest.fixture(scope="module")
def compiled():
    """A signature and what it was compiled to."""
    kernel = njit(lambda number: number + 1)
    kernel(1)
    [signature] = kernel.signatures
    return signature, kernel.overloads[signature]


def test_a_folder_in_which_others_may_write_is_left_alone(tmp_path, compiled):
    cache = DiskCache("kernel", tmp_path)
    cache.save_overload(*compiled)
    [entry] = entries(tmp_path)
    entry.parent.chmod(0o777)
    assert cache.load_overload(compiled[0], compiled[1].target_context) is None
    DiskCache("another kernel", tmp_path).save_overload(*compiled)
    assert entries(tmp_path) == [entry]


def test_where_nothing_can_be_kept_nothing_fails(tmp_path, compiled):
    (tmp_path / "file").write_text("no folder")
    for folder in (tmp_path / "file" / "c", None):
        cache = DiskCache("kernel", folder)
        cache.save_overload(*compiled)
        assert cache.load_overload(compiled[0], compiled[1].target_context) is None


@pytest.mark.parametrize("error", [pickle.PicklingError("no"), TypeError("no"), MemoryError(), OSError("full")])
@pytest.mark.parametrize("what", ["dumps", "_write", "_forget_oldest"])
def test_what_cannot_be_kept_is_not_whatever_the_error(tmp_path, compiled, monkeypatch, what, error):
    def fail(*arguments):
        raise error

    cache = DiskCache("kernel", tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(disk_cache, what, fail)
        cache.save_overload(*compiled)
    assert entries(tmp_path) == []
    cache.save_overload(*compiled)
    assert len(entries(tmp_path)) == 1


@pytest.mark.parametrize("payload", [b"", b"no pickle", pickle.dumps(("too", "few")), pickle.dumps((None,) * 20)])
def test_whole_entries_that_are_no_compiled_form_are_not_found(tmp_path, compiled, payload):
    cache = DiskCache("kernel", tmp_path)
    cache.save_overload(*compiled)
    signature, target_context = compiled[0], compiled[1].target_context
    [entry] = entries(tmp_path)
    entry.write_bytes(hashlib.sha256(payload).digest() + payload)
    assert cache.load_overload(signature, target_context) is None
    cache.save_overload(*compiled)
    assert cache.load_overload(signature, target_context) is not None


def test_without_its_sources_nothing_is_kept(tmp_path, compiled, monkeypatch):
    def fail():
        raise PermissionError

    monkeypatch.setattr(disk_cache, "version", fail)
    cache = DiskCache("kernel", tmp_path)
    cache.save_overload(*compiled)
    assert cache.load_overload(compiled[0], compiled[1].target_context) is None
    assert list(tmp_path.iterdir()) == []


def test_entries_of_old_versions_are_forgotten(tmp_path, compiled):
    for number in range(MAX_VERSIONS + 2):
        stale = tmp_path / "kernels" / f"version-{number}"
        stale.mkdir(parents=True)
        (stale / "x.kernel").write_text("")
        os.utime(stale, (number, number))
    DiskCache("kernel", tmp_path).save_overload(*compiled)
    left = {path.name for path in (tmp_path / "kernels").iterdir()}
    assert left == {f"version-{number}" for number in range(3, MAX_VERSIONS + 2)} | {version()}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"EVENFLOW_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/evenflow"),
        ({"HOME": "/c"}, "/c/.cache/evenflow"),
    ],
)
def test_the_cache_is_where_the_environment_says(environment, expected):
    assert cache_folder(environment) == Path(expected)
    assert cache_folder({}) is None
