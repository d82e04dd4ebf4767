"""The live engine without its wire: a scheduler and a model in this process, fed with traffic at its real times.

The loop is the engine's (commit, commands, deadlines, plan), and what happens is told in the simulator's words, so that
the two can be compared request by request. Prompts are made up from a seed, and no token ends an output.
"""

import random
import time
from collections import abc
from dataclasses import dataclass, replace
from pathlib import Path

from engine.core.config import SchedulerConfig
from engine.core.types import Nanos, Request, SamplingParams
from engine.decision_log import Driven
from engine.server.backend import Backend, load_backend
from engine.settings import read_settings
from engine.sim.cost_lines import StepTimes
from engine.sim.observer import Observer, Records
from engine.sim.requests import Requests
from engine.sim.run import Setup, make_replica
from engine.sim.traffic.row import Arrival

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


class LiveEngine:
    """Serves one traffic after the other with a loaded model.

    step_ns, line_ns  what the steps of the last run took, and what the cost line says of the same plans
    """

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self.backend = backend
        self.step_ns = self.line_ns = 0
        self._rng = random.Random(seed)  # noqa: S311  made-up prompts are no secret

    @property
    def config(self) -> SchedulerConfig:
        return self.backend.config

    def run(self, setup: Setup, traffic: abc.Iterable[Arrival], records: Records, until: Nanos | None = None) -> Nanos:
        """Every request of `traffic` has been served, or that moment has come; returns how long it took."""
        replica = make_replica(setup)
        observer = Observer(0, records, replica.meter)
        scheduler, requests = replica.scheduler, Requests(setup.tenancy)
        self.step_ns = self.line_ns = 0
        times = StepTimes(setup.line)
        scheduler.calibrate(setup.line.scheduler_prices(), Nanos(0))
        arrivals = [(arrival, requests.make(arrival, index)) for index, arrival in enumerate(traffic)]
        arrivals = [(arrival, self._with_tokens(request)) for arrival, request in arrivals]
        started_ns = time.monotonic_ns()

        def now() -> Nanos:
            return Nanos(time.monotonic_ns() - started_ns)

        next_index = 0
        while next_index < len(arrivals) or scheduler.has_unfinished:
            moment = now()
            if until is not None and moment >= until:
                break
            while next_index < len(arrivals) and arrivals[next_index][0].at_ns <= moment:
                arrival, request = arrivals[next_index]
                records.on_arrival(arrival, request.generation_id, arrival.at_ns)
                observer.expect(request)
                scheduler.add(request, moment)
                next_index += 1
            observer.on_events(scheduler.expire(moment), moment)
            if not self._step(scheduler, observer, times, now):
                due_ns = arrivals[next_index][0].at_ns - now() if next_index < len(arrivals) else 0
                time.sleep(POLL_S if scheduler.num_copies_in_flight else max(0, due_ns) / 1e9)
        return now()

    def _step(self, scheduler: Driven, observer: Observer, times: StepTimes, now: abc.Callable[[], Nanos]) -> bool:
        """One step, or the copies that have ended meanwhile; false if there was neither."""
        began = now()
        plan = scheduler.plan(began)
        if plan is None:
            completed = self.backend.runner.take_completed()
            if completed:
                observer.on_events(scheduler.complete_copies(completed, now()), now())
            return bool(completed)
        self.line_ns += times.step_ns(plan)
        for copy in plan.copies:
            observer.on_copy(len(copy.device_block_ids), copy.direction, began)
        output = self.backend.runner.execute(plan)
        ended = now()
        observer.on_events(scheduler.commit(output, ended), ended)
        observer.on_step(began, ended, 1)
        self.step_ns += ended - began
        return True

    def _with_tokens(self, request: Request) -> Request:
        size = self.backend.model.vocabulary_size
        token_ids = tuple(self._rng.randrange(size) for _ in request.prompt_token_ids)
        return replace(request, prompt_token_ids=token_ids, sampling=GREEDY)
