"""One engine in virtual time: plan, let the step's time pass, commit. What the live loop does, without runner or clock.

Commands that come while a step runs wait for its end, as in the live loop: commit, commands, deadlines, plan. Each
direction of the link carries one copy after the other, beside the steps. Outputs are made up: every request generates
exactly its `max_output_tokens`. Knows no traffic and no other engine.
"""

import heapq
from collections import abc, deque
from itertools import compress
from typing import Protocol

from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.events import Event
from engine.core.leap import Leap
from engine.core.plan import CopyDirection, StepOutput, StepPlan
from engine.core.types import CopyId, FinishReason, Nanos, Request
from engine.decision_log import Driven
from engine.sim.cost_lines import CostLine, StepTimes
from engine.sim.errors import ScenarioError
from engine.sim.traffic.row import MAX_SPAN_S, NANOS_PER_S

TOKEN = (0,)  # what every row samples
LOST = "the engine is gone"
LATEST = Nanos(2 * MAX_SPAN_S * NANOS_PER_S)  # traffic ends after half of it; sums of later times would leave 64 bits


class Listener(Protocol):
    """Hears what happens in one engine, in order."""

    def on_refused(self, request: Request, reason: str, now: Nanos) -> None: ...
    def on_events(self, events: abc.Sequence[Event], now: Nanos) -> None: ...
    def on_step(self, started_at: Nanos, now: Nanos, num_steps: int) -> None:
        """So many steps, all between the two times, are committed; their events and charges have been told."""

    def on_copy(self, num_blocks: int, direction: CopyDirection, now: Nanos) -> None: ...


class SimulatedEngine:
    """A scheduler and the time that its steps take. `next_at`: when `run_until` has something to do, or never."""

    def __init__(self, scheduler: Driven, line: CostLine, listener: Listener, leap: Leap | None = None) -> None:
        self.scheduler = scheduler
        self.next_at: Nanos | None = None
        self.num_steps = 0
        self._times = StepTimes(line)
        self._listener = listener
        self._leap = leap
        self._mailbox: deque[Request | str] = deque()  # to add, or the generation id to cancel
        self._open: StepPlan | None = None
        self._started_at = Nanos(0)
        self._copies: list[tuple[Nanos, CopyId]] = []  # a heap: when each one ends
        self._link_free_at = dict.fromkeys(CopyDirection, 0)

    def calibrate(self, line: CostLine) -> None:
        """The scheduler counts with the prices of `line`."""
        self.scheduler.calibrate(line.scheduler_prices(), Nanos(0))

    def submit(self, request: Request, now: Nanos) -> None:
        """The request is added before the next plan."""
        self._tell(request, now)

    def cancel(self, generation_id: str, now: Nanos) -> None:
        """The request ends before the next plan, if it has not ended by then."""
        self._tell(generation_id, now)

    def fail(self, now: Nanos) -> tuple[list[Event], list[Request]]:
        """The engine's process is gone, and another one in its place, with nothing in it. Returns what ended, and what
        had not even been added."""
        pending = [command for command in self._mailbox if isinstance(command, Request)]
        events = self.scheduler.fail_all(LOST, now)
        if self._copies:
            events += self.scheduler.complete_copies([copy_id for _, copy_id in self._copies], now)
        self._mailbox.clear()
        self._copies.clear()
        self._link_free_at = dict.fromkeys(CopyDirection, 0)
        self._open = self.next_at = None
        return events, pending

    def run_until(self, horizon: Nanos | None) -> None:
        """Everything that happens before `horizon` has happened; None is until nothing more can happen.

        Raises ScenarioError where that is so long that something is wrong with the costs or the traffic.
        """
        while self.next_at is not None and (horizon is None or self.next_at < horizon):
            if self.next_at > LATEST:
                raise ScenarioError("serving this traffic takes more than twenty years: are the costs in nanoseconds?")
            if self._leap is None or not self._take_leap(self._leap, self.next_at, horizon):
                self._turn(self.next_at)

    def _tell(self, command: Request | str, now: Nanos) -> None:
        self._mailbox.append(command)
        if self._open is None:
            self.next_at = now

    def _turn(self, now: Nanos) -> None:
        self._end_step(now)
        while self._mailbox:
            self._apply(self._mailbox.popleft(), now)
        if events := self.scheduler.expire(now):
            self._listener.on_events(events, now)
        plan = self._open = self.scheduler.plan(now)
        self._started_at = now
        if plan is None:
            self.next_at = self._next_wake(now)
            return
        for copy in plan.copies:
            self._begin_copy(copy.copy_id, copy.direction, len(copy.device_block_ids), now)
        # Copies only: nothing is computed, so the loop is free again at once.
        self.next_at = Nanos(now + (self._times.step_ns(plan) if plan.rows else 1))

    def _end_step(self, now: Nanos) -> None:
        """The open plan is committed, and copies that have ended by `now` are told."""
        completed = self._completed_copies(now)
        plan = self._open
        if plan is None:
            if completed:
                self._listener.on_events(self.scheduler.complete_copies(completed, now), now)
            return
        rows = plan.rows if all(plan.samples) else compress(plan.rows, plan.samples)
        output = StepOutput(plan.step_id, dict.fromkeys(rows, TOKEN), completed_copies=completed)
        events = self.scheduler.commit(output, now)
        self.num_steps += 1
        self._listener.on_events(events, now)
        self._listener.on_step(self._started_at, now, 1)

    def _apply(self, command: Request | str, now: Nanos) -> None:
        if isinstance(command, str):
            self._listener.on_events(self.scheduler.abort(command, FinishReason.CANCELLED, now), now)
            return
        if self._leap is not None:
            self._leap.expect(command)
        try:
            self.scheduler.add(command, now)
        except (DuplicateRequestError, RequestTooLargeError) as error:
            self._listener.on_refused(command, str(error), now)

    def _next_wake(self, now: Nanos) -> Nanos | None:
        """When an idle engine has something to do again: a copy ends, or a deadline passes."""
        expiry = self.scheduler.next_expiry()
        wakes = [copy[0] for copy in self._copies[:1]] + ([] if expiry is None else [max(expiry, Nanos(now + 1))])
        return min(wakes, default=None)

    def _begin_copy(self, copy_id: CopyId, direction: CopyDirection, num_blocks: int, now: Nanos) -> None:
        ends_at = max(now, self._link_free_at[direction]) + self._times.copy_ns(direction, num_blocks)
        self._link_free_at[direction] = ends_at
        heapq.heappush(self._copies, (Nanos(ends_at), copy_id))
        self._listener.on_copy(num_blocks, direction, now)

    def _completed_copies(self, now: Nanos) -> tuple[CopyId, ...]:
        completed = []
        while self._copies and self._copies[0][0] <= now:
            completed.append(heapq.heappop(self._copies)[1])
        return tuple(completed)

    def _take_leap(self, leap: Leap, ends_at: Nanos, horizon: Nanos | None) -> bool:
        """True if the open plan, and those like it that end before `horizon`, were committed in one go."""
        plan = self._open
        if plan is None or self._mailbox or self._copies or not (num_steps := leap.max_steps()):
            return False
        num_decodes = len(plan.rows)
        num_keys = sum(plan.starts) + num_decodes
        limits = (horizon, self.scheduler.next_expiry(), LATEST)
        limit = min([moment for moment in limits if moment is not None])
        ends: list[Nanos] = []  # of the steps that are committed; the next one begins there
        decode_step_ns = self._times.decode_step_ns
        for _ in range(num_steps):
            if ends_at >= limit:
                break
            ends.append(ends_at)
            num_keys += num_decodes
            ends_at = Nanos(ends_at + decode_step_ns(num_decodes, num_keys))
        last = leap.take(ends) if ends else None
        if last is None:
            return False
        num_taken = last.step_id - plan.step_id
        ends.append(ends_at)
        self._listener.on_step(self._started_at, ends[num_taken - 1], num_taken)
        self.num_steps += num_taken
        self._open, self._started_at, self.next_at = last, ends[num_taken - 1], ends[num_taken]
        return True
