"""What every tenant was served at one moment of the history, kept small: there are thousands of them, and many moments.

Names are shared with the moment before; figures are in arrays, in the order of the names.
"""

from array import array
from bisect import bisect_left
from collections import abc

from gateway.fair_shares import Path
from gateway.served import Served


class ServedByTenant(abc.Mapping[Path, Served]):
    """A mapping of some 32 bytes a tenant. Never changes."""

    def __init__(self, served: abc.Mapping[Path, Served], before: "ServedByTenant | None" = None) -> None:
        known = {} if before is None else {path: path for path in before.paths}
        self.paths: tuple[Path, ...] = tuple(known.get(path, path) for path in sorted(served))
        if before is not None and before.paths == self.paths:
            self.paths = before.paths
        self._prompt_tokens = array("d", (served[path].prompt_tokens for path in self.paths))
        self._output_tokens = array("d", (served[path].output_tokens for path in self.paths))
        self._work = array("d", (served[path].work for path in self.paths))

    def __getitem__(self, path: Path) -> Served:
        index = bisect_left(self.paths, path)
        if index == len(self.paths) or self.paths[index] != path:
            raise KeyError(path)
        return Served(self._prompt_tokens[index], self._output_tokens[index], self._work[index])

    def __iter__(self) -> abc.Iterator[Path]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)

    def works(self) -> abc.Iterator[tuple[Path, float]]:
        """The work of each, without looking anything up."""
        return zip(self.paths, self._work, strict=True)

    def of(self, paths: abc.Collection[Path]) -> dict[Path, Served]:
        """Those of `paths` that were served anything."""
        if len(paths) * len(self.paths).bit_length() < len(self.paths):
            return {path: self[path] for path in paths if path in self}
        rows = zip(self.paths, self._prompt_tokens, self._output_tokens, self._work, strict=True)
        return {path: Served(*figures) for path, *figures in rows if path in paths}
