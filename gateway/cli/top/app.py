"""The live view on a terminal: a frame for each report, drawn anew in place, ordered by keys."""

import asyncio
import time
from collections import abc
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.widgets import Footer, Static

from gateway.cli.errors import CliError
from gateway.cli.top.figures import Figures, History, Sample, SortKey
from gateway.cli.top.frame import BAD, engine_lines, heading, team_headings, team_table
from gateway.cli.top.polling import Away, Poll, Reported

MIN_INTERVAL_S, MAX_INTERVAL_S = 0.2, 60.0


class TopApp(App[CliError]):
    """Runs until somebody quits, or until the gateway refuses for good: it then returns why."""

    CSS = """
    Screen { layout: vertical; }
    #notice { display: none; }
    #headings { margin-top: 1; }
    #scroll { height: 1fr; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[Binding | tuple[str, str] | tuple[str, str, str]]] = [
        Binding("q,escape", "quit", "quit"),
        Binding("s", "sort('share')", "share"),
        Binding("l", "sort('lead')", "lead"),
        Binding("t", "sort('tokens')", "tok/s"),
        Binding("w", "sort('waiting')", "wait"),
        Binding("n", "sort('name')", "name"),
        Binding("r", "reverse", "turn"),
        Binding("plus,equals_sign", "pace(2)", "slower", key_display="+"),
        Binding("minus", "pace(0.5)", "faster", key_display="-"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        poll: Poll,
        *,
        interval_s: float,
        key: SortKey,
        at_quit: abc.Callable[[], None] = lambda: None,
        clock: abc.Callable[[], float] = time.monotonic,
    ) -> None:
        """`poll` is called in a thread, once per interval, never twice at a time; `at_quit` ends one under way."""
        super().__init__(ansi_color=True)
        self._poll = poll
        self._at_quit = at_quit
        self._clock = clock
        self._interval_s = interval_s
        self._key = key
        self._is_reversed = False
        self._history = History()
        self._shown: tuple[Figures, str] | None = None
        self._away_since_s: float | None = None
        self._is_hurried = asyncio.Event()
        self._heading, self._notice = Static(Text("asking the gateway…"), id="heading"), Static(id="notice")
        self._engines, self._headings, self._teams = Static(id="engines"), Static(id="headings"), Static(id="teams")

    def compose(self) -> ComposeResult:
        yield self._heading
        yield self._notice
        yield self._engines
        yield self._headings
        with VerticalScroll(id="scroll"):
            yield self._teams
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#scroll").focus()
        self.run_worker(self._watch(), name="reports of the gateway", exit_on_error=True)

    def on_resize(self) -> None:
        self._draw()

    def on_unmount(self) -> None:
        self._at_quit()

    def action_sort(self, key: str) -> None:
        """Teams are in the order of `key`."""
        self._key = SortKey(key)
        self._draw()

    def action_reverse(self) -> None:
        """The last is first."""
        self._is_reversed = not self._is_reversed
        self._draw()

    def action_pace(self, factor: float) -> None:
        """Reports come `factor` times as far apart, from now on."""
        self._interval_s = min(MAX_INTERVAL_S, max(MIN_INTERVAL_S, self._interval_s * factor))
        self._is_hurried.set()
        self._draw()

    async def _watch(self) -> None:
        while True:
            try:
                answer = await asyncio.to_thread(self._poll)
            except CliError as error:
                self.exit(error)
                return
            self._take(answer)
            self._is_hurried.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval_s):
                    await self._is_hurried.wait()

    def _take(self, answer: Reported | Away) -> None:
        now_s = self._clock()
        self._notice.display = isinstance(answer, Away)
        if isinstance(answer, Away):
            self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
            length_s = now_s - self._away_since_s
            old = "; what follows is old" if self._shown else ""
            self._notice.update(Text(f"AWAY for {length_s:.0f} s: {answer.reason}; asked again and again{old}", BAD))
            return
        self._away_since_s = None
        self._shown = self._history.add(Sample(now_s, answer.status)), answer.address
        self._draw()

    def _draw(self) -> None:
        if self._shown is None:
            return
        figures, address = self._shown
        pace = f", drawn every {self._interval_s:g} s"
        self._heading.update(heading(figures, address).append(pace))
        self._engines.update(engine_lines(figures.status))
        # One column stays free for the scroll bar.
        width = max(1, self.size.width - 1)
        self._headings.update(team_headings(figures, width))
        self._teams.update(team_table(figures, width, self._key, is_reversed=self._is_reversed))
