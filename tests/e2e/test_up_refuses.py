"""Starts that cannot work end soon, with the reason, and leave everything as it was."""

import socket
from pathlib import Path

import psutil
import pytest

from tests.e2e.installation import Installation


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path / "data")


def listing(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_foreign_database_directory_is_named_and_left_alone(installation: Installation):
    foreign = installation.data_dir / "postgres"
    installation.data_dir.mkdir(mode=0o700)
    foreign.mkdir()
    (installation.data_dir / "up.lock").touch()  # the directory itself is an installation's
    (foreign / "thesis.txt").write_text("mine")
    before = listing(foreign)

    ran = installation.run("up", "--listen", "127.0.0.1:0")

    assert ran.returncode == 1
    assert str(foreign) in ran.stderr
    assert "not made by evenflow" in ran.stderr
    assert listing(foreign) == before


def test_missing_model_is_named(installation: Installation, tmp_path: Path):
    model = tmp_path / "no-such-model.gguf"
    others = psutil.Process().children(recursive=True)

    ran = installation.run("up", "--listen", "127.0.0.1:0", "--model", str(model))

    assert ran.returncode == 2
    assert str(model) in ran.stderr
    assert set(psutil.Process().children(recursive=True)) <= set(others)


def test_unknown_engine_option_is_named(installation: Installation):
    ran = installation.run("up", "--listen", "127.0.0.1:0", "--warp-speed", "9")

    assert ran.returncode == 2
    assert "--warp-speed" in ran.stderr


def test_port_in_use_is_named(installation: Installation):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = installation.run("up", "--listen", f"127.0.0.1:{port}", timeout_s=100)

    assert ran.returncode == 1
    assert str(port) in ran.stderr
