"""Secrets on disk: whole, durable, and for their owner only, also where something was there before."""

import os
import stat
from pathlib import Path

import pytest

from gateway.private_files import PrivateFileError, make_private_dir, write_private


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_file_takes_nothing_from_the_draft_of_a_killed_process(tmp_path: Path):
    draft = tmp_path / f".pepper.{os.getpid()}"
    draft.write_text("a longer text than the new one")
    draft.chmod(0o666)

    write_private(tmp_path / "pepper", "secret\n")

    assert (tmp_path / "pepper").read_text() == "secret\n"
    assert mode(tmp_path / "pepper") == 0o600
    assert os.listdir(tmp_path) == ["pepper"]


def test_draft_that_is_a_link_leads_nowhere(tmp_path: Path):
    other = tmp_path / "other"
    other.write_text("mine")
    (tmp_path / f".pepper.{os.getpid()}").symlink_to(other)

    write_private(tmp_path / "pepper", "secret\n")

    assert other.read_text() == "mine"


def test_name_is_on_disk_when_the_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))

    write_private(tmp_path / "pepper", "secret\n")

    assert synced == [str(tmp_path / f".pepper.{os.getpid()}"), str(tmp_path)]


@pytest.mark.parametrize("mode_bits", [0o700, 0o755, 0o750, 0o711, 0o701])
def test_directory_of_somebody_elses_files_is_left_as_it_is(tmp_path: Path, mode_bits: int):
    home = tmp_path / "home"
    (home / "postgres").mkdir(parents=True)
    (home / "postgres" / "notes").write_text("mine")
    home.chmod(mode_bits)

    with pytest.raises(PrivateFileError, match="holds files that are not evenflow's"):
        make_private_dir(home)

    assert mode(home) == mode_bits
    assert os.listdir(home) == ["postgres"]


@pytest.mark.parametrize("content", [(), ("pepper",), ("admin.key", "notes"), ("up.lock", "logs")])
def test_directory_that_is_ours_is_closed_to_others(tmp_path: Path, content: tuple[str, ...]):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o755)
    for name in content:
        (data_dir / name).touch()

    make_private_dir(data_dir)

    assert mode(data_dir) == 0o700
    assert sorted(os.listdir(data_dir)) == sorted(content)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_open_directory_of_another_user_is_refused_and_left_as_it_is(tmp_path: Path):
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o755)
    os.chown(data_dir, 12345, 12345)

    with pytest.raises(PrivateFileError, match="belongs to user 12345"):
        make_private_dir(data_dir)

    assert mode(data_dir) == 0o755
