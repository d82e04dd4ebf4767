"""Several engines and the traffic that they share: arrivals are routed, clients give up, and it is all recorded.

An arrival goes to the engine with the fewest outstanding tokens (prompt and output of what it has not finished), the
first of them where several have as few. Arrivals are taken one at a time, so memory follows the requests that are
unfinished, never the length of the traffic. Reads no clock and no randomness.
"""

import heapq
from collections import abc
from dataclasses import dataclass

from engine.core.leap import Leap
from engine.core.types import Nanos, Request
from engine.decision_log import Driven
from engine.sim.cost_lines import CostLine
from engine.sim.engine import SimulatedEngine
from engine.sim.errors import StalledError
from engine.sim.observer import Observer, Records
from engine.sim.requests import NO_RECORDS, Requests, Tenancy
from engine.sim.service_meter import ServiceMeter
from engine.sim.traffic.row import Arrival, Traffic

NO_ENGINE = "no engine takes requests"


@dataclass(frozen=True, slots=True)
class Outage:
    """An engine takes no arrivals from `at` until `until`. If it is killed, what it was streaming ends with an error,
    and what it had not begun to stream begins anew elsewhere; else what it has goes on."""

    engine: int
    at: Nanos
    until: Nanos
    is_kill: bool


@dataclass(frozen=True, slots=True)
class Replica:
    """A scheduler, the meter that its policy was wrapped in, and what leaps with it."""

    scheduler: Driven
    meter: ServiceMeter
    leap: Leap | None = None


class World:
    """Runs one traffic through `replicas`. Written for one run: `run` is called once."""

    def __init__(
        self, replicas: abc.Sequence[Replica], line: CostLine, recorder: Records, tenancy: Tenancy = NO_RECORDS
    ) -> None:
        self._recorder = recorder
        shares_prefixes = any(replica.scheduler.config.enable_prefix_caching for replica in replicas)
        self._requests = Requests(tenancy, shares_prefixes=shares_prefixes)
        self._observers = [Observer(index, recorder, replica.meter) for index, replica in enumerate(replicas)]
        self.engines = [
            SimulatedEngine(replica.scheduler, line, observer, replica.leap)
            for replica, observer in zip(replicas, self._observers, strict=True)
        ]
        for engine in self.engines:
            engine.calibrate(line)
        self._due: list[tuple[Nanos, int, abc.Callable[[Nanos], None]]] = []  # a heap by time, then by age
        self._num_due = 0
        self._num_arrivals = 0

    def plan_outage(self, outage: Outage) -> None:
        """It will happen. Called before `run`."""
        observer = self._observers[outage.engine]
        self._schedule(outage.at, lambda now: self._close(observer, now, is_kill=outage.is_kill))
        self._schedule(outage.until, lambda now: setattr(observer, "is_open", True))

    @property
    def num_finished(self) -> int:
        return sum(observer.num_finished for observer in self._observers)

    def run(
        self,
        traffic: Traffic,
        *,
        until: Nanos | None = None,
        on_progress: abc.Callable[[int, int], object] = lambda num_arrivals, now: None,
    ) -> Nanos:
        """All of `traffic` has arrived, and is done; or with `until`, that moment has come. Returns the time.

        `on_progress` gets the number of arrivals so far and the time, after each. Raises StalledError if requests are
        left that nothing will ever move on.
        """
        for arrival in traffic:
            if until is not None and arrival.at_ns >= until:
                break
            self._run_until(Nanos(arrival.at_ns))
            self._arrive(arrival)
            on_progress(self._num_arrivals, arrival.at_ns)
        self._run_until(until)
        if until is None:
            self._check_done()
        return Nanos(max((observer.now for observer in self._observers), default=0)) if until is None else until

    def _schedule(self, at: Nanos, action: abc.Callable[[Nanos], None]) -> None:
        self._num_due += 1
        heapq.heappush(self._due, (at, self._num_due, action))

    def _run_until(self, horizon: Nanos | None) -> None:
        while self._due and (horizon is None or self._due[0][0] <= horizon):
            at, _, action = heapq.heappop(self._due)
            self._run_engines(at)
            action(at)
        self._run_engines(horizon)

    def _run_engines(self, horizon: Nanos | None) -> None:
        for engine in self.engines:
            if engine.next_at is not None and (horizon is None or engine.next_at < horizon):
                engine.run_until(horizon)

    def _arrive(self, arrival: Arrival) -> None:
        index = self._num_arrivals
        self._num_arrivals += 1
        request = self._requests.make(arrival, index)
        now = request.arrived_at
        self._recorder.on_arrival(arrival, request.generation_id, now)
        self._route(request, now)
        if arrival.cancel_after_ns is not None:
            generation_id = request.generation_id
            self._schedule(Nanos(now + arrival.cancel_after_ns), lambda at: self._cancel(generation_id, at))

    def _route(self, request: Request, now: Nanos) -> None:
        observer = min((each for each in self._observers if each.is_open), key=_outstanding, default=None)
        if observer is None:
            self._recorder.on_refused(request.generation_id, NO_ENGINE, now)
            return
        observer.expect(request)
        self.engines[observer.index].submit(request, now)

    def _cancel(self, generation_id: str, now: Nanos) -> None:
        for observer in self._observers:
            if observer.has(generation_id):
                self.engines[observer.index].cancel(generation_id, now)

    def _close(self, observer: Observer, now: Nanos, *, is_kill: bool) -> None:
        observer.is_open = False
        if is_kill:
            events, pending = self.engines[observer.index].fail(now)
            for request in [*observer.take_lost(events, now), *observer.take_pending(pending)]:
                self._route(request, now)

    def _check_done(self) -> None:
        for engine in self.engines:
            if engine.scheduler.has_unfinished:
                raise StalledError(sum(observer.num_open for observer in self._observers))


def _outstanding(observer: Observer) -> int:
    return observer.num_outstanding_tokens
