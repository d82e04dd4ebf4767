"""The protocol's build script: one mode at a time, and no git needed to lint."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROTO = Path(__file__).resolve().parents[2] / "proto"


def run(script: Path, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": os.environ["PATH"] if path is None else path}
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """The script in a copy of the protocol that is no git checkout."""
    return Path(shutil.copytree(PROTO, tmp_path / "release" / "proto")) / "build.py"


def test_modes_exclude_each_other() -> None:
    ran = run(PROTO / "build.py", "--check", "--lint")

    assert ran.returncode == 2
    assert "not allowed with" in ran.stderr


@pytest.mark.parametrize("has_git", [True, False])
def test_lint_without_a_history_says_what_it_skips_and_decides_by_itself(
    unpacked: Path, tmp_path: Path, has_git: bool
) -> None:
    path = None if has_git else str(tmp_path / "no-programs")

    ran = run(unpacked, "--lint", path=path)

    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("buf breaking: skipped")
    proto = unpacked.parent / "evenflow" / "engine" / "v1" / "engine.proto"
    proto.write_text(proto.read_text() + "\nmessage lower_case {}\n")
    assert run(unpacked, "--lint", path=path).returncode != 0
