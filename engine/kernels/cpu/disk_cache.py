"""Compiled kernels on disk, so that a start compiles only what no start before it did.

An entry is found by everything that decides its code: our sources, numba, llvmlite and Python, the processor with its
features, the kernel's name with what is constant in it, and the types of its arguments. Nothing here can fail a start:
what cannot be read or used is compiled, and what cannot be written is compiled again next time, whatever the error.
Files are written beside their place and renamed, so that processes that start together see whole entries only.

numba's own `cache=True` is no help: it knows a closure by the constants in it, and those of ours are functions.
"""

import hashlib
import os
import pickle
import platform
import tempfile
from collections import abc
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

CACHE_VARIABLE = "EVENFLOW_CACHE"
MAX_VERSIONS = 4  # of our sources and numba, whose entries are kept

_DIGEST_BYTES = hashlib.sha256().digest_size
_WRITABLE_BY_OTHERS = 0o022


def cache_folder(environment: abc.Mapping[str, str]) -> Path | None:
    """`EVENFLOW_CACHE`, or `evenflow` in the user's folder for caches; None where there is neither."""
    if chosen := environment.get(CACHE_VARIABLE):
        return Path(chosen)
    if shared := environment.get("XDG_CACHE_HOME"):
        return Path(shared) / "evenflow"
    home = environment.get("HOME")
    return Path(home) / ".cache" / "evenflow" if home else None


@cache
def version() -> str:
    """Of everything but the processor that decides what a kernel is compiled to."""
    digest = hashlib.sha256()
    for part in (numba.__version__, llvmlite.__version__, platform.python_version(), platform.machine()):
        digest.update(f"{part}\0".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


class DiskCache:
    """What numba asks for a function's compiled forms, and gives them to; one function's, whose `name` says all that is
    constant in its code. `folder` None: nothing is kept."""

    def __init__(self, name: str, folder: Path | None) -> None:
        self._name = name
        self._folder: Path | None = None
        if folder is not None:
            with suppress(OSError):  # of our sources, which may be in no file
                self._folder = folder / "kernels" / version()

    @property
    def cache_path(self) -> str | None:
        """Where entries are."""
        return None if self._folder is None else os.fspath(self._folder)

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """The compiled form for `signature`; None: there is none that can be used."""
        with suppress(Exception):
            return self._load(signature, target_context)
        return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep `compiled`, where that is possible."""
        with suppress(Exception):
            self._save(signature, compiled)

    def enable(self) -> None:
        """numba's door to turn it on; it always is."""

    def disable(self) -> None:
        """From now on nothing is kept."""
        self._folder = None

    def flush(self) -> None:
        """Entries of other functions lie in the same folder: what is wrong is told by its name, never removed."""

    def _load(self, signature: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(signature, target_context.codegen())
        if path is None or not _is_private(path.parent):
            return None
        content = _read(path)
        digest, payload = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(payload).digest() != digest:
            return None
        # Ours, by the digest, and made by this version of everything: what it cannot be is a stranger's.
        return CompileResult._rebuild(target_context, *pickle.loads(payload))  # noqa: S301

    def _save(self, signature: Any, compiled: Any) -> None:
        path = self._path(signature, compiled.codegen)
        if path is None or compiled.library.has_dynamic_globals or compiled.lifted:
            return
        payload = dumps(compiled._reduce())
        if not path.parent.exists():
            path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            _forget_oldest(path.parent.parent)
        if _is_private(path.parent):
            _write(path, hashlib.sha256(payload).digest() + payload)

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        if self._folder is None:
            return None
        key = repr((self._name, str(signature), codegen.magic_tuple()))
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()}.kernel"


def _is_private(folder: Path) -> bool:
    """Whether nobody else can have put anything there: what is read from it is run."""
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & _WRITABLE_BY_OTHERS


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _write(path: Path, content: bytes) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        os.replace(name, path)
    except OSError:
        with suppress(OSError):
            os.unlink(name)
        raise


def _forget_oldest(folder: Path) -> None:
    """The entries of all but the newest versions are gone."""
    versions = sorted((path for path in folder.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime)
    for stale in versions[:-MAX_VERSIONS]:
        for path in stale.iterdir():
            path.unlink()
        stale.rmdir()
