"""A row as its file has it, checked once: what every loader yields and every tenant rule reads."""

import math
from collections import abc
from pathlib import Path
from typing import NamedTuple

from engine.sim.traffic.errors import TraceError
from engine.sim.traffic.row import DEFAULT_CLASS, MAX_SPAN_S, MAX_TOKENS, NANOS_PER_S, Arrival
from engine.sim.traffic.trace import RowNote

MAX_CLOCK_NS = 2**62  # 146 years; the wall clock has used up 56 of them


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


def to_arrivals(path: Path, rows: abc.Iterable[RawRow], tenant_of: TenantRule, zeros: RowNote) -> abc.Iterator[Arrival]:
    """Arrivals whose first is at 0. A length of 0 becomes 1, of which `zeros` tells.

    Raises TraceError where a time goes back or leaps ten years ahead, and for a row of neither prompt nor output.
    """
    first = last = None
    for row in rows:
        at_ns = row.at_ns
        if first is None or last is None:
            first = last = at_ns
        if at_ns < last:
            raise TraceError(path, row.line, f"the time goes back by {(last - at_ns) / NANOS_PER_S:g} s; sort the rows")
        if at_ns - first > MAX_SPAN_S * NANOS_PER_S:
            raise TraceError(path, row.line, "the time is more than ten years after that of the first row")
        if not row.num_prompt_tokens and not row.num_output_tokens:
            raise TraceError(path, row.line, "a request needs a prompt or an output, this one has 0 tokens of both")
        last = at_ns
        if not (row.num_prompt_tokens and row.num_output_tokens):
            zeros.is_true = True
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
    """A number of tokens. Raises ValueError unless it is whole, not negative, and at most MAX_TOKENS."""
    if isinstance(value, str):
        try:
            value = int(value)
        except ValueError:
            value = number_of(value, name)
    if type(value) is not int:
        if not isinstance(value, float) or not value.is_integer():
            raise ValueError(f"{name} must be a whole number of tokens, not {value!r:.80}")
        value = int(value)
    if value < 0:
        raise ValueError(f"{name} must not be negative: {value}")
    if value > MAX_TOKENS:
        raise ValueError(f"{name} must be at most {MAX_TOKENS:,} tokens")
    return value


def nanos_of(value: object, name: str, unit_ns: int) -> int:
    """A time in units of `unit_ns`. Raises ValueError unless it is not negative and below 146 years."""
    number = number_of(value, name)
    if number < 0:
        raise ValueError(f"{name} must not be negative: {value}")
    if number * unit_ns > MAX_CLOCK_NS:
        raise ValueError(f"{name} must be below 146 years, not {number:g}")
    return round(number * unit_ns)


def number_of(value: object, name: str) -> float:
    """A number, also as text. Raises ValueError unless it is finite."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name} must be a number, not {value!r:.80}")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {value!r:.80}") from None
    except OverflowError:
        raise ValueError(f"{name} is too large") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, not {value!r:.80}")
    return number
