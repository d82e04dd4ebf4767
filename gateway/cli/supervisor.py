"""Keeps the parts of one machine running: start, watch, restart with back-off, stop in reverse order.

Knows no process, terminal or wall clock (see `parts`), so that its rules are tested without waiting. A part that never
serves is given up after `max_failed_starts`, at once if the failure is fatal. One that served and then ended is
restarted for ever, at growing distances that start over once it has served for `healthy_after_s`.
"""

import asyncio
from collections import abc
from dataclasses import dataclass
from typing import TypeVar

from gateway.cli.parts import Change, Clock, Part, PartError, Phase, Running

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    first_delay_s: float = 0.5
    max_delay_s: float = 30.0
    healthy_after_s: float = 60.0
    max_failed_starts: int = 3

    def delay_s(self, num_restarts: int) -> float:
        """The wait before restart `num_restarts`, counted from 1: doubling up to the cap."""
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_restarts - 1, 32))


class Keeper:
    """Keeps one part running from `run` to `stop`."""

    def __init__(self, part: Part, policy: RestartPolicy, clock: Clock, watch: abc.Callable[[Change], None]) -> None:
        self.part = part
        self.is_ready = asyncio.Event()
        self._policy = policy
        self._clock = clock
        self._watch = watch
        self._running: Running | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Start the part, and again whenever it has ended. Returns after `stop`; raises PartError when it gives up."""
        num_restarts = num_failed_starts = 0
        while not self._stopping.is_set():
            try:
                reason, served_s = await self._serve_once()
                num_failed_starts = 0
            except PartError as error:
                num_failed_starts += 1
                if not self._stopping.is_set() and (error.fatal or num_failed_starts >= self._policy.max_failed_starts):
                    self._report(Phase.FAILED, str(error))
                    raise
                reason, served_s = str(error), 0.0
            num_restarts = 1 if served_s >= self._policy.healthy_after_s else num_restarts + 1
            await self._back_off(reason, self._policy.delay_s(num_restarts))
        self._report(Phase.STOPPED)

    async def stop(self) -> None:
        """The part has ended, or ends as soon as it has started, and is not started again. Idempotent."""
        self._stopping.set()
        if self._running is not None:
            self._report(Phase.STOPPING)
            await self._running.stop()

    def kill(self) -> None:
        """End the part by force; it is not started again."""
        self._stopping.set()
        if self._running is not None:
            self._running.kill()

    async def _serve_once(self) -> tuple[str, float]:
        """The part has run from start to end: what ended it, and for how many seconds it served."""
        self._report(Phase.STARTING)
        running = self._running = await self.part.start()
        try:
            if self._stopping.is_set():
                return "stopped", 0.0
            await running.ready()
            self._report(Phase.READY)
            self.is_ready.set()
            began_s = self._clock.now_s()
            exit_ = await running.wait()
            return f"{self.part.name} {exit_}", self._clock.now_s() - began_s
        finally:
            self.is_ready.clear()
            await running.stop()
            self._running = None

    async def _back_off(self, reason: str, delay_s: float) -> None:
        if self._stopping.is_set():
            return
        self._report(Phase.WAITING, f"{reason}; starting again in {delay_s:g} s")
        pause, stop = asyncio.ensure_future(self._clock.sleep(delay_s)), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((pause, stop), return_when=asyncio.FIRST_COMPLETED)
        finally:
            pause.cancel()
            stop.cancel()

    def _report(self, phase: Phase, detail: str = "") -> None:
        self._watch(Change(self.part.name, phase, detail))


class Supervisor:
    """The keepers of one machine. Use as an async context manager: leaving it stops every part, the newest first."""

    def __init__(self, policy: RestartPolicy, clock: Clock, watch: abc.Callable[[Change], None]) -> None:
        self._policy = policy
        self._clock = clock
        self._watch = watch
        self._tasks: dict[Keeper, asyncio.Task[None]] = {}
        # The first part that was given up; the keepers' tasks come and go, this one stays.
        self._given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> "Supervisor":
        return self

    async def __aexit__(self, *_: object) -> None:
        for keeper in reversed(tuple(self._tasks)):
            await self.drop(keeper)
        self._given_up.cancel()

    def keep(self, part: Part) -> Keeper:
        """`part` is being started and kept running."""
        keeper = Keeper(part, self._policy, self._clock, self._watch)
        task = self._tasks[keeper] = asyncio.create_task(keeper.run(), name=f"keep {part.name}")
        task.add_done_callback(self._on_end)
        return keeper

    async def drop(self, keeper: Keeper) -> None:
        """The part has ended and is kept no longer."""
        task = self._tasks[keeper]
        try:
            await keeper.stop()
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            keeper.kill()
            raise
        del self._tasks[keeper]

    async def until_ready(self, *keepers: Keeper) -> None:
        """Return once all of `keepers` serve at the same time. Raises PartError if any part is given up first."""
        while not all(keeper.is_ready.is_set() for keeper in keepers):
            for keeper in keepers:
                await self.guard(keeper.is_ready.wait())

    async def guard(self, work: abc.Awaitable[Result]) -> Result:
        """The result of `work`. Raises PartError, and cancels `work`, if a part is given up before it is done."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._given_up), return_when=asyncio.FIRST_COMPLETED)
            if self._given_up.done():
                self._given_up.result()
            return await task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def kill(self) -> None:
        """End all parts by force, now."""
        for keeper in self._tasks:
            keeper.kill()

    def _on_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._given_up.done():
            self._given_up.set_exception(error)
            self._given_up.exception()  # whoever waits is told; if nobody does, nothing is lost
