"""One step in ten seconds, for the traces of the requests that it computed together. Belongs to the engine thread."""

from collections import abc
from dataclasses import dataclass

from engine.core.plan import StepPlan
from engine.core.scheduler import Scheduler
from engine.core.types import Nanos

EVERY_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class StepTold:
    """A step from plan to output: whose tokens it computed, and how many."""

    started_at: Nanos
    ended_at: Nanos
    generation_ids: tuple[str, ...]
    num_tokens: int


class StepWatch:
    """Called when a plan has been executed and is still open; tells of the first one, and of one in ten seconds."""

    def __init__(self, scheduler: Scheduler, tell: abc.Callable[[StepTold], object]) -> None:
        self._scheduler = scheduler
        self._tell = tell
        self._next_at = 0

    def __call__(self, plan: StepPlan, started_at: Nanos, ended_at: Nanos) -> None:
        if started_at < self._next_at or not plan.rows or self._scheduler.open_plan is None:
            return
        self._next_at = started_at + EVERY_NS
        _, step = self._scheduler.open_plan
        generation_ids = dict.fromkeys(seq.key.generation_id for seq in step.granted)
        self._tell(StepTold(started_at, ended_at, tuple(generation_ids), sum(plan.num_tokens)))
