"""Typed access to a mapping that a model's file holds. Every complaint names the file and the key."""

import math
from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model.errors import ModelFileError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class Fields:
    """The `values` in the file `path`, by keys that all begin with `prefix`. What is null counts as absent.

    Each method raises ModelFileError where the value, or the default in its place, makes no sense.
    """

    path: Path
    values: abc.Mapping[str, Any]  # Any: JSON or GGUF values, checked here
    prefix: str = ""

    def get(self, key: str, default: object = None) -> Any:  # Any: the caller checks it
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def is_null(self, key: str) -> bool:
        """Whether `key` is there and says that there is nothing."""
        return self.values.get(self.prefix + key, key) is None

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            kind = "a positive integer" if minimum == 1 else f"an integer from {minimum} on"
            raise ModelFileError(self.path, f"{self.prefix}{key} must be {kind}, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelFileError(self.path, f"{self.prefix}{key} must be a positive number, not {value!r}")
        return float(value)

    def flag(self, key: str, *, default: bool = False) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise ModelFileError(self.path, f"{self.prefix}{key} must be true or false, not {value!r}")
        return value

    def refuse_unless(self, key: str, *supported: object) -> None:
        """Raise UnsupportedModelError if `key` is there with a value that is not `supported`."""
        value = self.get(key)
        if value is not None and value not in supported:
            known = ", ".join(map(repr, supported))
            raise UnsupportedModelError(self.path, f"{self.prefix}{key} {value!r} is not supported, only {known}")

    def refuse_if_set(self, key: str) -> None:
        """Raise UnsupportedModelError if `key` is there and not false, null or zero."""
        if self.get(key):
            raise UnsupportedModelError(self.path, f"{self.prefix}{key} is not supported")
