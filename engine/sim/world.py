"""Several engines and the traffic that they share: arrivals are routed, clients give up, and it is all recorded.

An arrival goes to the engine with the fewest outstanding tokens (prompt and output of what it has not finished), the
first of them where several have as few. Arrivals are taken one at a time, so memory follows the requests that are
unfinished, never the length of the traffic. Reads no clock and no randomness.
"""

import heapq
from collections import abc
from dataclasses import dataclass, field
from typing import Protocol, cast

from engine.core.events import Admitted, Event, Finished, Preempted, Resumed, TokensEmitted, Usage
from engine.core.leap import Leap
from engine.core.plan import CopyDirection
from engine.core.policy import Service
from engine.core.types import FinishReason, Nanos, PathNode, PauseReason, PreemptionMode, PriorityClass, Request
from engine.decision_log import Driven
from engine.sim.cost_lines import CostLine
from engine.sim.engine import SimulatedEngine
from engine.sim.errors import StalledError
from engine.sim.service_meter import ServiceMeter
from engine.sim.traffic.row import Arrival, Traffic

# The work of a token, as the recorder counts it unless it is told otherwise.
PREFILL_COST = 1.0
OUTPUT_COST = 2.0
NO_ENGINE = "no engine takes requests"
TOKEN_ID_BITS = 32  # of a request's own token ids, so that no two prompts begin alike


@dataclass(frozen=True, slots=True)
class Tenancy:
    """What tenants' records would say.

    weights  node path ("organization" or "organization/team") to weight; 1 where absent
    classes  by name; one that is not here has the defaults of PriorityClass
    """

    weights: abc.Mapping[str, float] = field(default_factory=dict)
    classes: abc.Mapping[str, PriorityClass] = field(default_factory=dict)


class Records(Protocol):
    """What keeps the measurements of a run; `Recorder` says what each call means."""

    def on_arrival(self, arrival: Arrival, request_id: str, now: int) -> None: ...
    def on_refused(self, request_id: str, reason: str, now: int) -> None: ...
    def on_admitted(self, request_id: str, now: int, engine: int = 0) -> None: ...
    def on_first_token(self, request_id: str, now: int) -> None: ...
    def on_token(self, request_id: str, now: int) -> None: ...
    def on_tokens(
        self, tenant: str, prefill: int, output: int, borrowed: float, now: int, since: int | None = None
    ) -> None: ...
    def on_preempted(self, request_id: str, mode: PreemptionMode, reason: PauseReason, now: int) -> None: ...
    def on_resumed(self, request_id: str, now: int) -> None: ...
    def on_copy(self, num_blocks: int, direction: CopyDirection, now: int) -> None: ...
    def on_step(self, step_ns: int, now: int, engine: int = 0, num_steps: int = 1) -> None: ...
    def on_finish(self, request_id: str, reason: FinishReason, usage: Usage, now: int) -> None: ...


NO_RECORDS = Tenancy()


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
        self._requests = Requests(tenancy)
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

    def _close(self, observer: "Observer", now: Nanos, *, is_kill: bool) -> None:
        observer.is_open = False
        if is_kill:
            events, pending = self.engines[observer.index].fail(now)
            for request in [*observer.take_lost(events, now), *observer.take_pending(pending)]:
                self._route(request, now)

    def _check_done(self) -> None:
        for engine in self.engines:
            if engine.scheduler.has_unfinished:
                raise StalledError(sum(observer.num_open for observer in self._observers))


class Requests:
    """From rows of traffic to requests. The paths of tenants are made once; they are as many as the tenants."""

    def __init__(self, tenancy: Tenancy) -> None:
        self._tenancy = tenancy
        self._paths: dict[str, tuple[PathNode, ...]] = {}
        self._classes = dict(tenancy.classes)

    def make(self, arrival: Arrival, index: int) -> Request:
        """The request of an arrival. Its token ids are a range: nobody computes them, so nobody lists them."""
        path = self._paths.get(arrival.tenant)
        if path is None:
            path = self._paths[arrival.tenant] = self._path(arrival.tenant)
        priority_class = self._classes.get(arrival.priority_class)
        if priority_class is None:
            priority_class = self._classes[arrival.priority_class] = PriorityClass(arrival.priority_class)
        first_token_id = index << TOKEN_ID_BITS
        deadline_after = arrival.deadline_after_ns
        return Request(
            generation_id=f"r{index}",
            path=path,
            prompt_token_ids=cast("tuple[int, ...]", range(first_token_id, first_token_id + arrival.num_prompt_tokens)),
            max_output_tokens=arrival.num_output_tokens,
            arrived_at=Nanos(arrival.at_ns),
            priority_class=priority_class,
            deadline=None if deadline_after is None else Nanos(arrival.at_ns + deadline_after),
        )

    def _path(self, tenant: str) -> tuple[PathNode, ...]:
        nodes: list[PathNode] = []
        prefix = ""
        for node_id in tenant.split("/"):
            prefix = f"{prefix}/{node_id}" if prefix else node_id
            nodes.append(PathNode(node_id, self._tenancy.weights.get(prefix, 1.0)))
        return tuple(nodes)


class Observer:
    """Passes on what one engine says, and knows what it has not finished."""

    def __init__(self, index: int, recorder: Records, meter: ServiceMeter) -> None:
        self.index = index
        self.now = Nanos(0)
        self.num_outstanding_tokens = 0
        self.num_finished = 0
        self._recorder = recorder
        self._meter = meter
        self.is_open = True
        self._requests: dict[str, Request] = {}
        self._silent: set[str] = set()  # have emitted nothing since they arrived, or resumed
        self._started: set[str] = set()

    @property
    def num_open(self) -> int:
        return len(self._requests)

    def has(self, generation_id: str) -> bool:
        """True if the engine has the request, and has not finished it."""
        return generation_id in self._requests

    def expect(self, request: Request) -> None:
        """`request` is on its way to the engine."""
        self._requests[request.generation_id] = request
        self.num_outstanding_tokens += _num_tokens(request)
        self._silent.add(request.generation_id)

    def take_lost(self, events: abc.Iterable[Event], now: Nanos) -> list[Request]:
        """The engine is gone: requests that were streaming have ended, the others are returned and forgotten."""
        lost = []
        for event in events:
            generation_id = event.key.generation_id
            if not isinstance(event, Finished):
                continue
            if generation_id in self._started:
                self._on_change(event, generation_id, now)
            else:
                lost.append(self._requests[generation_id])
                self._forget(generation_id)
        return lost

    def take_pending(self, requests: abc.Iterable[Request]) -> list[Request]:
        """The engine never had these."""
        taken = list(requests)
        for request in taken:
            self._forget(request.generation_id)
        return taken

    def on_refused(self, request: Request, reason: str, now: Nanos) -> None:
        self._forget(request.generation_id)
        self._recorder.on_refused(request.generation_id, reason, now)

    def on_events(self, events: abc.Sequence[Event], now: Nanos) -> None:
        silent = self._silent
        for event in events:
            generation_id = event.key.generation_id
            if type(event) is TokensEmitted:  # by far the most frequent
                if generation_id in silent:
                    self._speak(generation_id, now)
            else:
                self._on_change(event, generation_id, now)

    def on_step(self, started_at: Nanos, now: Nanos, num_steps: int) -> None:
        self.now = now
        step_ns = (now - started_at) // num_steps
        self._recorder.on_step(step_ns, now, self.index, num_steps)
        since = None if num_steps == 1 else started_at
        for service in self._meter.take():
            self._tell_service(service, now, since)

    def on_copy(self, num_blocks: int, direction: CopyDirection, now: Nanos) -> None:
        self._recorder.on_copy(num_blocks, direction, now)

    def _speak(self, generation_id: str, now: Nanos) -> None:
        self._silent.discard(generation_id)
        if generation_id in self._started:
            self._recorder.on_token(generation_id, now)
        else:
            self._started.add(generation_id)
            self._recorder.on_first_token(generation_id, now)

    def _on_change(self, event: Event, generation_id: str, now: Nanos) -> None:
        match event:
            case Finished():
                self._forget(generation_id)
                self.num_finished += 1
                self._recorder.on_finish(generation_id, event.reason, event.usage, now)
            case Admitted():
                self._recorder.on_admitted(generation_id, now, self.index)
            case Resumed():
                self._silent.add(generation_id)
                self._recorder.on_resumed(generation_id, now)
            case Preempted():
                self._recorder.on_preempted(generation_id, event.mode, event.reason, now)

    def _forget(self, generation_id: str) -> None:
        self.num_outstanding_tokens -= _num_tokens(self._requests.pop(generation_id))
        self._silent.discard(generation_id)
        self._started.discard(generation_id)

    def _tell_service(self, service: Service, now: Nanos, since: Nanos | None) -> None:
        prefill, output = service.num_prefill_tokens, service.num_output_tokens
        borrowed = PREFILL_COST * prefill + OUTPUT_COST * output if service.is_borrowed else 0.0
        self._recorder.on_tokens(service.flow.tenant_id, prefill, output, borrowed, now, since)


def _num_tokens(request: Request) -> int:
    return len(request.prompt_token_ids) + request.max_output_tokens


def _outstanding(observer: Observer) -> int:
    return observer.num_outstanding_tokens
