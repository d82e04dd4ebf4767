"""One accepted request, from the engine call to its settlement.

A `Generation` runs in a task of its own that nobody cancels: callers come and go, what the engine computed is billed
exactly once. The RPC reads `events()`; whoever wants an early end calls `cancel`. Output waits in one buffer: adjacent
deltas become one, and a client that does not read makes the engine hold the sequence instead of the buffer grow.
"""

import asyncio
from collections import abc, deque
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from gateway.admission import Admitted
from gateway.auth import Principal
from gateway.engine_client import (
    Accepted,
    CancelReason,
    EngineCall,
    EngineEvent,
    EngineRequest,
    Finished,
    Preempted,
    Resumed,
    TokenChunk,
)
from gateway.engine_client import Admitted as Scheduled
from gateway.errors import DrainingError, GatewayError, InternalError
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.ending import EndCause, Progress, outcome_of
from gateway.servicer.outcome import Continued, Delta, Event, Outcome, Paused, Started
from gateway.servicer.served_models import ServedModel
from gateway.tokenizer import OutputText

# How long the engine may take to answer a cancellation, before the call is dropped and billed by what was received. It
# answers between two steps, and on a busy CPU a step can take seconds.
CANCEL_PATIENCE_S = 5.0

log = structlog.get_logger()


_WIRE_REASONS = {
    EndCause.CLIENT: CancelReason.CLIENT,
    EndCause.STOP_STRING: CancelReason.STOP_STRING,
    EndCause.KEY_REVOKED: CancelReason.KEY_REVOKED,
    EndCause.DRAINING: CancelReason.CLIENT,
}


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that is settled before the engine is called. `give_up_at_s` is on the event loop's clock."""

    principal: Principal
    ask: GenerationAsk
    model: ServedModel
    admitted: Admitted
    request: EngineRequest
    give_up_at_s: float | None

    @property
    def generation_id(self) -> str:
        return self.request.generation_id


class Generation:
    """One request while it runs. Written by its own task; `events` has one reader."""

    def __init__(self, job: Job, buffer_tokens: int, on_end: abc.Callable[["Generation", Outcome], None]) -> None:
        self.job = job
        self.progress = Progress()
        self._text = OutputText(job.model.tokenizer, job.ask.stopping.stop, _hidden_token_ids(job))
        output = job.ask.output
        self._keeps_ids = output.returns_token_ids or output.num_logprobs is not None
        self._buffer_tokens = buffer_tokens
        self._on_end = on_end
        self._call: EngineCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout | None = None
        self._cause: EndCause | None = None
        self._pending: deque[Event] = deque()
        self._num_pending_tokens = 0
        self._is_reader_waiting = False
        self._is_reader_blocked = False
        self._changed = asyncio.Event()
        self._outcome: Outcome | None = None

    @property
    def outcome(self) -> Outcome | None:
        """The end; None while it runs."""
        return self._outcome

    def start(self, trace_headers: abc.Mapping[str, str]) -> None:
        """The request is on its way to the engine. From here on it settles by itself."""
        self._task = asyncio.create_task(self._run(trace_headers), name=f"generation {self.job.generation_id}")

    def cancel(self, cause: EndCause) -> bool:
        """The engine is told to stop; false if it had been told, or the request has ended."""
        if self._outcome is not None or self._cause is not None:
            return False
        self._cause = cause
        if self._call is not None:
            self._call.cancel(_WIRE_REASONS[cause])
            self._limit_patience()
        return True

    async def events(self) -> abc.AsyncGenerator[Event, None]:
        """What happens, in order, until the end; then `outcome` is set."""
        while True:
            while self._pending:
                yield self._take()
            if self._outcome is not None:
                return
            self._changed.clear()
            self._is_reader_waiting = True
            await self._changed.wait()
            self._is_reader_waiting = False

    async def ended(self) -> None:
        """Return when the request is settled."""
        assert self._task is not None, "the generation was started"
        await asyncio.wait([self._task])

    async def _run(self, trace_headers: abc.Mapping[str, str]) -> None:
        error: GatewayError | None = None
        try:
            self._call = self.job.model.engine.generate(self.job.request, trace_headers)
            await self._relay(self._call)
        except TimeoutError:
            pass  # nothing more will be heard: `_end` sees that no terminal message came
        except GatewayError as refused:
            error = refused
        except asyncio.CancelledError:  # the event loop itself is closing
            error = DrainingError()
            raise
        # Our own bug must not leave a reservation, a reader or a ledger row behind.
        except Exception:
            log.exception("generation failed", generation_id=self.job.generation_id)
            error = InternalError()
        finally:
            if self._call is not None:
                self._call.abandon()
            self._end(error)

    async def _relay(self, call: EngineCall) -> None:
        async with asyncio.timeout_at(self.job.give_up_at_s) as self._patience, aclosing(call.events()) as events:
            if self._cause is not None:  # cancelled before the call was there
                call.cancel(_WIRE_REASONS[self._cause])
                self._limit_patience()
            async for event in events:
                self._on_event(event)

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case TokenChunk():
                self._on_tokens(event)
            case Accepted():
                self.progress.is_accepted = True
                self._emit(Started())
            case Scheduled():
                self.progress.is_scheduled = True
            case Preempted():
                self._emit(Paused(event.reason, event.mode))
            case Resumed():
                self._emit(Continued())
            case Finished():
                self.progress.finished = event
                self._limit_patience()  # what is left is the end of the call

    def _on_tokens(self, chunk: TokenChunk) -> None:
        progress = self.progress
        progress.note_tokens(len(chunk.token_ids))
        delta = self._text.push(chunk.token_ids)
        progress.num_output_tokens += delta.num_tokens
        # Ids and logprobs are of the tokens; the text may lag behind them.
        token_ids = chunk.token_ids[: delta.num_tokens] if self._keeps_ids else ()
        logprobs = chunk.logprobs[: delta.num_tokens]
        if delta.text or token_ids:
            self._emit(Delta(delta.text, token_ids, logprobs, progress.num_output_tokens))
            self._num_pending_tokens += delta.num_tokens
            self._hold_if_unread()
        if delta.stopped and not progress.is_stopped:
            progress.is_stopped = True
            self.cancel(EndCause.STOP_STRING)

    def _end(self, error: GatewayError | None) -> None:
        rest = "" if self.progress.is_stopped else self._text.finish()
        if rest:
            self._emit(Delta(rest, (), (), self.progress.num_output_tokens))
        is_partial_ok = self.job.ask.admission.is_partial_at_deadline
        job = self.job
        self._outcome = outcome_of(job.admitted, self.progress, self._cause, error, is_partial_ok=is_partial_ok)
        try:
            self._on_end(self, self._outcome)
        finally:
            self._changed.set()

    def _emit(self, event: Event) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(event, Delta) and isinstance(last, Delta):
            self._pending[-1] = last.followed_by(event)
        else:
            self._pending.append(event)
        self._changed.set()

    def _take(self) -> Event:
        event = self._pending.popleft()
        if not self._pending:
            self._num_pending_tokens = 0
            if self._is_reader_blocked and self._call is not None and self._outcome is None:
                self._is_reader_blocked = False
                self._call.reader_ready()
        return event

    def _hold_if_unread(self) -> None:
        is_full = self._num_pending_tokens >= self._buffer_tokens
        # A reader that waits takes everything at the loop's next turn, however much came at once.
        if is_full and not self._is_reader_waiting and not self._is_reader_blocked and self._call is not None:
            self._is_reader_blocked = True
            self._call.reader_blocked()

    def _limit_patience(self) -> None:
        if self._patience is None or self._patience.expired():
            return
        by_s = asyncio.get_running_loop().time() + CANCEL_PATIENCE_S
        now_at_s = self._patience.when()
        self._patience.reschedule(by_s if now_at_s is None else min(by_s, now_at_s))


def _hidden_token_ids(job: Job) -> frozenset[int]:
    """Special tokens and those that end the output are counted and not shown."""
    return job.model.tokenizer.special_token_ids | frozenset(job.ask.stopping.stop_token_ids)
