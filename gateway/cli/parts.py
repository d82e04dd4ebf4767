"""What the supervisor keeps: the seam between its rules and the processes, clocks and terminals behind them.

A `Part` can be started any number of times, one at a time; what it starts is a `Running`.
"""

import asyncio
import time
from collections import abc
from dataclasses import dataclass
from enum import Enum
from typing import Protocol


class Phase(Enum):
    """Where a part stands."""

    STARTING = "starting"
    READY = "ready"
    WAITING = "waiting"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Change:
    """A part is in `phase` now; `detail` is one line for people."""

    part: str
    phase: Phase
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a part ended: its exit code (negative: the signal that ended it) and the last lines that it printed."""

    code: int
    tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


class PartError(Exception):
    """A part did not come up. `fatal`: trying again cannot help; `refuses_settings`: because of what it was told."""

    def __init__(
        self,
        part: str,
        message: str,
        *,
        fatal: bool = False,
        refuses_settings: bool = False,
        tail: abc.Sequence[str] = (),
    ) -> None:
        super().__init__(f"{part} {message}")
        self.part = part
        self.fatal = fatal or refuses_settings
        self.refuses_settings = refuses_settings
        self.tail = tuple(tail)


class Running(Protocol):
    """A started part."""

    async def ready(self) -> None:
        """Return once it serves. Raises PartError if it ends, or takes too long, before that."""

    async def wait(self) -> Exit:
        """Return when it has ended. Several tasks may wait."""

    async def stop(self) -> None:
        """It has ended: asked at first, by force after its grace time. Idempotent."""

    def kill(self) -> None:
        """End it by force, now. Idempotent."""


class Part(Protocol):
    """Something that can be started."""

    @property
    def name(self) -> str: ...

    async def start(self) -> Running:
        """Raises PartError if it cannot even be started."""


class Clock(Protocol):
    """What the back-off measures and waits by."""

    def now_s(self) -> float: ...

    async def sleep(self, delay_s: float) -> None: ...


class MonotonicClock:
    """The machine's clock."""

    def now_s(self) -> float:
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
