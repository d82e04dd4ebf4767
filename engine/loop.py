"""The engine thread: commands in, events out, and between them plan, execute, commit. Its clock is the scheduler's.

In: a `SimpleQueue` of commands, from any thread. Out: after each step one call of `deliver` with everything that
happened, each update addressed to the outlet that its request came with. Knows nothing of gRPC, asyncio or tensors;
the scheduler and the runner are touched by this thread only, so neither needs a lock. While copies between the pools
are all there is to wait for, the loop sleeps: the copy that ends sends it a command.
"""

import time
from collections import abc
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

import structlog

from engine.core.errors import DuplicateRequestError, PolicyTakeoverError, RequestTooLargeError
from engine.core.events import Event, Finished
from engine.core.plan import StepOutput, StepPlan
from engine.core.types import CopyId, Nanos
from engine.decision_log import Driven, PolicyChoice, RecordedScheduler, inner_scheduler
from engine.errors import InvalidFieldError, RunnerFailedError
from engine.loop_messages import (
    Abort,
    Accepted,
    Command,
    Control,
    Delivery,
    Grant,
    LoopStats,
    Outlet,
    Policies,
    Query,
    ReadStats,
    Refused,
    SetClass,
    SetPolicies,
    SetReaderBlocked,
    Stop,
    Submit,
    TakeCopies,
    UpdateClasses,
    UpdateNodes,
)
from engine.loop_queries import Queries
from engine.plugins import PolicyError, check_pair
from engine.step_figures import StepFigures

if TYPE_CHECKING:  # it imports numpy, which only the runner needs
    from engine.calibration import Calibrator, CopyTiming

log = structlog.get_logger(__name__)

MAX_FAILURES_IN_A_ROW = 3  # one can be a request's fault; a device that is gone fails every step
MAX_SLEEP_S = 3600.0  # waiting longer overflows, some day
STEP_FAILED = "the engine could not compute the request"


class Runner(Protocol):
    """Computes steps, and copies blocks beside them. What it raises ends every request that has not ended, but for a
    MemoryError of `execute`: then those of the step are computed again, and the others stay as they are.

    A copy that failed raises once, from `execute` or `take_completed`, and is told as completed after that.
    """

    def execute(self, plan: StepPlan) -> StepOutput: ...
    def take_completed(self) -> tuple[CopyId, ...]:
        """The copies that have ended and are in no output yet."""

    def take_copy_timings(self) -> "tuple[CopyTiming, ...]":
        """What the copies took that have ended since the last call."""

    def wake_on_completion(self, wake: abc.Callable[[], object]) -> None:
        """From now on `wake` is called, on any thread, when a copy has ended."""


class EngineLoop:
    """Drives one scheduler and one runner. `run` belongs to the engine thread, `submit` and `now` to everyone.

    `policies` are the scheduler's: a switch to a pair that does not go together is refused. `on_step` is told of each
    plan that was executed and is still open, with the begin and the end of that."""

    def __init__(
        self,
        scheduler: Driven,
        runner: Runner,
        deliver: abc.Callable[[list[Delivery]], object],
        clock: abc.Callable[[], int] = time.monotonic_ns,
        *,
        policies: Policies | None = None,
        calibrator: "Calibrator | None" = None,
        on_step: abc.Callable[[StepPlan, Nanos, Nanos], object] = lambda plan, started_at, ended_at: None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._deliver = deliver
        self._clock = clock
        self._policies = policies
        self._calibrator = calibrator
        self._on_step = on_step
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._outlets: dict[str, Outlet] = {}
        self._outbox: list[Delivery] = []
        self._is_stopped = False
        self._queries = Queries(inner_scheduler(scheduler), self.now)
        self._started_at = self.now()
        self._num_failures_in_a_row = 0
        self._steps = StepFigures()
        self._policy_fault: str | None = None
        runner.wake_on_completion(lambda: self._commands.put(TakeCopies()))
        if calibrator is not None:
            scheduler.calibrate(calibrator.prices, self._started_at)

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
        self._report_policy_fault()
        self._publish()  # what commands and deadlines did need not wait for the step
        if self._num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise RunnerFailedError(self._num_failures_in_a_row)
        if plan is None:
            return False
        started_at = self.now()
        output = self._execute(plan)
        if output is not None:
            ended_at = self.now()
            self._on_step(plan, started_at, ended_at)
            self._emit(self._scheduler.commit(output, ended_at))
            self._count_step(plan, self.now() - started_at)
        self._publish()
        if self._num_failures_in_a_row >= MAX_FAILURES_IN_A_ROW:
            raise RunnerFailedError(self._num_failures_in_a_row)
        return True

    def _execute(self, plan: StepPlan) -> StepOutput | None:
        """The plan's output; None if the runner raised, and then its requests wait again, or every one has ended."""
        try:
            return self._runner.execute(plan)
        except Exception as error:  # whatever a device throws ends the requests, not the process
            log.exception("step failed", step_id=plan.step_id, num_rows=len(plan.rows), num_requests=len(self._outlets))
            self._fail(can_retry=isinstance(error, MemoryError))
            return None

    def _take_copies(self) -> None:
        """Tell the scheduler of the copies that have ended; what they fence is free for the next plan."""
        try:
            copy_ids = self._runner.take_completed()
        except Exception:  # as above
            log.exception("copy failed", num_requests=len(self._outlets))
            self._fail()
            self._commands.put(TakeCopies())  # it is told as completed now
            return
        if copy_ids:
            self._emit(self._scheduler.complete_copies(copy_ids, self.now()))

    def _fail(self, *, can_retry: bool = False) -> None:
        self._num_failures_in_a_row += 1
        can_retry, now = can_retry and self._num_failures_in_a_row < MAX_FAILURES_IN_A_ROW, self.now()
        self._emit(self._scheduler.requeue(now) if can_retry else self._scheduler.fail_all(STEP_FAILED, now))

    def _count_step(self, plan: StepPlan, step_ns: int) -> None:
        self._num_failures_in_a_row = 0
        if plan.rows:
            self._steps.add(plan, step_ns)
        if self._calibrator is None:
            return
        if plan.rows:
            self._calibrator.observe_step(plan, step_ns)
        self._calibrator.observe_copies(self._runner.take_copy_timings())
        now = self.now()
        if (prices := self._calibrator.due(now)) is not None:
            self._scheduler.calibrate(prices, now)

    def _report_policy_fault(self) -> None:
        if self._scheduler.policy_fault != self._policy_fault:
            self._policy_fault = self._scheduler.policy_fault
            if self._policy_fault is not None:
                log.error("policy replaced by the order of arrival", fault=self._policy_fault)

    def _apply(self, command: Command) -> None:
        match command:
            case Submit():
                self._add(command)
            case ReadStats(outlet):
                self._outbox.append(Delivery(outlet, self._stats(), self.now()))
            case _ if isinstance(command, Query):
                self._outbox.append(Delivery(command.outlet, self._queries.answer(command), self.now()))
            case TakeCopies():
                self._take_copies()
            case SetPolicies():
                self._set_policies(command)
            case UpdateNodes(nodes):
                self._scheduler.update_nodes(nodes, self.now())
            case UpdateClasses(classes, revision):
                self._scheduler.update_classes(classes, revision, self.now())
            case Stop():
                self._is_stopped = True
            # A request that has ended, or a duplicate that was refused, has nothing to control.
            case _ if self._outlets.get(command.generation_id) is command.outlet:
                self._control(command)

    def _add(self, command: Submit) -> None:
        now, num_waiting = self.now(), self._queries.num_waiting
        try:
            self._scheduler.add(command.request, now)
        except (DuplicateRequestError, RequestTooLargeError) as error:
            self._outbox.append(Delivery(command.outlet, Refused(error), now))
            return
        self._outlets[command.request.generation_id] = command.outlet
        self._outbox.append(Delivery(command.outlet, Accepted(num_waiting), now))

    def _set_policies(self, command: SetPolicies) -> None:
        now = self.now()
        try:
            policies = self._checked_pair(command)
            self._name_for_log(command)
            if command.scheduling is not None:
                self._scheduler.set_scheduling_policy(command.scheduling, now)
        except (PolicyError, PolicyTakeoverError) as error:
            field = "name" if command.preemption is None else "preemption_name"
            refusal = InvalidFieldError(field, f"cannot be taken: {error}")
            self._outbox.append(Delivery(command.outlet, Refused(refusal), now))
            return
        if command.preemption is not None:
            self._scheduler.set_preemption_policy(command.preemption, now)
        self._policies = policies
        self._outbox.append(Delivery(command.outlet, Accepted(), now))

    def _checked_pair(self, command: SetPolicies) -> Policies | None:
        """The policies that would be in force. Raises PolicyError where one needs what the other does not do."""
        if self._policies is None:
            return None
        policies = self._policies.switched(command.scheduling, command.preemption)
        check_pair(policies.scheduling, policies.preemption)
        return policies

    def _name_for_log(self, command: SetPolicies) -> None:
        if isinstance(self._scheduler, RecordedScheduler):
            asked = (command.scheduling, command.scheduling_choice), (command.preemption, command.preemption_choice)
            named = [(policy, choice or PolicyChoice(type(policy).__name__, {})) for policy, choice in asked if policy]
            self._scheduler.name_policies(*named)

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
        steps, uptime_s = self._steps, (self.now() - self._started_at) / 1e9
        return LoopStats(self._scheduler.stats(), steps.num_steps, steps.mean_step_ms, uptime_s, steps.told())

    def _sleep_s(self) -> float | None:
        expiry = self._scheduler.next_expiry()
        return None if expiry is None else min(max(0, expiry - self.now()) / 1e9, MAX_SLEEP_S)
