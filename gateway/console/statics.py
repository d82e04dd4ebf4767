"""Files that pages refer to, read once from the package.

Their addresses have a hash of what they hold, so that a browser keeps them for ever, and asks anew after an update.
"""

import hashlib
from collections import abc
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from starlette.requests import Request
from starlette.responses import Response

from gateway.console.routes import ROOT
from gateway.errors import NotFoundError

HASH_CHARS = 16
FOREVER = "public, max-age=31536000, immutable"
MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    media_type: str
    digest: str


class Statics:
    """The files of `gateway/console/static`."""

    def __init__(self) -> None:
        own = files("gateway.console") / "static"
        self._file_by_name = {each.name: _read(each) for each in own.iterdir() if _suffix(each.name) in MEDIA_TYPES}

    def url(self, name: str) -> str:
        """Raises KeyError for a file that is not there."""
        return f"{ROOT}/static/{self._file_by_name[name].digest}/{name}"

    @property
    def names(self) -> abc.Iterable[str]:
        return self._file_by_name.keys()

    def respond(self, request: Request) -> Response:
        """Raises NotFoundError."""
        digest, _, name = str(request.path_params["path"]).partition("/")
        found = self._file_by_name.get(name)
        if found is None:
            raise NotFoundError("the file")
        etag = f'"{found.digest}"'
        # An address of another release gets what there is now, and is not kept.
        headers = {"etag": etag, "cache-control": FOREVER if digest == found.digest else "no-cache"}
        if etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(found.body, headers=headers, media_type=found.media_type)


def _read(found: Traversable) -> StaticFile:
    body = found.read_bytes()
    return StaticFile(body, MEDIA_TYPES[_suffix(found.name)], hashlib.sha256(body).hexdigest()[:HASH_CHARS])


def _suffix(name: str) -> str:
    return name[name.rfind(".") :] if "." in name else ""
