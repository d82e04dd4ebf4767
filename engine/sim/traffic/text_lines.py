"""Lines of a plain or gzip-compressed text file, streamed."""

import gzip
import zlib
from collections import abc
from pathlib import Path
from typing import IO

from engine.sim.traffic.errors import TraceError

GZIP_MAGIC = b"\x1f\x8b"


def text_lines(path: Path) -> abc.Iterator[str]:
    """Each line with its end. Raises TraceError where the file cannot be read or is not text."""
    line_number = 0
    try:
        with _open(path) as file:
            for line_number, line in enumerate(file, start=1):  # noqa: B007 - the error below names the last good line
                yield line
    except UnicodeDecodeError as error:
        raise TraceError(path, line_number + 1, "this is not text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, line_number + 1, f"the compressed file is broken: {error}") from error
    except OSError as error:
        raise TraceError(path, None, error.strerror or str(error)) from error


def first_line(path: Path) -> str:
    """The first line that is not empty. Raises TraceError where there is none."""
    for line in text_lines(path):
        if line.strip():
            return line.strip()
    raise TraceError(path, None, "the file is empty")


def trace_name(path: Path) -> str:
    """The file's name without what follows its first dot."""
    return path.name.partition(".")[0] or path.name


def _open(path: Path) -> IO[str]:
    with path.open("rb") as file:
        is_compressed = file.read(2) == GZIP_MAGIC
    if is_compressed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")
