"""Traffic that knows its name, and what has to be said beside any result of it."""

from collections import abc
from dataclasses import dataclass

from engine.sim.traffic.row import Arrival


@dataclass(frozen=True, slots=True)
class Trace:
    """`start_rows()` begins anew and gives the same arrivals each time, the first of them at 0 or later.

    notes         what was done to the data, one sentence each
    starts_at_ns  the wall clock's time at 0, where the source tells: several such traces are merged on it
    """

    name: str
    start_rows: abc.Callable[[], abc.Iterator[Arrival]]
    notes: tuple[str, ...] = ()
    starts_at_ns: int | None = None

    def __iter__(self) -> abc.Iterator[Arrival]:
        return self.start_rows()
