"""The directory of an installation: one owner at a time, short socket paths, nothing stale."""

import stat
from pathlib import Path

import pytest

from gateway.cli.data_dir import DataDir, DataDirError
from gateway.private_files import PrivateFileError
from gateway.settings import MAX_UNIX_PATH_BYTES


def test_directory_is_made_for_its_owner_only(tmp_path: Path):
    directory = DataDir(tmp_path / "deep" / "data")

    with directory.lock():
        assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700


def test_second_owner_is_told_who_the_first_one_is(tmp_path: Path):
    directory = DataDir(tmp_path)

    with directory.lock() as lock:
        lock.describe("127.0.0.1:50051")
        with pytest.raises(DataDirError, match=r"already running in .*: process \d+, serving 127\.0\.0\.1:50051"):
            directory.lock().__enter__()


def test_directory_is_free_again_afterwards_and_leaves_no_address(tmp_path: Path):
    directory = DataDir(tmp_path)

    with directory.lock():
        directory.endpoint.write_text("127.0.0.1:1")
    with directory.lock():
        assert not directory.endpoint.exists()


def test_address_of_a_killed_predecessor_is_dropped(tmp_path: Path):
    directory = DataDir(tmp_path)
    with directory.lock():
        pass
    directory.endpoint.write_text("127.0.0.1:1")

    with directory.lock():
        assert not directory.endpoint.exists()


def test_path_that_is_a_file_is_named(tmp_path: Path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(PrivateFileError, match=r"cannot use .*file"):
        DataDir(file).lock().__enter__()


@pytest.mark.parametrize("name", ["short", "long" * 40])
def test_socket_paths_are_short_however_long_the_directory_is(tmp_path: Path, name: str):
    directory = DataDir(tmp_path / name)

    with directory.lock(), directory.socket_dir() as sockets:
        assert len(bytes(sockets / "engine.sock")) <= MAX_UNIX_PATH_BYTES
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        is_elsewhere = directory.path not in sockets.parents
    assert is_elsewhere == (name != "short")
    assert sockets.exists() != is_elsewhere
