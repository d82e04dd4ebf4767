"""Traffic drawn from the clients of a ServeGen pool: one JSON object a line and client.

    client           its number: a tenant
    window_start_s   where the first row of `trace_rows` begins
    trace_rows       one row of 10 minutes each: start (s), requests/s, CV, pattern, two arguments; the gaps between
                     requests are Gamma or Weibull with that shape, an empty pattern is silence. The scale is set so
                     that their mean is 1/rate: the fitted one misses the row's own rate by a factor of up to 18
    input_tokens, output_tokens   text of a table {length: probability}

Each client has random numbers of its own, so that a scaled or cut pool keeps the others' draws.
Source: alibaba/ServeGen, Xiang et al., NSDI 2026.
"""

import ast
import json
import math
from collections import abc
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.sim.traffic.errors import TraceError
from engine.sim.traffic.raw_rows import length_of
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.traffic.text_lines import text_lines

ROW_S = 600.0
ROW_COLUMNS = 6
MAX_RATE = 1e5  # ten minutes of a client are drawn at once
MIN_SHAPE = 1e-3  # below, all requests of ten minutes come at one moment
REQUIRED = ("client", "window_start_s", "trace_rows", "input_tokens", "output_tokens")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Pattern:
    """`rate` requests/s for ten minutes from `start_s` on, with gaps of that `kind`: Gamma or Weibull."""

    start_s: float
    rate: float
    kind: str
    shape: float

    def arrivals_s(self, generator: np.random.Generator, rate_scale: float) -> Floats:
        """Times in [start_s, start_s + 600), with the rate scaled and the variation of the gaps kept."""
        mean_s = 1 / (self.rate * rate_scale)
        num_expected = int(ROW_S / mean_s) + 16
        times: list[Floats] = []
        end = 0.0
        while end < ROW_S:
            if self.kind == "Gamma":
                gaps = generator.gamma(self.shape, mean_s / self.shape, num_expected)
            else:
                gaps = generator.weibull(self.shape, num_expected) * (mean_s / math.gamma(1 + 1 / self.shape))
            batch: Floats = end + np.cumsum(gaps)
            times.append(batch)
            end = float(batch[-1])
        drawn = np.concatenate(times)
        return self.start_s + drawn[drawn < ROW_S]


@dataclass(frozen=True, slots=True)
class _Table:
    """Lengths and the cumulative probability of each."""

    lengths: Ints
    cumulative: Floats

    def draw(self, generator: np.random.Generator, num_draws: int) -> Ints:
        places = np.searchsorted(self.cumulative, generator.random(num_draws), side="right")
        return self.lengths[np.minimum(places, len(self.lengths) - 1)]


@dataclass(frozen=True, slots=True)
class ServeGenClient:
    """What one line says."""

    number: int
    window_start_s: float
    patterns: tuple[_Pattern, ...]
    prompts: _Table
    outputs: _Table

    def arrivals(self, tenant: str, start_s: float, seed: int, rate_scale: float) -> abc.Iterator[Arrival]:
        """Its requests; `start_s` of the pool's clock is 0."""
        generator = np.random.default_rng([seed, self.number])
        for pattern in self.patterns:
            times = pattern.arrivals_s(generator, rate_scale) - start_s
            prompts = self.prompts.draw(generator, len(times)).tolist()
            outputs = self.outputs.draw(generator, len(times)).tolist()
            at_ns = np.rint(times * NANOS_PER_S).astype(np.int64).tolist()
            for time, prompt, output in zip(at_ns, prompts, outputs, strict=True):
                yield Arrival(time, tenant, prompt, output)


def read_clients(path: Path) -> list[ServeGenClient]:
    """The clients of a pool, in file order. Raises TraceError."""
    clients = []
    for line_number, line in enumerate(text_lines(path), start=1):
        if line.isspace():
            continue
        try:
            clients.append(_client(json.loads(line)))
        except json.JSONDecodeError as error:
            raise TraceError(path, line_number, f"this is not JSON: {error.msg} at column {error.colno}") from error
        except (ValueError, TypeError, SyntaxError) as error:
            raise TraceError(path, line_number, str(error)) from error
    return clients


def pool_arrivals(
    clients: abc.Sequence[ServeGenClient], organization: str, seed: int, rate_scale: float
) -> abc.Iterator[Arrival]:
    """Everyone's requests in order of time; each client is a team of the organization."""
    start_s = min((client.window_start_s for client in clients), default=0.0)
    streams = [client.arrivals(f"{organization}/{client.number}", start_s, seed, rate_scale) for client in clients]
    return merge(*streams, key=attrgetter("at_ns"))


def _client(record: Any) -> ServeGenClient:  # parsed JSON, judged here
    if not isinstance(record, dict):
        raise ValueError("a line must hold one JSON object")
    if missing := [name for name in REQUIRED if name not in record]:
        raise ValueError(f"missing column {', '.join(missing)}")
    if not all(isinstance(row, list) and len(row) == ROW_COLUMNS for row in record["trace_rows"]):
        raise ValueError(f"each of trace_rows must hold {ROW_COLUMNS} values")
    patterns = tuple(_pattern(row) for row in record["trace_rows"] if row[3])
    if any(late.start_s < early.start_s + ROW_S for early, late in pairwise(patterns)):
        raise ValueError("the times of trace_rows must rise by 600 s or more")
    number = length_of(record["client"], "client")
    tables = (_table(record[name], name) for name in ("input_tokens", "output_tokens"))
    return ServeGenClient(number, float(record["window_start_s"]), patterns, *tables)


def _pattern(row: abc.Sequence[str]) -> _Pattern:
    start_s, rate, _, kind, shape, _ = row
    pattern = _Pattern(float(start_s), float(rate), kind, float(shape))
    if kind not in ("Gamma", "Weibull"):
        raise ValueError(f"the pattern must be Gamma or Weibull, not {kind!r}")
    if not (0 < pattern.rate <= MAX_RATE and MIN_SHAPE <= pattern.shape < math.inf and 0 <= pattern.start_s < math.inf):
        raise ValueError(f"rate, shape or start of a pattern is out of range: {rate}, {shape}, {start_s}")
    return pattern


def _table(text: str, name: str) -> _Table:
    table = ast.literal_eval(text) if isinstance(text, str) else None
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{name} must be a table {{length: probability}}")
    lengths = np.array([max(1, length_of(length, name)) for length in table], dtype=np.int64)
    chances = np.array(list(table.values()), dtype=np.float64)
    if not (np.isfinite(chances).all() and (chances >= 0).all() and chances.sum() > 0):
        raise ValueError(f"the probabilities of {name} must be finite and not negative")
    return _Table(lengths, np.cumsum(chances / chances.sum()))
