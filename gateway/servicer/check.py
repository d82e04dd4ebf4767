"""Collects what is wrong with the fields of one request."""

from dataclasses import dataclass, field
from typing import TypeVar

from gateway.errors import FieldViolation, InvalidFieldError

MAX_VIOLATIONS = 32

Number = TypeVar("Number", int, float)


@dataclass(slots=True)
class Check:
    """Collects violations under a path, so that a caller learns of all of them at once, up to `MAX_VIOLATIONS`."""

    path: str
    violations: list[FieldViolation] = field(default_factory=list)

    def at(self, name: str) -> "Check":
        return Check(f"{self.path}.{name}" if self.path else name, self.violations)

    def require(self, ok: bool, description: str) -> None:
        if not ok and len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(FieldViolation(self.path, description))

    def within(self, value: Number, low: float, high: float, *, above_low: bool = False) -> Number:
        """`value`, in [low, high], or in (low, high]. NaN is in no range."""
        ok = low <= value <= high and not (above_low and value == low)
        self.require(ok, f"must be in {'(' if above_low else '['}{low}, {high}]")
        return value

    def finish(self) -> None:
        """Raises InvalidFieldError if anything was violated."""
        if self.violations:
            raise InvalidFieldError(*self.violations)
