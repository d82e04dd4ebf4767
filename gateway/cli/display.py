"""What is shown of the parts: on a terminal a line for each that changes in place, plain lines elsewhere."""

import time
from collections import abc
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from gateway.cli.parts import Change, Phase

MARKS = {
    Phase.READY: Text("✓", style="green"),
    Phase.FAILED: Text("✗", style="red"),
    Phase.STOPPED: Text("·", style="dim"),
}
WORDS = {
    Phase.STARTING: "starting",
    Phase.READY: "ready",
    Phase.WAITING: "down",
    Phase.STOPPING: "stopping",
    Phase.STOPPED: "stopped",
    Phase.FAILED: "failed",
}


class Board:
    """The state of each part. Inside a `with` block a terminal shows it live; outside, changes are lines."""

    def __init__(self, console: Console, clock: abc.Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._phases: dict[str, Phase] = {}
        self._texts: dict[str, str] = {}
        self._started_s: dict[str, float] = {}
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def __enter__(self) -> "Board":
        if self._console.is_terminal:
            self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=10)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def change(self, change: Change) -> None:
        """A part is in another phase."""
        if change.phase is Phase.STARTING:
            self._started_s[change.part] = self._clock()
        text = f"{WORDS[change.phase]}: {change.detail}" if change.detail else WORDS[change.phase]
        if change.phase is Phase.READY:
            text += f" after {self._clock() - self._started_s[change.part]:.1f} s"
        self._show(change.part, text)
        self._phases[change.part] = change.phase

    def detail(self, part: str, text: str) -> None:
        """How far a part that starts has come."""
        if self._phases.get(part) is Phase.STARTING and self._texts[part] != text:
            self._show(part, text)

    def _show(self, part: str, text: str) -> None:
        self._texts[part] = text
        if self._live is None:
            self._console.print(f"{part:<9} {text}")

    def _render(self) -> RenderableType:
        table = Table.grid(padding=(0, 1))
        for part, phase in tuple(self._phases.items()):  # drawn by a thread of its own
            table.add_row(MARKS.get(phase, self._spinner), part, self._texts[part])
        return table
