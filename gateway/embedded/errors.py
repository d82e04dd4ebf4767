"""Why the embedded server cannot run. Each message names the directory.

EmbeddedPostgresError
├── DirectoryInUseError         another process runs the server in this directory
├── ForeignDirectoryError       the directory holds something that this server did not make
├── DamagedDirectoryError       the directory is this server's, and parts of it are missing or unreadable
├── UnsuitableAccountError      the server cannot run under this operating system account
└── ServerStartError            the server did not come up; another try may succeed
"""

from pathlib import Path


class EmbeddedPostgresError(Exception):
    """Base of every error of the embedded server; `directory` is what it is about."""

    def __init__(self, directory: Path, reason: str) -> None:
        super().__init__(f"{directory}: {reason}")
        self.directory = directory


class DirectoryInUseError(EmbeddedPostgresError):
    """`pid` is the process that holds the directory, None where it could not be read."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        owner = "another process" if pid is None else f"process {pid}"
        super().__init__(directory, f"in use by {owner}; stop it, or choose another data directory")
        self.pid = pid


class ForeignDirectoryError(EmbeddedPostgresError):
    """Nothing in the directory was touched."""


class DamagedDirectoryError(EmbeddedPostgresError):
    """Nothing in the directory was touched."""


class UnsuitableAccountError(EmbeddedPostgresError):
    """The message says what would do."""


class ServerStartError(EmbeddedPostgresError):
    """The message says which step failed, and ends with the server's own reason or the last lines of its log."""
