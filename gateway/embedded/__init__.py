"""A PostgreSQL server of our own, for those who bring none."""

from gateway.embedded.errors import (
    DamagedDirectoryError,
    DirectoryInUseError,
    EmbeddedPostgresError,
    ForeignDirectoryError,
    ServerStartError,
    UnsuitableAccountError,
)
from gateway.embedded.server import EmbeddedOptions, EmbeddedPostgres

__all__ = [
    "DamagedDirectoryError",
    "DirectoryInUseError",
    "EmbeddedOptions",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "ForeignDirectoryError",
    "ServerStartError",
    "UnsuitableAccountError",
]
