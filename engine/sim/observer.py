"""What one simulated engine says, passed on to whoever keeps the measurements, and what it has not finished."""

from collections import abc
from typing import Protocol

from engine.core.events import Admitted, Event, Finished, Preempted, Resumed, TokensEmitted, Usage
from engine.core.plan import CopyDirection
from engine.core.policy import Service
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, Request
from engine.sim.service_meter import ServiceMeter
from engine.sim.traffic.row import Arrival
from engine.sim.work import work_of


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
        borrowed = work_of(prefill, output) if service.is_borrowed else 0.0
        self._recorder.on_tokens(service.flow.tenant_id, prefill, output, borrowed, now, since)


def _num_tokens(request: Request) -> int:
    return len(request.prompt_token_ids) + request.max_output_tokens
