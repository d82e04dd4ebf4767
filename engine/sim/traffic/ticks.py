"""Arrivals whose clock ticks seldom, spread over the tick: salvos of ten requests that never happened would be measured
otherwise."""

from collections import abc
from heapq import heappop, heappush
from itertools import islice
from random import Random

from engine.sim.traffic.raw_rows import RawRow
from engine.sim.traffic.row import NANOS_PER_S

TICK_NS = 3 * NANOS_PER_S  # the clock of Mooncake's conversation trace
TICK_JITTER_NS = 5_000_000
NUM_ROWS_JUDGED = 200


def has_ticks(rows: abc.Iterable[RawRow]) -> bool:
    """Whether the first rows lie on a clock of 3 s: several at one time, all times near its multiples."""
    times = [row.at_ns for row in islice(rows, NUM_ROWS_JUDGED)]
    off_ticks = (min(time % TICK_NS, -time % TICK_NS) for time in times)
    return len(set(times)) < len(times) and times[-1] >= TICK_NS and all(off <= TICK_JITTER_NS for off in off_ticks)


def spread_over_ticks(rows: abc.Iterable[RawRow], seed: int) -> abc.Iterator[RawRow]:
    """Each row up to 3 s later, uniform; drawn in file order, then sorted. Holds the rows of one tick."""
    random = Random(seed).random  # noqa: S311 - traffic, not secrets
    held: list[tuple[int, int, RawRow]] = []
    for row in rows:
        while held and held[0][0] <= row.at_ns:
            yield heappop(held)[2]
        at_ns = row.at_ns + round(random() * TICK_NS)
        heappush(held, (at_ns, row.row, row._replace(at_ns=at_ns)))
    while held:
        yield heappop(held)[2]
