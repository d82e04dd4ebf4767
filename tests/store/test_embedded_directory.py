"""A directory that is not the embedded server's own, or not whole, is named and left exactly as it is."""

import json
import os
from collections import abc
from pathlib import Path

import pytest

from gateway.embedded import (
    DamagedDirectoryError,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    ForeignDirectoryError,
    UnsuitableAccountError,
)
from tests.store.server_directories import copy_tree, execute, read_answer, tree_digest


def _no_marker(root: Path) -> None:
    (root / "evenflow.json").unlink()


def _other_release(root: Path) -> None:
    _edit_marker(root, postgres_major=17)


def _other_format(root: Path) -> None:
    _edit_marker(root, format=2)


def _edit_marker(root: Path, **fields: object) -> None:
    marker = root / "evenflow.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), **fields}))


def _broken_marker(root: Path) -> None:
    (root / "evenflow.json").write_text('{"format": 1, ')


def _no_data(root: Path) -> None:
    (root / "data").rename(root.parent / "moved")


def _no_control_file(root: Path) -> None:
    (root / "data/global/pg_control").unlink()


def _torn_control_file(root: Path) -> None:
    path = root / "data/global/pg_control"
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(content)


def _empty_control_file(root: Path) -> None:
    (root / "data/global/pg_control").write_bytes(b"")


def _no_log(root: Path) -> None:
    (root / "data/pg_wal").rename(root.parent / "moved")


def _other_data_version(root: Path) -> None:
    (root / "data/PG_VERSION").write_text("16\n")


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (_no_marker, ForeignDirectoryError, "not made by evenflow"),
        (_other_release, DamagedDirectoryError, "PostgreSQL 17, this is 18"),
        (_other_format, DamagedDirectoryError, "has format 2"),
        (_broken_marker, DamagedDirectoryError, "evenflow.json cannot be read"),
        (_no_data, DamagedDirectoryError, "data/PG_VERSION is missing"),
        (_no_control_file, DamagedDirectoryError, "data/global/pg_control is missing"),
        (_torn_control_file, DamagedDirectoryError, "pg_control is damaged"),
        (_empty_control_file, DamagedDirectoryError, "pg_control is damaged"),
        (_no_log, DamagedDirectoryError, "data/pg_wal is missing"),
        (_other_data_version, DamagedDirectoryError, "PG_VERSION says '16', expected 18"),
    ],
)
async def test_a_damaged_directory_is_named_and_left_as_it_is(
    skeleton: Path,
    tmp_path: Path,
    damage: abc.Callable[[Path], None],
    error: type[EmbeddedPostgresError],
    reason: str,
) -> None:
    data_dir = copy_tree(skeleton, tmp_path / "data")
    damage(data_dir / "postgres")
    before = tree_digest(data_dir)

    with pytest.raises(error) as refusal:
        await EmbeddedPostgres(data_dir).start()

    assert reason in str(refusal.value)
    assert refusal.value.directory == data_dir / "postgres"
    assert str(data_dir / "postgres") in str(refusal.value)
    assert tree_digest(data_dir) == before


async def test_a_foreign_directory_is_left_as_it_is(tmp_path: Path) -> None:
    foreign = tmp_path / "postgres"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("unsaved")
    before = tree_digest(tmp_path)

    with pytest.raises(ForeignDirectoryError, match="not empty"):
        await EmbeddedPostgres(tmp_path).start()

    assert tree_digest(tmp_path) == before


async def test_somebody_elses_database_is_left_as_it_is(tmp_path: Path, data_dir: Path) -> None:
    foreign = tmp_path / "other"
    foreign.mkdir()
    (data_dir / "postgres" / "data").rename(foreign / "postgres")
    before = tree_digest(foreign)

    with pytest.raises(ForeignDirectoryError):
        await EmbeddedPostgres(foreign).start()

    assert tree_digest(foreign) == before


async def test_a_file_in_the_directorys_place_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "postgres").write_text("mine")

    with pytest.raises(ForeignDirectoryError, match="not a directory"):
        await EmbeddedPostgres(tmp_path).start()

    assert (tmp_path / "postgres").read_text() == "mine"


async def test_an_interrupted_first_start_is_begun_again(tmp_path: Path) -> None:
    root = tmp_path / "postgres"
    (root / "data.new" / "base").mkdir(parents=True)
    (root / "data.new" / "PG_VERSION").write_text("18")
    (root / "evenflow.json").write_text('{"format": 1, "postgres_major": 18, "is_initialized": false}')
    server = EmbeddedPostgres(tmp_path)

    await execute(await server.start(), "SELECT 1")

    assert not (root / "data.new").exists()
    await server.stop()


def _forget_data(root: Path) -> None:
    """As a first start leaves it that is killed when `data/` has its name and the marker is still to be written."""
    _edit_marker(root, is_initialized=False)


async def test_data_whose_marker_is_still_to_be_written_is_kept(data_dir: Path) -> None:
    _forget_data(data_dir / "postgres")
    server = EmbeddedPostgres(data_dir)

    assert await read_answer(await server.start()) == 42

    assert json.loads((data_dir / "postgres" / "evenflow.json").read_text())["is_initialized"] is True
    await server.stop()


async def test_data_without_a_marker_that_knows_it_is_checked_as_any_other(skeleton: Path, tmp_path: Path) -> None:
    data_dir = copy_tree(skeleton, tmp_path / "data")
    _forget_data(data_dir / "postgres")
    _torn_control_file(data_dir / "postgres")
    before = tree_digest(data_dir)

    with pytest.raises(DamagedDirectoryError, match="pg_control is damaged"):
        await EmbeddedPostgres(data_dir).start()

    assert tree_digest(data_dir) == before


async def test_a_first_start_that_was_killed_while_it_wrote_its_first_marker_is_begun_again(tmp_path: Path) -> None:
    root = tmp_path / "postgres"
    root.mkdir()
    (root / "evenflow.json.new").write_text('{"format": 1, "post')
    server = EmbeddedPostgres(tmp_path)

    await execute(await server.start(), "SELECT 1")

    await server.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("before_the_marker", [False, True])
async def test_another_users_data_is_left_as_it_is(skeleton: Path, tmp_path: Path, before_the_marker: bool) -> None:
    data_dir = copy_tree(skeleton, tmp_path / "data")
    if before_the_marker:
        _forget_data(data_dir / "postgres")
    os.chown(data_dir / "postgres" / "data", 12345, 12345)
    before = tree_digest(data_dir)

    with pytest.raises(UnsuitableAccountError, match="belongs to user 12345"):
        await EmbeddedPostgres(data_dir).start()

    assert tree_digest(data_dir) == before
