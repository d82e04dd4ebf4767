"""What API keys' secrets are hashed with: secrets by version, so that one can be replaced without an outage.

A pepper's text is one secret, which is version 1, or lines `VERSION:SECRET`. The highest version hashes what is new;
older ones check what was hashed before, until every hash was renewed by use. Owns the form; knows no key and no store.
"""

import re
from collections import abc
from dataclasses import dataclass
from pathlib import Path

from gateway import api_key

MIN_PEPPER_BYTES = 16
_LINE = re.compile(rb"([1-9][0-9]{0,8}):(\S+)")


class PepperError(ValueError):
    """The text is no pepper. Holds nothing of it."""


@dataclass(frozen=True, slots=True)
class Peppers:
    """At least one secret."""

    by_version: abc.Mapping[int, bytes]

    @classmethod
    def parse(cls, raw: bytes) -> "Peppers":
        """Raises PepperError for a secret that is too short and a version that is there twice."""
        lines = [line.strip() for line in raw.strip().splitlines()]
        matches = [_LINE.fullmatch(line) for line in lines]
        if not lines or not all(matches):
            pairs = [(1, raw.strip())]
        else:
            pairs = [(int(match[1]), match[2]) for match in matches if match is not None]
        if any(len(secret) < MIN_PEPPER_BYTES for _, secret in pairs):
            raise PepperError(f"holds fewer than {MIN_PEPPER_BYTES} bytes")
        if len({version for version, _ in pairs}) < len(pairs):
            raise PepperError("has a version twice")
        return cls(dict(pairs))

    @property
    def version(self) -> int:
        """The one that hashes what is new."""
        return max(self.by_version)

    @property
    def newest(self) -> bytes:
        return self.by_version[self.version]

    def digest(self, secret: str) -> bytes:
        """What is stored in place of `secret`, together with `version`."""
        return api_key.digest(self.newest, secret)

    def is_match(self, secret: str, digest: bytes, version: int) -> bool:
        """Whether `digest` was made of `secret` by the pepper of this version; false for a version that is not here."""
        pepper = self.by_version.get(version)
        return pepper is not None and api_key.is_match(pepper, secret, digest)

    def with_new(self, secret: bytes) -> bytes:
        """The text of these and one more, which is the newest."""
        versions = {**self.by_version, self.version + 1: secret}
        return b"".join(b"%d:%s\n" % item for item in sorted(versions.items()))


class PepperSource:
    """The peppers of this process; read again from their file when a hash names a version that is not there."""

    def __init__(self, peppers: Peppers, path: Path | None = None) -> None:
        self.current = peppers
        self._path = path
        self._seen: tuple[int, int] | None = None

    def has(self, version: int) -> bool:
        """Whether the version is known now. Looks at the file only if it is not, and reads it only if it changed."""
        if version not in self.current.by_version and self._path is not None:
            self._reload(self._path)
        return version in self.current.by_version

    def _reload(self, path: Path) -> None:
        try:
            status = path.stat()
            if self._seen != (status.st_mtime_ns, status.st_size):
                self._seen = (status.st_mtime_ns, status.st_size)
                self.current = Peppers.parse(path.read_bytes())
        except (OSError, PepperError):
            return  # what was good stays; whoever asks hears that the version is not here
