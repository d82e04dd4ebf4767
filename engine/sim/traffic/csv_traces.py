"""The CSV formats.

azure     TIMESTAMP (wall clock, up to 9 digits of a second), ContextTokens, GeneratedTokens
          Source: Azure/AzurePublicDataset, Patel et al., Splitwise, ISCA 2024.
arena     tenant, arrival_s, prompt_tokens, output_tokens
          Source: Ying1123/VTC-artifact, Sheng et al., OSDI 2024, as a table.
burstgpt  Timestamp (s), Request tokens, Response tokens, and in version 1.2 Session ID; 0 response tokens is a request
          that failed, and is left out. Source: HPMLL/BurstGPT.

Columns may come in any order, and others are ignored.
"""

import csv
from calendar import timegm
from collections import abc
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from time import strptime

from engine.sim.traffic.errors import TraceError
from engine.sim.traffic.raw_rows import MAX_CLOCK_NS, RawRow, length_of, nanos_of
from engine.sim.traffic.row import NANOS_PER_S
from engine.sim.traffic.text_lines import text_lines


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """Names of the columns: those that must be there, and those that are read where they are there."""

    name: str
    time: str
    prompt: str
    output: str
    tenant: str | None = None
    conversation: str | None = None
    is_wall_clock: bool = False
    skips_empty_output: bool = False

    @property
    def required(self) -> tuple[str, ...]:
        columns = (self.time, self.prompt, self.output, self.tenant)
        return tuple(column for column in columns if column is not None)


AZURE = CsvFormat("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", is_wall_clock=True)
ARENA = CsvFormat("arena", "arrival_s", "prompt_tokens", "output_tokens", tenant="tenant")
BURSTGPT = CsvFormat(
    "burstgpt", "Timestamp", "Request tokens", "Response tokens", conversation="Session ID", skips_empty_output=True
)
CSV_FORMATS = (AZURE, ARENA, BURSTGPT)


def csv_rows(path: Path, layout: CsvFormat) -> abc.Iterator[RawRow]:
    """Raises TraceError for a missing column, a row of more or fewer, and a time or length that is none."""
    with closing(text_lines(path)) as lines:
        yield from _rows(path, lines, layout)


def _rows(path: Path, lines: abc.Iterable[str], layout: CsvFormat) -> abc.Iterator[RawRow]:
    reader, places, row = csv.reader(lines), None, 0
    while True:
        try:
            cells = next(reader, None)
            if cells is None and places is not None:
                return
            if places is None:
                places = _Places(layout, [name.strip() for name in cells or ()])
                continue
            if not cells:
                continue
            raw = places.parse(cells, reader.line_num, row)
        except (ValueError, csv.Error) as error:
            raise TraceError(path, max(1, reader.line_num), str(error)) from error
        row += 1
        if raw.num_output_tokens or not layout.skips_empty_output:
            yield raw


class _Places:
    """Where in a row each value stands. Raises ValueError where the header lacks a column."""

    def __init__(self, layout: CsvFormat, header: list[str]) -> None:
        if missing := [name for name in layout.required if name not in header]:
            raise ValueError(f"missing column {', '.join(missing)} (format {layout.name})")
        self._layout = layout
        self._time, self._prompt, self._output = (
            header.index(name) for name in (layout.time, layout.prompt, layout.output)
        )
        self._tenant, self._conversation = (
            header.index(name) if name in header else None for name in (layout.tenant, layout.conversation)
        )
        self._num_columns = len(header)

    def parse(self, cells: list[str], line: int, row: int) -> RawRow:
        layout = self._layout
        if len(cells) != self._num_columns:
            raise ValueError(f"{len(cells)} columns instead of {self._num_columns}")
        tenant = None if self._tenant is None else cells[self._tenant].strip()
        if tenant == "":
            raise ValueError(f"{layout.tenant} is empty")
        time = cells[self._time]
        return RawRow(
            line,
            row,
            wall_clock_ns(time) if layout.is_wall_clock else nanos_of(time, layout.time, NANOS_PER_S),
            length_of(cells[self._prompt], layout.prompt),
            length_of(cells[self._output], layout.output),
            tenant,
            None if self._conversation is None else cells[self._conversation].strip() or None,
        )


def wall_clock_ns(text: str) -> int:
    """Nanoseconds since 1970 of "YYYY-MM-DD HH:MM:SS[.fraction]", which is UTC. Raises ValueError."""
    text = text.strip().removesuffix("Z").removesuffix("+00:00")
    fraction = text[20:29]
    try:
        if text[19:20] not in ("", ".") or not (fraction or "0").isdecimal():
            raise ValueError("odd fraction")
        at_ns = _second_ns(text[:19]) + int(fraction.ljust(9, "0"))
    except ValueError:
        raise ValueError(f"{text!r} is not a time like 2023-11-16 18:15:46.6805900") from None
    if not 0 <= at_ns <= MAX_CLOCK_NS:
        raise ValueError(f"{text!r} is not within 1970 and 2116")
    return at_ns


@lru_cache(maxsize=16)
def _second_ns(text: str) -> int:
    return timegm(strptime(text.replace("T", " "), "%Y-%m-%d %H:%M:%S")) * NANOS_PER_S
