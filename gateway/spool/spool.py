"""The queue of one process: a directory under a common root, with a lock, and segments in it.

The lock is the kernel's (`flock`), so it ends with the process however that ends; whoever gets the lock of another
directory takes over what is in it. A lock file that somebody has just removed is told by its inode. One thread at a
time. The root must be on a local file system.
"""

import contextlib
import fcntl
import os
import time
from collections import abc, deque
from dataclasses import dataclass, field
from pathlib import Path

from uuid_utils.compat import uuid7

from gateway.private_files import sync_directory
from gateway.spool.segment import SUFFIX, Segment

LOCK_FILE = "lock"
DRAFT_PREFIX = "."
SEGMENT_BYTES = 1 << 20


@dataclass(slots=True)
class Home:
    """A directory whose lock we hold. Written by Spool."""

    path: Path
    lock: int
    segments: deque[Segment] = field(default_factory=deque)

    def remove(self) -> None:
        """The directory is gone, unless something damaged is kept in it; the lock is free."""
        with contextlib.suppress(OSError):
            for segment in self.segments:
                segment.remove()
            (self.path / LOCK_FILE).unlink(missing_ok=True)
            self.path.rmdir()
        self.release()

    def release(self) -> None:
        os.close(self.lock)


class Spool:
    """`open` first. `num_records`, `num_bytes` and `num_damaged_bytes` may be read by any thread.

    `num_damaged_bytes` could not be read of the files that this process has done with.
    """

    def __init__(self, root: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.id = uuid7().hex  # in order of time, so that of several dead processes the oldest comes first
        self._root = root
        self._segment_bytes = segment_bytes
        self._own: Home | None = None
        self._adopted: deque[Home] = deque()
        self._reading: Segment | None = None
        self._num_segments_made = 0
        self.num_records = self.num_damaged_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of all files."""
        return sum(segment.num_bytes for home in self._homes() for segment in tuple(home.segments))

    @property
    def oldest_unix_s(self) -> float | None:
        """When the oldest record was appended; None where there is none."""
        ages = (segment.oldest_unix_s for home in self._homes() for segment in tuple(home.segments))
        return min((age for age in ages if age is not None), default=None)

    def open(self) -> None:
        """A directory of our own is there, and locked. Raises OSError."""
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Locked before it has the name under which others look for what is left.
        draft = self._root / f"{DRAFT_PREFIX}{self.id}"
        draft.mkdir(mode=0o700)
        lock = _lock(draft / LOCK_FILE, create=True)
        assert lock is not None, "nobody else knows the name"
        self._own = Home(draft.rename(self._root / self.id), lock)
        sync_directory(self._root)

    def adopt(self) -> int:
        """What dead processes left is ours now. Returns how many records that is. Raises OSError."""
        num_found = 0
        mine = {home.path for home in self._homes()}
        for path in sorted(self._root.iterdir()):
            if path in mine or path.name.startswith(DRAFT_PREFIX) or not path.is_dir():
                continue
            lock = _lock(path / LOCK_FILE, create=False)
            if lock is None:
                continue
            home = Home(path, lock)
            try:
                home.segments.extend(Segment.found(file) for file in sorted(path.glob(f"*{SUFFIX}")))
            except OSError:
                home.release()
                raise
            num_found += sum(segment.num_records for segment in home.segments)
            self._adopted.append(home)
            self._drop_empty()
        self.num_records += num_found
        return num_found

    def append(self, payloads: abc.Sequence[bytes]) -> None:
        """The records are on disk, behind all others. Raises OSError; then none of them is."""
        assert self._own is not None, "the spool is open"
        segments = self._own.segments
        if not segments or segments[-1].num_bytes >= self._segment_bytes:
            self._begin_segment(self._own)
        segments[-1].append(payloads, time.time())
        self.num_records += len(payloads)

    def head(self, limit: int) -> list[bytes]:
        """The oldest records, at most `limit` and of one segment. Raises OSError."""
        self._drop_empty()
        for home in self._homes():
            for segment in home.segments:
                if segment.num_records:
                    self._reading = segment
                    return segment.head(limit)
        return []

    def acknowledge(self, num_records: int) -> None:
        """As many of the last `head`, from its beginning, are not needed any more. Raises OSError."""
        assert self._reading is not None, "a head was read"
        self._reading.acknowledge(num_records)
        self.num_records -= num_records
        self._drop_empty()

    def close(self) -> None:
        """The locks are free; what was not acknowledged stays for whoever comes next. Idempotent."""
        with contextlib.suppress(OSError):
            self._drop_empty()
        for home in self._homes():
            for segment in home.segments:
                segment.close()
            if any(segment.num_records for segment in home.segments):
                home.release()
            else:
                home.remove()
        self._own = None
        self._adopted.clear()

    def _homes(self) -> list[Home]:
        """The oldest records are in the first."""
        return [*tuple(self._adopted), *([self._own] if self._own is not None else [])]

    def _begin_segment(self, home: Home) -> None:
        if home.segments:
            home.segments[-1].close()
            if len(home.segments) > 1:  # the head is being read
                home.segments[-1].unload()
        self._num_segments_made += 1
        segment = Segment(home.path / f"{self._num_segments_made:010}{SUFFIX}")
        segment.create()
        home.segments.append(segment)
        sync_directory(home.path)

    def _drop_empty(self) -> None:
        """No file is left whose records are all acknowledged, but for the one that is appended to, which is empty."""
        for home in self._homes():
            while home.segments and not home.segments[0].num_records:
                if home is self._own and len(home.segments) == 1:
                    if home.segments[0].num_bytes:
                        home.segments[0].clear()
                    break
                home.segments[0].remove()
                self.num_damaged_bytes += home.segments.popleft().num_damaged_bytes
        for home in [home for home in self._adopted if not home.segments]:
            self._adopted.remove(home)
            home.remove()


def _lock(path: Path, *, create: bool) -> int | None:
    """The lock of a directory, or None where somebody else has it or the directory is gone. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None
