"""Several traces on one clock, and traffic made to fit another engine: shorter, slower, smaller."""

from collections import abc
from dataclasses import dataclass
from heapq import merge
from itertools import takewhile
from operator import attrgetter

from engine.sim.traffic.errors import TrafficSpecError
from engine.sim.traffic.row import NANOS_PER_S, Arrival
from engine.sim.traffic.trace import Trace
from engine.sim.work import work_of


@dataclass(frozen=True, slots=True)
class Shape:
    """What to do to each arrival, in this order: cut by time and number, divide lengths, stretch time.

    length_divisor   lengths become max(min_tokens, ceil(length / divisor)), at most max_tokens; 1 leaves them alone
    time_stretch     2 is half the rate
    """

    max_requests: int | None = None
    max_seconds: float | None = None
    length_divisor: int = 1
    min_tokens: int = 4
    max_tokens: int = 512
    time_stretch: float = 1.0

    def __post_init__(self) -> None:
        if self.length_divisor < 1 or not 1 <= self.min_tokens <= self.max_tokens:
            raise TrafficSpecError(str(self.length_divisor), "lengths cannot be divided by that")
        if not 0 < self.time_stretch < float("inf"):
            raise TrafficSpecError(str(self.time_stretch), "time can be stretched by a finite factor above 0 only")


@dataclass(frozen=True, slots=True)
class Load:
    """How much a trace asks for."""

    num_requests: int
    span_s: float
    num_prompt_tokens: int
    num_output_tokens: int

    @property
    def work_per_s(self) -> float:
        """Offered work in cost units; everything at once counts as one second."""
        return work_of(self.num_prompt_tokens, self.num_output_tokens) / (self.span_s or 1.0)


def merge_traces(traces: abc.Sequence[Trace]) -> Trace:
    """All arrivals in order of time. Traces with a wall clock keep their distance, all others begin together."""
    starts = [trace.starts_at_ns for trace in traces if trace.starts_at_ns is not None]
    begin = min(starts, default=0)
    shifted = [_shifted(trace, (trace.starts_at_ns or begin) - begin) for trace in traces]
    if len(shifted) == 1:
        return traces[0]
    return Trace(
        "+".join(trace.name for trace in traces),
        lambda: merge(*shifted, key=attrgetter("at_ns")),
        tuple(note for trace in traces for note in trace.notes),
        begin if starts else None,
        tuple(note for trace in traces for note in trace.row_notes),
    )


def reshape(trace: Trace, shape: Shape) -> Trace:
    """The trace in that shape, with a note about what was changed."""
    notes = []
    if shape.length_divisor != 1:
        notes.append(f"lengths / {shape.length_divisor}, kept within {shape.min_tokens}..{shape.max_tokens} tokens")
    if shape.time_stretch != 1:
        notes.append(f"time stretched x {shape.time_stretch:.6g}")
    if shape == Shape():
        return trace
    return Trace(trace.name, lambda: _reshaped(trace, shape), (*trace.notes, *notes), row_notes=trace.row_notes)


def load_of(traffic: abc.Iterable[Arrival]) -> Load:
    """Reads the traffic to its end."""
    num_requests = prompt = output = first = last = 0
    for arrival in traffic:
        if not num_requests:
            first = arrival.at_ns
        num_requests += 1
        prompt += arrival.num_prompt_tokens
        output += arrival.num_output_tokens
        last = arrival.at_ns
    return Load(num_requests, (last - first) / NANOS_PER_S, prompt, output)


def stretch_for_load(load: Load, share: float, capacity_per_s: float) -> float:
    """The time stretch with which the load asks for `share` of a capacity in work per second."""
    if not (share > 0 and capacity_per_s > 0):
        raise TrafficSpecError(str(share), "load and capacity must be above 0")
    return load.work_per_s / (share * capacity_per_s)


def _shifted(trace: Trace, offset_ns: int) -> Trace:
    return reshape_rows(trace, offset_ns, 1.0) if offset_ns else trace


def reshape_rows(trace: Trace, offset_ns: int, stretch: float) -> Trace:
    """The same rows at `offset_ns + stretch * at_ns`."""

    def rows() -> abc.Iterator[Arrival]:
        for row in trace:
            yield _moved(row, offset_ns + (row.at_ns if stretch == 1 else round(row.at_ns * stretch)))

    return Trace(trace.name, rows, trace.notes, trace.starts_at_ns, trace.row_notes)


def _moved(row: Arrival, at_ns: int) -> Arrival:
    return Arrival(
        at_ns,
        row.tenant,
        row.num_prompt_tokens,
        row.num_output_tokens,
        row.priority_class,
        row.prefix_ids,
        row.prefix_block_size,
        row.cancel_after_ns,
        row.deadline_after_ns,
    )


def _reshaped(trace: Trace, shape: Shape) -> abc.Iterator[Arrival]:
    rows: abc.Iterator[Arrival] = iter(trace)
    if shape.max_seconds is not None:
        end_ns = round(shape.max_seconds * NANOS_PER_S)
        rows = takewhile(lambda row: row.at_ns < end_ns, rows)
    for number, row in enumerate(rows):
        if number == shape.max_requests:
            return
        yield _fitted(row, shape)


def _fitted(row: Arrival, shape: Shape) -> Arrival:
    at_ns = row.at_ns if shape.time_stretch == 1 else round(row.at_ns * shape.time_stretch)
    divisor = shape.length_divisor
    if divisor == 1:
        return row if at_ns == row.at_ns else _moved(row, at_ns)
    prompt, output = (
        min(shape.max_tokens, max(shape.min_tokens, -(-length // divisor)))
        for length in (row.num_prompt_tokens, row.num_output_tokens)
    )
    block_size = max(1, row.prefix_block_size // divisor) if row.prefix_ids else 0
    return Arrival(
        at_ns,
        row.tenant,
        prompt,
        output,
        row.priority_class,
        row.prefix_ids,
        block_size,
        row.cancel_after_ns,
        row.deadline_after_ns,
    )
