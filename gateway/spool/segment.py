"""One file of records. The newest one of a spool is appended to; of the others only the head is held in memory."""

import os
from collections import abc, deque
from pathlib import Path

import structlog

from gateway.spool.records import frame, scan

SUFFIX = ".seg"
DAMAGED_SUFFIX = ".damaged"

log = structlog.get_logger()


class Segment:
    """Records of one file, those that are not acknowledged yet being the last `num_records`.

    `num_damaged_bytes` of it were written once and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_records = 0
        self.num_bytes = 0
        self._num_acknowledged = 0
        self.num_damaged_bytes = 0
        self._payloads: list[bytes] | None = []
        self._file: int | None = None
        # (when they were appended, how many), the oldest first.
        self._groups: deque[tuple[float, int]] = deque()

    @classmethod
    def found(cls, path: Path) -> "Segment":
        """What another process left in `path`; may be empty. Raises OSError."""
        segment = cls(path)
        segment._load()
        segment.num_records = len(segment._payloads or ())
        segment.num_bytes = path.stat().st_size
        segment._groups.append((path.stat().st_mtime, segment.num_records))
        segment.unload()
        return segment

    @property
    def oldest_unix_s(self) -> float | None:
        """When the oldest record that is left was appended."""
        return self._groups[0][0] if self.num_records else None

    def create(self) -> None:
        """The file is there, empty, and can be appended to. Raises OSError."""
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def append(self, payloads: abc.Sequence[bytes], unix_s: float) -> None:
        """The records are on disk, all of them. Raises OSError; then the file is as it was, as far as it lets us."""
        assert self._payloads is not None, "only the newest segment is appended to"
        assert self._file is not None, "it was created here"
        data = b"".join(map(frame, payloads))
        try:
            _write_all(self._file, data)
            os.fdatasync(self._file)
        except OSError:
            os.ftruncate(self._file, self.num_bytes)
            raise
        self._payloads += payloads
        self.num_records += len(payloads)
        self.num_bytes += len(data)
        self._groups.append((unix_s, len(payloads)))

    def head(self, limit: int) -> list[bytes]:
        """The oldest records that are left, at most `limit`. Raises OSError."""
        if self._payloads is None:
            self._load()
        assert self._payloads is not None
        return self._payloads[self._num_acknowledged : self._num_acknowledged + limit]

    def acknowledge(self, num_records: int) -> None:
        """The oldest `num_records` are not needed any more."""
        assert num_records <= self.num_records
        self._num_acknowledged += num_records
        self.num_records -= num_records
        while num_records:
            unix_s, size = self._groups.popleft()
            if size > num_records:
                self._groups.appendleft((unix_s, size - num_records))
            num_records -= min(size, num_records)

    def clear(self) -> None:
        """The file is empty; all records of it are acknowledged. Raises OSError."""
        assert not self.num_records
        if self._file is not None:
            os.ftruncate(self._file, 0)
        self.num_bytes = self._num_acknowledged = 0
        self._payloads = []
        self._groups.clear()

    def unload(self) -> None:
        """The records are on disk only, until they are needed."""
        self._payloads = None

    def close(self) -> None:
        """Nothing more is appended."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """The file is gone; a damaged one is kept beside, for whoever wants to look. Raises OSError."""
        self.close()
        if self.num_damaged_bytes:
            self.path.replace(self.path.with_name(f"{self.path.name}{DAMAGED_SUFFIX}"))
        else:
            self.path.unlink(missing_ok=True)

    def _load(self) -> None:
        found = scan(self.path.read_bytes())
        if found.num_damaged_bytes and not self.num_damaged_bytes:
            self.num_damaged_bytes = found.num_damaged_bytes
            log.error("spool damaged", path=str(self.path), num_lost_bytes=found.num_damaged_bytes)
        self._payloads = list(found.payloads)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
