"""Traffic that knows its name, and what has to be said beside any result of it."""

from collections import abc
from dataclasses import dataclass, field

from engine.sim.traffic.row import Arrival


@dataclass(slots=True)
class RowNote:
    """A sentence that is true once a row that it is about was read; whoever reads the rows sets `is_true`."""

    text: str
    is_true: bool = False


@dataclass(frozen=True, slots=True)
class Trace:
    """`start_rows()` begins anew and gives the same arrivals each time, the first of them at 0 or later.

    notes         what was done to the data, one sentence each
    row_notes     what may have been done to some rows, known once they were read
    starts_at_ns  the wall clock's time at 0, where the source tells: several such traces are merged on it
    """

    name: str
    start_rows: abc.Callable[[], abc.Iterator[Arrival]]
    notes: tuple[str, ...] = ()
    starts_at_ns: int | None = None
    row_notes: tuple[RowNote, ...] = field(default=(), compare=False)

    def __iter__(self) -> abc.Iterator[Arrival]:
        return self.start_rows()

    @property
    def notes_of_rows(self) -> tuple[str, ...]:
        """Those of `row_notes` that are true of the rows that were read so far."""
        return tuple(note.text for note in self.row_notes if note.is_true)
