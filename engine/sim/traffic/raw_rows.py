"""A row as its file has it, checked once: what every loader yields and every tenant rule reads."""

import math
from collections import abc
from pathlib import Path
from typing import NamedTuple

from engine.sim.traffic.errors import TraceError
from engine.sim.traffic.row import DEFAULT_CLASS, NANOS_PER_S, Arrival


class RawRow(NamedTuple):
    """`at_ns` is on the file's own clock · `tenant` None where the format has none · `conversation` groups the turns of
    one dialogue · `row` counts the data rows from 0, `line` the lines of the file from 1."""

    line: int
    row: int
    at_ns: int
    num_prompt_tokens: int
    num_output_tokens: int
    tenant: str | None = None
    conversation: str | None = None
    prefix_ids: tuple[int, ...] = ()
    prefix_block_size: int = 0
    priority_class: str = DEFAULT_CLASS
    cancel_after_ns: int | None = None
    deadline_after_ns: int | None = None


TenantRule = abc.Callable[[RawRow], str]
"""The tenant of a row, as a path "organization/team"."""


def to_arrivals(path: Path, rows: abc.Iterable[RawRow], tenant_of: TenantRule) -> abc.Iterator[Arrival]:
    """Arrivals whose first is at 0. Lengths of 0 become 1. Raises TraceError where a time goes back."""
    first = last = None
    for row in rows:
        at_ns = row.at_ns
        if first is None or last is None:
            first = last = at_ns
        if at_ns < last:
            raise TraceError(path, row.line, f"the time goes back by {(last - at_ns) / NANOS_PER_S:g} s; sort the rows")
        last = at_ns
        yield Arrival(
            at_ns - first,
            tenant_of(row),
            row.num_prompt_tokens or 1,
            row.num_output_tokens or 1,
            row.priority_class,
            row.prefix_ids,
            row.prefix_block_size,
            row.cancel_after_ns,
            row.deadline_after_ns,
        )


def length_of(value: object, name: str) -> int:
    """A number of tokens. Raises ValueError unless it is whole and not negative."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = _number(value, name)
    if type(value) is not int:
        if not isinstance(value, float) or not value.is_integer():
            raise ValueError(f"{name} must be a whole number of tokens, not {value!r}")
        value = int(value)
    if value < 0:
        raise ValueError(f"{name} must not be negative: {value}")
    return value


def nanos_of(value: object, name: str, unit_ns: int) -> int:
    """A time in units of `unit_ns`. Raises ValueError unless it is finite and not negative."""
    number = _number(value, name)
    if number < 0:
        raise ValueError(f"{name} must not be negative: {value}")
    return round(number * unit_ns)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r}")
    return number
