"""Lines of a plain or gzip-compressed text file, streamed."""

import gzip
import zlib
from collections import abc
from pathlib import Path
from typing import IO

from engine.sim.json_text import is_text
from engine.sim.traffic.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"
MAX_LINE_CHARS = 64 * 2**20  # a client of a pool with weeks of rows has a few millions


def text_lines(path: Path) -> abc.Generator[str, None, None]:
    """Each line with its end. Raises TraceError where the file cannot be read or is not text."""
    line_number = 0
    try:
        with _open(path) as file:
            while line := file.readline(MAX_LINE_CHARS):
                line_number += 1
                _check(path, line_number, line)
                yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, line_number + 1, f"the compressed file is broken: {error}") from error
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from error


def first_line(path: Path) -> tuple[int, str]:
    """Number and text of the first line that is not empty. Raises TraceError where there is none."""
    for number, line in enumerate(text_lines(path), start=1):
        if line.strip():
            return number, line.strip()
    raise TraceError(path, None, "the file is empty")


def trace_name(path: Path) -> str:
    """The file's name without what follows its first dot; `?` stands for bytes in it that are no text."""
    name = path.name.partition(".")[0] or path.name
    return name.encode(errors="replace").decode()


def _check(path: Path, number: int, line: str) -> None:
    if not line.isascii() and not is_text(line):  # bytes that are no UTF-8 were read as halves of characters
        raise TraceError(path, number, "this is not text")
    if len(line) == MAX_LINE_CHARS:
        raise TraceError(path, number, f"the line has {MAX_LINE_CHARS:,} characters or more")


def _open(path: Path) -> IO[str]:
    try:
        with path.open("rb") as file:
            is_compressed = file.read(2) == GZIP_MAGIC
    except ValueError as error:  # no name of a file
        raise TraceError(path, None, str(error)) from error
    if is_compressed:
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")
