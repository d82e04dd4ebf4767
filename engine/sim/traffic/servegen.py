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
import math
from collections import abc
from contextlib import closing
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.sim.json_text import parse_json
from engine.sim.traffic.errors import TraceError, TrafficSpecError
from engine.sim.traffic.raw_rows import length_of, number_of
from engine.sim.traffic.row import MAX_SPAN_S, NANOS_PER_S, Arrival
from engine.sim.traffic.text_lines import text_lines

ROW_S = 600.0
ROW_COLUMNS = 6
MIN_RATE = 1e-9  # requests per second, while there are any
MAX_POOL_RATE = 2e4  # of all clients together, scaled: ten minutes of each are drawn at once
# Below, all requests of ten minutes come at one moment; Weibull gaps have most of their mean in a few that never come.
MIN_SHAPES = {"Gamma": 1e-3, "Weibull": 0.1}
MAX_SHAPE = 1e9  # above, gaps are all alike to the last digit
SLICE = 65_536  # requests that are made at a time
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

    @property
    def end_s(self) -> float:
        """When its last row ends."""
        return self.patterns[-1].start_s + ROW_S if self.patterns else self.window_start_s

    def arrivals(self, tenant: str, start_s: float, seed: int, rate_scale: float) -> abc.Iterator[Arrival]:
        """Its requests; `start_s` of the pool's clock is 0."""
        generator = np.random.default_rng([seed, self.number])
        for pattern in self.patterns:
            times = pattern.arrivals_s(generator, rate_scale) - start_s
            prompts = self.prompts.draw(generator, len(times))
            outputs = self.outputs.draw(generator, len(times))
            at_ns = np.rint(times * NANOS_PER_S).astype(np.int64)
            for begin in range(0, len(times), SLICE):
                columns = [column[begin : begin + SLICE].tolist() for column in (at_ns, prompts, outputs)]
                for time, prompt, output in zip(*columns, strict=True):
                    yield Arrival(time, tenant, prompt, output)


def read_clients(path: Path) -> list[ServeGenClient]:
    """The clients of a pool, in file order. Raises TraceError."""
    clients: dict[int, ServeGenClient] = {}
    span_s = math.inf, -math.inf
    with closing(text_lines(path)) as lines:
        for line_number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                client = _client(parse_json(line))
                if client.number in clients:
                    raise ValueError(f"client {client.number} has a line already")
                span_s = _wider(span_s, client)
            except ValueError as error:
                raise TraceError(path, line_number, str(error)) from error
            clients[client.number] = client
    if not any(client.patterns for client in clients.values()):
        raise TraceError(path, None, "no client of the pool sends any request")
    return list(clients.values())


def _wider(span_s: tuple[float, float], client: ServeGenClient) -> tuple[float, float]:
    """From when to when the pool's traffic goes, with this client's. Raises ValueError for more than ten years."""
    begin_s, end_s = min(span_s[0], client.window_start_s), max(span_s[1], client.end_s)
    if end_s - begin_s > MAX_SPAN_S:
        raise ValueError("the times of the pool's clients are more than ten years apart")
    return begin_s, end_s


def check_rate(path: Path, clients: abc.Iterable[ServeGenClient], rate_scale: float) -> None:
    """Raises TrafficSpecError where the clients' highest rates, scaled, are more than can be held in memory."""
    rate = rate_scale * sum(max((pattern.rate for pattern in client.patterns), default=0.0) for client in clients)
    if rate > MAX_POOL_RATE:
        problem = f"its clients send up to {rate:,.0f} requests/s, of which at most {MAX_POOL_RATE:,.0f} can be drawn"
        raise TrafficSpecError(str(path), problem)


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
    rows = record["trace_rows"]
    if not isinstance(rows, list) or not all(isinstance(row, list) and len(row) == ROW_COLUMNS for row in rows):
        raise ValueError(f"trace_rows must be a list of rows of {ROW_COLUMNS} values each")
    patterns = tuple(_pattern(row) for row in rows if row[3])
    window_start_s = number_of(record["window_start_s"], "window_start_s")
    if patterns and patterns[0].start_s < window_start_s:
        raise ValueError("the first of trace_rows that is not silent begins before window_start_s")
    if any(late.start_s < early.start_s + ROW_S for early, late in pairwise(patterns)):
        raise ValueError("the times of trace_rows must rise by 600 s or more")
    number = length_of(record["client"], "client")
    tables = (_table(record[name], name) for name in ("input_tokens", "output_tokens"))
    return ServeGenClient(number, window_start_s, patterns, *tables)


def _pattern(row: abc.Sequence[object]) -> _Pattern:
    start, rate, _, kind, shape, _ = row
    if kind not in ("Gamma", "Weibull"):
        raise ValueError(f"the pattern must be Gamma or Weibull, not {kind!r}")
    names = ("start of a row", "rate of a row", "shape of a row")
    numbers = [number_of(value, f"the {name}") for value, name in zip((start, rate, shape), names, strict=True)]
    pattern = _Pattern(numbers[0], numbers[1], str(kind), numbers[2])
    if not (MIN_RATE <= pattern.rate <= MAX_POOL_RATE and MIN_SHAPES[pattern.kind] <= pattern.shape <= MAX_SHAPE):
        raise ValueError(f"rate or shape of a pattern is out of range: {rate}, {shape}")
    if pattern.start_s < 0:
        raise ValueError(f"the start of a row must not be negative: {start}")
    return pattern


def _table(text: object, name: str) -> _Table:
    table = _literal(text) if isinstance(text, str) else None
    if not isinstance(table, dict) or not table:
        raise ValueError(f"{name} must be a table {{length: probability}}")
    lengths = np.array([max(1, length_of(length, name)) for length in table], dtype=np.int64)
    chances = np.array([number_of(chance, f"a probability of {name}") for chance in table.values()])
    total = float(chances.max()) * len(chances)  # no less than the sum, which may be too large to be made
    if not ((chances >= 0).all() and 0 < total < math.inf):
        raise ValueError(f"the probabilities of {name} must be finite and not negative, and one above 0")
    return _Table(lengths, np.cumsum(chances / chances.sum()))


def _literal(text: str) -> object:
    """The value that the text writes in Python. Raises ValueError."""
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"{text[:40]!r} is no table of numbers") from error
