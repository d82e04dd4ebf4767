"""The live engine without its wire: a scheduler and a model in this process, fed with traffic at its real times.

The loop is the engine's (commit, commands, deadlines, plan), and what happens is told in the simulator's words, so that
the two can be compared request by request: clients give up, deadlines pass, and what can never fit is refused here and
there. Prompts are made up from a seed, and no token ends an output.
"""

import random
import time
from collections import abc, deque
from dataclasses import dataclass, field, replace
from pathlib import Path

from engine.core.config import SchedulerConfig
from engine.core.errors import DuplicateRequestError, RequestTooLargeError
from engine.core.types import FinishReason, Nanos, Request, SamplingParams
from engine.decision_log import Driven
from engine.loop import Runner
from engine.server.backend import Backend, load_backend
from engine.settings import read_settings
from engine.sim.cost_lines import StepTimes
from engine.sim.errors import StalledError
from engine.sim.observer import Observer, Records
from engine.sim.requests import Requests
from engine.sim.run import Setup, make_replica
from engine.sim.traffic.row import NANOS_PER_S, Arrival

GREEDY = SamplingParams(temperature=0.0)
POLL_S = 0.0005  # while only copies are under way


@dataclass(frozen=True, slots=True)
class LiveSize:
    """What the live engine is started with; the simulated one gets the same limits."""

    model: Path | None
    max_num_seqs: int
    max_num_batched_tokens: int
    num_device_blocks: int
    num_host_blocks: int

    def load(self) -> Backend:
        """The model, loaded and measured. Raises SettingsError and ModelError."""
        settings = read_settings(
            {
                "listen": "127.0.0.1:0",  # nobody listens
                "model": self.model,
                "max_num_seqs": self.max_num_seqs,
                "max_num_batched_tokens": self.max_num_batched_tokens,
                "num_device_blocks": self.num_device_blocks,
                "num_host_blocks": self.num_host_blocks,
            }
        )
        return load_backend(settings, lambda part: None)


@dataclass(frozen=True, slots=True)
class Clock:
    """What time is read from, in nanoseconds, and slept on, in seconds."""

    read: abc.Callable[[], int] = time.monotonic_ns
    sleep: abc.Callable[[float], object] = time.sleep


class LiveEngine:
    """Serves one traffic after the other with a loaded model.

    step_ns, line_ns  what the steps of the last run took, and what the cost line says of the same plans
    """

    def __init__(self, backend: Backend, seed: int = 0, clock: Clock = Clock()) -> None:
        self.backend = backend
        self.step_ns = self.line_ns = 0
        self._clock = clock
        self._rng = random.Random(seed)  # noqa: S311  made-up prompts are no secret

    @property
    def config(self) -> SchedulerConfig:
        return self.backend.config

    def run(self, setup: Setup, traffic: abc.Iterable[Arrival], records: Records, until: Nanos | None = None) -> Nanos:
        """Every request of `traffic` has ended, or that moment has come; returns how long it took.

        Raises StalledError where requests are left that nothing will ever move on.
        """
        replica, requests = make_replica(setup), Requests(setup.tenancy)
        replica.scheduler.calibrate(setup.line.scheduler_prices(), Nanos(0))
        sent = [(arrival, self._with_tokens(requests.make(arrival, index))) for index, arrival in enumerate(traffic)]
        times = StepTimes(setup.line)
        observer = Observer(0, records, replica.meter)
        session = _Session(
            replica.scheduler, self.backend.runner, observer, records, _commands(sent), times, self._clock
        )
        ended_at = session.run(until)
        self.step_ns, self.line_ns = session.step_ns, session.line_ns
        return ended_at

    def _with_tokens(self, request: Request) -> Request:
        size = self.backend.model.vocabulary_size
        token_ids = tuple(self._rng.randrange(size) for _ in request.prompt_token_ids)
        return replace(request, prompt_token_ids=token_ids, sampling=GREEDY)


@dataclass(frozen=True, slots=True)
class _Command:
    """What a client does `at_ns` after the start: sends the request, or gives it up where there is no `arrival`."""

    at_ns: int
    request: Request
    arrival: Arrival | None = None


def _commands(sent: abc.Iterable[tuple[Arrival, Request]]) -> deque[_Command]:
    """In order of time; who gives up at once has sent the request before."""
    commands = []
    for arrival, request in sent:
        commands.append(_Command(arrival.at_ns, request, arrival))
        if arrival.cancel_after_ns is not None:
            commands.append(_Command(arrival.at_ns + arrival.cancel_after_ns, request))
    return deque(sorted(commands, key=lambda command: command.at_ns))


@dataclass(slots=True)
class _Session:
    """One run. `commands` are those that have not been told yet; times count from when `run` is called."""

    scheduler: Driven
    runner: Runner
    observer: Observer
    records: Records
    commands: deque[_Command]
    times: StepTimes
    clock: Clock
    step_ns: int = field(default=0, init=False)
    line_ns: int = field(default=0, init=False)
    _num_to_come: int = field(default=0, init=False)
    _started_ns: int = field(default=0, init=False)

    def run(self, until: Nanos | None) -> Nanos:
        self._num_to_come = sum(command.arrival is not None for command in self.commands)
        self._started_ns = self.clock.read()
        while self._num_to_come or self.scheduler.has_unfinished:
            moment = self._now()
            if until is not None and moment >= until:
                break
            while self.commands and self.commands[0].at_ns <= moment:
                self._apply(self.commands.popleft(), moment)
            self.observer.on_events(self.scheduler.expire(moment), moment)
            if not self._step():
                self._sleep(until)
        return self._now()

    def _now(self) -> Nanos:
        return Nanos(self.clock.read() - self._started_ns)

    def _apply(self, command: _Command, moment: Nanos) -> None:
        request = command.request
        if command.arrival is None:
            if self.observer.has(request.generation_id):
                events = self.scheduler.abort(request.generation_id, FinishReason.CANCELLED, moment)
                self.observer.on_events(events, moment)
            return
        self._num_to_come -= 1
        self.records.on_arrival(command.arrival, request.generation_id, command.arrival.at_ns)
        self.observer.expect(request)
        try:
            self.scheduler.add(request, moment)
        except (DuplicateRequestError, RequestTooLargeError) as error:
            self.observer.on_refused(request, str(error), moment)

    def _step(self) -> bool:
        """One step, or the copies that have ended meanwhile; false if there was neither."""
        began = self._now()
        plan = self.scheduler.plan(began)
        if plan is None:
            completed = self.runner.take_completed()
            if completed:
                ended = self._now()
                self.observer.on_events(self.scheduler.complete_copies(completed, ended), ended)
            return bool(completed)
        self.line_ns += self.times.step_ns(plan)
        for copy in plan.copies:
            self.observer.on_copy(len(copy.device_block_ids), copy.direction, began)
        output = self.runner.execute(plan)
        ended = self._now()
        self.observer.on_events(self.scheduler.commit(output, ended), ended)
        self.observer.on_step(began, ended, 1)
        self.step_ns += ended - began
        return True

    def _sleep(self, until: Nanos | None) -> None:
        """Until something may have come: a copy's end, a command, a deadline, or `until`."""
        if self.scheduler.num_copies_in_flight:
            self.clock.sleep(POLL_S)
            return
        next_at = self.commands[0].at_ns if self.commands else None
        dues = [moment for moment in (next_at, self.scheduler.next_expiry(), until) if moment is not None]
        if dues:
            self.clock.sleep(max(0, min(dues) - self._now()) / NANOS_PER_S)
        elif self.scheduler.has_unfinished:
            raise StalledError(self.observer.num_open)
