"""How far a simulation is, on stderr: a bar on a terminal, nothing elsewhere."""

import contextlib
from collections import abc

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engine.sim.traffic.row import NANOS_PER_S

EVERY = 256  # arrivals; to draw costs more than to simulate them


@contextlib.contextmanager
def traffic_progress(label: str, num_requests: int | None = None) -> abc.Iterator[abc.Callable[[int, int], None]]:
    """A callable for the arrivals so far and the virtual time in nanoseconds."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda num_arrivals, now: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=num_requests, figures="")

        def advance(num_arrivals: int, now: int) -> None:
            if num_arrivals % EVERY == 0:
                figures = f"{num_arrivals:,} requests, {now / NANOS_PER_S:,.0f} s simulated"
                bar.update(task, completed=num_arrivals, figures=figures)

        yield advance
