"""What tests of the embedded server share: copies of its directory, their digests, and statements on its one table."""

import hashlib
import stat
import subprocess
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # it ships no types


def copy_tree(source: Path, target: Path) -> Path:
    """`target`, with the same owners and modes as `source`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)
    return target


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def tree_digest(root: Path) -> str:
    """Of every name, mode, time and content below `root`."""
    digest = hashlib.sha256()
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_uid} {status.st_mtime_ns}".encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()


async def read_answer(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval("SELECT answer FROM memory"))
    finally:
        await connection.close()
