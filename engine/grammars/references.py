"""What the references in a JSON schema mean, within its own document.

To which resource of the document a relative reference belongs is not told apart: it means whatever it may mean from any
of them, so that nothing is missed. Pure.
"""

from collections import abc
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, uses_relative

MAX_MEANINGS = 16  # resources of a document, and parts that one reference may mean; beyond, it cannot be followed
DOCUMENT_URL = "https://document.invalid/"  # what relative names begin with, where the document has none of its own
UNKNOWN_URL = "unknown:"  # of a resource whose name cannot be put together with that of the one around it
OLD_DRAFT = "draft-04"  # where `$id` is still `id`
# Schemas in a schema, as the library writes them; what stands beside them is never written.
_IN_PLACE = ("items", "additionalItems", "prefixItems", "additionalProperties", "allOf", "anyOf", "oneOf")
_BY_NAME = ("properties", "patternProperties")

Schema = dict[str, Any]  # JSON, not yet judged


class References:
    """Those of one document, each looked up once."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._roots_by_url: dict[str, list[object]] = {DOCUMENT_URL: [root]}
        self._parts_by_anchor: dict[tuple[str, str], list[object]] = {}
        self._meanings: dict[str, list[object]] = {}
        self._num_resources = 1
        self._index()

    def meanings(self, reference: object) -> list[object]:
        """The parts of the document that it may mean; none: it cannot be followed."""
        if not isinstance(reference, str) or self._num_resources > MAX_MEANINGS:
            return []
        if reference not in self._meanings:
            found = self._found(reference)
            self._meanings[reference] = found if len(found) <= MAX_MEANINGS else []
        return self._meanings[reference]

    def unfollowed(self) -> str | None:
        """A reference that cannot be followed, in a part that is written."""
        waiting, seen = [self._root], set[int]()
        while waiting:
            part = waiting.pop()
            if isinstance(part, list):
                waiting += part
            elif isinstance(part, dict) and id(part) not in seen:
                seen.add(id(part))
                meant = self.meanings(part["$ref"]) if "$ref" in part else []
                if "$ref" in part and not meant:
                    return str(part["$ref"])
                waiting += meant
                waiting += [part[key] for key in _IN_PLACE if key in part]
                for named in (part.get(key) for key in _BY_NAME):
                    waiting += named.values() if isinstance(named, dict) else ()
        return None

    def _index(self) -> None:
        is_old = any(OLD_DRAFT in str(part.get("$schema")) for part, _ in _parts(self._root, ()))
        id_keys = ("$id", "id") if is_old else ("$id",)
        for part, url in _parts(self._root, id_keys):
            names = [part.get(key) for key in id_keys]
            if any(isinstance(name, str) and not name.startswith("#") for name in names):
                self._roots_by_url.setdefault(url, []).append(part)
                self._num_resources += 1
            anchors = [name[1:] for name in names if isinstance(name, str) and name.startswith("#")]
            for anchor in (part.get("$anchor"), *anchors):
                if isinstance(anchor, str):
                    self._parts_by_anchor.setdefault((url, anchor), []).append(part)

    def _found(self, reference: str) -> list[object]:
        try:
            address, fragment = urldefrag(reference)
        except ValueError:  # it is no address at all
            return []
        urls = [_joined(url, address) if address else url for url in self._roots_by_url]
        name = unquote(fragment)
        found: list[object] = []
        for url in dict.fromkeys(urls):
            if url is not None and name and not name.startswith("/"):
                found += self._parts_by_anchor.get((url, name), [])
            elif url is not None:
                for root in self._roots_by_url.get(url, []):
                    found += _at(root, name.split("/")[1:])
        return found


def _parts(root: object, id_keys: abc.Sequence[str]) -> abc.Iterator[tuple[Schema, str]]:
    """Every object of the document, and the URL of the resource that it is in."""
    waiting = [(root, DOCUMENT_URL)]
    while waiting:
        part, url = waiting.pop()
        if isinstance(part, list):
            waiting += [(each, url) for each in part]
        elif isinstance(part, dict):
            for name in (part.get(key) for key in id_keys):
                if isinstance(name, str) and not name.startswith("#"):
                    url = _joined(url, name) or UNKNOWN_URL
            yield part, url
            waiting += [(each, url) for each in part.values()]


def _joined(base: str, address: str) -> str | None:
    """`address` as seen from `base`, without a fragment; None where the two cannot be put together."""
    try:
        is_relative = not urlsplit(address).scheme
        if is_relative and urlsplit(base).scheme not in uses_relative:
            return None
        return urldefrag(urljoin(base, address)).url
    except ValueError:
        return None


def _at(root: object, path: abc.Sequence[str]) -> list[object]:
    """The one part at the end of `path`, or none."""
    found = root
    for name in path:
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        elif isinstance(found, dict) and key in found:
            found = found[key]
        else:
            return []
    return [found]
