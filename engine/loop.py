"""The engine thread: commands in, events out, and between them plan, execute, commit. The only reader of the clock.

In: a `SimpleQueue` of commands, from any thread. Out: after each step one call of `deliver` with everything that
happened, each update addressed to the outlet that its request came with. Knows nothing of gRPC, asyncio or tensors;
the scheduler and the runner are touched by this thread only, so neither needs a lock.
"""

import time
from collections import abc, deque
from dataclasses import KW_ONLY, dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

import structlog

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.events import Event, Finished
from engine.core.plan import StepOutput, StepPlan
from engine.core.scheduler import Scheduler
from engine.core.stats import SchedulerStats
from engine.core.types import FinishReason, Nanos, PriorityClass, Request
from engine.errors import RefusedError, RunnerFailedError

log = structlog.get_logger(__name__)

MAX_FAILURES_IN_A_ROW = 3  # one can be a request's fault; a device that is gone fails every step
MEASURED_STEPS = 256
MAX_SLEEP_S = 3600.0  # waiting longer overflows, some day
STEP_FAILED = "the engine could not compute the request"


class Runner(Protocol):
    """Computes a step. What it raises ends every request that is running or waiting."""

    def execute(self, plan: StepPlan) -> StepOutput: ...


Refusal = DuplicateRequestError | RequestTooLargeError | RefusedError


@dataclass(frozen=True, slots=True)
class Accepted:
    """The scheduler has the request."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The request is not served, and why. The loop itself refuses what the scheduler refuses."""

    error: Refusal


@dataclass(frozen=True, slots=True)
class LoopStats:
    """Figures of this moment; `mean_step_ms` of the last 256 steps."""

    scheduler: SchedulerStats
    num_steps: int
    mean_step_ms: float
    uptime_s: float


Update = Accepted | Refused | LoopStats | Event


class Outlet(Protocol):
    """Where the updates of one command's request go; `put` is called in order, by whoever `deliver` leads to."""

    def put(self, update: Update, at: Nanos) -> None: ...


class Delivery(NamedTuple):
    """`update` happened `at` that moment and belongs to `outlet`."""

    outlet: Outlet
    update: Update
    at: Nanos


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue the request. `outlet` gets Accepted or Refused, then its events up to Finished."""

    outlet: Outlet
    request: Request


@dataclass(frozen=True, slots=True)
class Abort:
    """End the request that `outlet` belongs to; nothing happens if it has ended."""

    outlet: Outlet
    generation_id: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Grant:
    """Raise the output tokens allowed so far to `max_output_tokens`."""

    outlet: Outlet
    generation_id: str
    max_output_tokens: int


@dataclass(frozen=True, slots=True)
class SetReaderBlocked:
    """Pause the request while its reader cannot take more."""

    outlet: Outlet
    generation_id: str
    _: KW_ONLY
    blocked: bool


@dataclass(frozen=True, slots=True)
class SetClass:
    """Serve the request in another class from now on."""

    outlet: Outlet
    generation_id: str
    priority_class: PriorityClass


@dataclass(frozen=True, slots=True)
class ReadStats:
    """`outlet` gets a LoopStats."""

    outlet: Outlet


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop after the commands before this one; unfinished requests hear nothing more."""


Control = Abort | Grant | SetReaderBlocked | SetClass
Command = Submit | Control | ReadStats | Stop


class EngineLoop:
    """Drives one scheduler and one runner. `run` belongs to the engine thread, `submit` and `now` to everyone."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        deliver: abc.Callable[[list[Delivery]], object],
        clock: abc.Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._deliver = deliver
        self._clock = clock
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._outlets: dict[str, Outlet] = {}
        self._outbox: list[Delivery] = []
        self._is_stopped = False
        self._started_at = self.now()
        self._num_steps = 0
        self._num_failures_in_a_row = 0
        self._step_ns: deque[int] = deque(maxlen=MEASURED_STEPS)

    def submit(self, command: Command) -> None:
        """Hand in a command; it takes effect before the next plan."""
        self._commands.put(command)

    def now(self) -> Nanos:
        """This moment on the clock that requests' arrivals and deadlines are measured by."""
        return Nanos(self._clock())

    def run(self) -> None:
        """Serves until a Stop command. Raises RunnerFailedError after repeated failures, and the scheduler's bugs."""
        is_busy = True
        while not self._is_stopped:
            self.take_commands(wait=not is_busy)
            is_busy = self.step()

    def take_commands(self, *, wait: bool = False) -> None:
        """Apply the queued commands. With `wait`, sleep first until there is one or a deadline has come."""
        try:
            command = self._commands.get(block=wait, timeout=self._sleep_s() if wait else None)
            while True:
                self._apply(command)
                command = self._commands.get_nowait()
        except Empty:
            return

    def step(self) -> bool:
        """One turn of the engine. False if there was nothing to compute."""
        now = self.now()
        self._emit(self._scheduler.expire(now))
        plan = self._scheduler.plan(now)
        self._publish()  # what commands and deadlines did need not wait for the step
        if plan is None:
            return False
        started_at = self.now()
        output = self._execute(plan)
        if output is not None:
            self._emit(self._scheduler.commit(output, self.now()))
            self._count_step(self.now() - started_at)
        self._publish()
        if self._num_failures_in_a_row == MAX_FAILURES_IN_A_ROW:
            raise RunnerFailedError(self._num_failures_in_a_row)
        return True

    def _execute(self, plan: StepPlan) -> StepOutput | None:
        """The plan's output; None if the runner raised, and then every request has ended."""
        try:
            return self._runner.execute(plan)
        except Exception:  # whatever a device throws ends the requests, not the process
            self._num_failures_in_a_row += 1
            log.exception("step failed", step_id=plan.step_id, num_rows=len(plan.rows), num_requests=len(self._outlets))
            self._emit(self._scheduler.fail_all(STEP_FAILED, self.now()))
            return None

    def _count_step(self, step_ns: int) -> None:
        self._num_steps += 1
        self._num_failures_in_a_row = 0
        self._step_ns.append(step_ns)

    def _apply(self, command: Command) -> None:
        match command:
            case Submit():
                self._add(command)
            case ReadStats(outlet):
                self._outbox.append(Delivery(outlet, self._stats(), self.now()))
            case Stop():
                self._is_stopped = True
            # A request that has ended, or a duplicate that was refused, has nothing to control.
            case _ if self._outlets.get(command.generation_id) is command.outlet:
                self._control(command)

    def _add(self, command: Submit) -> None:
        now = self.now()
        try:
            self._scheduler.add(command.request, now)
        except (DuplicateRequestError, RequestTooLargeError) as error:
            self._outbox.append(Delivery(command.outlet, Refused(error), now))
            return
        self._outlets[command.request.generation_id] = command.outlet
        self._outbox.append(Delivery(command.outlet, Accepted(), now))

    def _control(self, command: Control) -> None:
        now = self.now()
        match command:
            case Abort(_, generation_id, reason):
                self._emit(self._scheduler.abort(generation_id, reason, now))
            case Grant(_, generation_id, max_output_tokens):
                self._scheduler.grant(generation_id, max_output_tokens, now)
            case SetReaderBlocked(_, generation_id, blocked=blocked):
                self._scheduler.set_reader_blocked(generation_id, blocked, now)
            case SetClass(_, generation_id, priority_class):
                self._scheduler.set_class(generation_id, priority_class, now)

    def _emit(self, events: abc.Iterable[Event]) -> None:
        now = self.now()
        for event in events:
            generation_id = event.key.generation_id
            outlet = self._outlets.pop(generation_id) if isinstance(event, Finished) else self._outlets[generation_id]
            self._outbox.append(Delivery(outlet, event, now))

    def _publish(self) -> None:
        if self._outbox:
            self._deliver(self._outbox)
            self._outbox = []

    def _stats(self) -> LoopStats:
        mean_ns = sum(self._step_ns) / len(self._step_ns) if self._step_ns else 0.0
        uptime_s = (self.now() - self._started_at) / 1e9
        return LoopStats(self._scheduler.stats(), self._num_steps, mean_ns / 1e6, uptime_s)

    def _sleep_s(self) -> float | None:
        expiry = self._scheduler.next_expiry()
        return None if expiry is None else min(max(0, expiry - self.now()) / 1e9, MAX_SLEEP_S)
