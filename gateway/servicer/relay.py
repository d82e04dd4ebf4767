"""One accepted request, from the engine call to its settlement.

A `Generation` runs in a task of its own that nobody cancels: callers come and go, what the engine computed is billed
exactly once. Calls read its journal; whoever wants an early end calls `cancel`. A client that does not read makes the
engine hold the sequence instead of the journal grow.
"""

import asyncio
from collections import abc
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import structlog

from gateway.engine_client import (
    Accepted,
    BeamResult,
    CancelReason,
    EngineCall,
    EngineEvent,
    Finished,
    Preempted,
    QueuedAt,
    Resumed,
    TokenChunk,
)
from gateway.engine_client import Admitted as Scheduled
from gateway.errors import DrainingError, GatewayError, InternalError, LedgerUnavailableError
from gateway.servicer.ending import EndCause, Progress, broken, outcome_of
from gateway.servicer.found_output import found_output
from gateway.servicer.job import Job, new_text
from gateway.servicer.journal import Journal, JournalSizes
from gateway.servicer.outcome import Continued, Delta, Outcome, Paused, Queued, Started
from gateway.servicer.prompt_scores import PromptScores
from gateway.servicer.transcript import Transcript
from gateway.servicer.watched_text import WatchedText
from gateway.tokenizer import OutputText

# How long the engine may take to answer a cancellation, before the call is dropped and billed by what was received. It
# answers between two steps, and on a busy CPU a step can take seconds.
CANCEL_PATIENCE_S = 5.0
# How long the usage of a durable team may take to the disk.
DISK_PATIENCE_S = 10.0

log = structlog.get_logger()


_WIRE_REASONS = {
    EndCause.CLIENT: CancelReason.CLIENT,
    EndCause.STOP_STRING: CancelReason.STOP_STRING,
    EndCause.KEY_REVOKED: CancelReason.KEY_REVOKED,
    EndCause.DRAINING: CancelReason.CLIENT,
    EndCause.ADMINISTRATOR: CancelReason.CLIENT,
    EndCause.QUOTA: CancelReason.CLIENT,
}


class Generation:
    """One request while it runs. Written by its own task; any number of calls may read its journal."""

    def __init__(
        self,
        job: Job,
        sizes: JournalSizes,
        on_end: abc.Callable[["Generation", Outcome], None],
        on_disk: abc.Callable[[], abc.Awaitable[None]],
        watched: abc.Callable[[OutputText], OutputText | WatchedText] = lambda text: text,
    ) -> None:
        """`on_end` is called once, at the end; `on_disk` returns when what that left is on disk; `watched` has a look
        at the making of the text."""
        self.job = job
        self.progress = Progress()
        self.journal = Journal(sizes, self._hold)
        self.transcript = _transcript(job, self.journal)
        self._text = watched(new_text(job))
        output = job.ask.output
        self._keeps_ids = output.returns_token_ids or output.num_logprobs is not None
        self._scores = PromptScores(() if output.num_prompt_logprobs is None else job.request.prompt_token_ids)
        self._on_end = on_end
        self._on_disk = on_disk
        self._slices = job.admitted.slices
        self._call: EngineCall | None = None
        self._task: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout | None = None
        self._cause: EndCause | None = None
        self._num_told_tokens = 0

    @property
    def outcome(self) -> Outcome | None:
        """The end; None while it runs."""
        return self.transcript.outcome

    def start(self, trace_headers: abc.Mapping[str, str]) -> None:
        """The request is on its way to the engine, whose open call it is at once. From here on it settles by itself."""
        self._call = self.job.model.engine.generate(self.job.request, trace_headers)
        self._task = asyncio.create_task(self._run(self._call), name=f"generation {self.job.generation_id}")

    def cancel(self, cause: EndCause) -> bool:
        """The engine is told to stop; false if it had been told, or the request has ended."""
        if self.outcome is not None or self._cause is not None:
            return False
        self._cause = cause
        if self._call is not None:
            self._cancel_call(self._call, cause)
        return True

    def left(self) -> None:
        """One of its readers is gone. If it was the last one nobody wants the rest, unless the request said so."""
        if not self.journal.num_readers and not self.transcript.survives_disconnect:
            self.cancel(EndCause.CLIENT)

    async def ended(self) -> None:
        """Return when the request is settled."""
        assert self._task is not None, "the generation was started"
        await asyncio.wait([self._task])

    async def _run(self, call: EngineCall) -> None:
        try:
            await self._serve(call)
            if self.job.admitted.has_durable_usage:
                await self._until_on_disk()
        finally:
            self.journal.end()

    async def _until_on_disk(self) -> None:
        """What the end left is on disk, or the caller is told that it is not."""
        try:
            async with asyncio.timeout(DISK_PATIENCE_S):
                await self._on_disk()
        except TimeoutError:
            assert self.outcome is not None, "it has ended"
            self.transcript.outcome = replace(self.outcome, error=LedgerUnavailableError())

    async def _serve(self, call: EngineCall) -> None:
        error: GatewayError | None = None
        try:
            if self._slices is not None:
                self._slices.begin(call, partial(self.cancel, EndCause.QUOTA))
            await self._relay(call)
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
            try:
                self._let_go(call)
            finally:
                self._end(error)

    def _let_go(self, call: EngineCall) -> None:
        try:
            if self._slices is not None:
                self._slices.end()
        finally:
            call.abandon()

    async def _relay(self, call: EngineCall) -> None:
        async with asyncio.timeout_at(self.job.give_up_at_s) as self._patience, aclosing(call.events()) as events:
            if self._cause is not None:  # it was told to stop before anybody waited for its end
                self._limit_patience()
            async for event in events:
                self._on_event(event)

    def _on_event(self, event: EngineEvent) -> None:
        match event:
            case TokenChunk():
                self._on_tokens(event)
            case Accepted():
                self.progress.is_accepted = True
                self.journal.append(Started())
                if first := self._scores.first():
                    self.journal.append(Delta("", (), (), 0, 0, first))
            case QueuedAt():
                self.transcript.queued = Queued(event.position, event.is_lower_bound, event.estimated_wait_ns)
                self.journal.append(self.transcript.queued)
            case Scheduled():
                self.progress.is_scheduled = self.transcript.is_scheduled = True
                self.transcript.queued = None
            case Preempted():
                self.transcript.is_paused = True
                self.journal.append(Paused(event.reason, event.mode))
            case Resumed():
                self.transcript.is_paused = False
                self.journal.append(Continued())
            case Finished():
                self.progress.finished = event
                self._limit_patience()  # what is left is the end of the call

    def _on_tokens(self, chunk: TokenChunk) -> None:
        if chunk.beam is not None:
            self._on_found(chunk, chunk.beam)
            return
        progress = self.progress
        progress.note_tokens(len(chunk.token_ids))
        if self._slices is not None:
            self._slices.note(progress.num_received_tokens)
        delta = self._text.push(chunk.token_ids)
        progress.num_output_tokens += delta.num_tokens
        # Ids and logprobs are of the tokens; the text may lag behind them.
        token_ids = chunk.token_ids[: delta.num_tokens] if self._keeps_ids else ()
        logprobs = chunk.logprobs[: delta.num_tokens]
        prompt = self._scores.take(chunk.prompt_logprobs)
        if delta.text or token_ids or prompt:
            num_tokens = progress.num_output_tokens - self._num_told_tokens
            self._num_told_tokens = progress.num_output_tokens
            self.journal.append(Delta(delta.text, token_ids, logprobs, num_tokens, progress.num_output_tokens, prompt))
        if delta.stopped and not progress.is_stopped:
            progress.is_stopped = True
            self.cancel(EndCause.STOP_STRING)

    def _on_found(self, chunk: TokenChunk, beam: BeamResult) -> None:
        """One of the outputs of a search, which come the best first. The trace tells of that one's text."""
        self.progress.note_tokens(len(chunk.token_ids))
        text = new_text(self.job) if self.progress.found else self._text
        delta = found_output(chunk, beam, text, keeps_ids=self._keeps_ids)
        assert delta.found is not None, "it is an output of a search"
        self.progress.found.append(delta.found.finish_reason)
        self.journal.append(delta)

    def _end(self, error: GatewayError | None) -> None:
        """Whatever fails here, there is an outcome, and `on_end` has it."""
        try:
            outcome = self._outcome(error)
        except Exception:
            log.exception("the end of a generation cannot be told", generation_id=self.job.generation_id)
            outcome = broken(self.job.admitted, self.progress)
        self.transcript.outcome = outcome
        try:
            self._on_end(self, outcome)
        except Exception:
            log.exception("the end of a generation is not all recorded", generation_id=self.job.generation_id)

    def _outcome(self, error: GatewayError | None) -> Outcome:
        """The end, after the last of the text."""
        job, progress = self.job, self.progress
        rest = "" if progress.is_stopped or progress.found else self._text.finish()
        if rest:
            num_tokens = progress.num_output_tokens - self._num_told_tokens
            self.journal.append(Delta(rest, (), (), num_tokens, progress.num_output_tokens))
        is_partial_ok = job.ask.admission.is_partial_at_deadline
        return outcome_of(job.admitted, progress, self._cause, error, job.deadline_ns, is_partial_ok=is_partial_ok)

    def _hold(self, is_held: bool) -> None:
        if self._call is None or self.outcome is not None:
            return
        if is_held:
            self.progress.num_reader_holds += 1
            self._call.reader_blocked()
        else:
            self._call.reader_ready()

    def _cancel_call(self, call: EngineCall, cause: EndCause) -> None:
        call.cancel(_WIRE_REASONS[cause], self.progress.num_output_tokens if self.progress.is_stopped else None)
        self._limit_patience()

    def _limit_patience(self) -> None:
        if self._patience is None or self._patience.expired():
            return
        by_s = asyncio.get_running_loop().time() + CANCEL_PATIENCE_S
        now_at_s = self._patience.when()
        self._patience.reschedule(by_s if now_at_s is None else min(by_s, now_at_s))


def _transcript(job: Job, journal: Journal) -> Transcript:
    assert job.principal.team_id is not None, "a platform key does not generate"
    ask, demand = job.ask, job.admitted.demand
    return Transcript(
        generation_id=job.generation_id,
        team_id=job.principal.team_id,
        key_id=job.principal.key_id,
        request_id=ask.request_id,
        fingerprint=ask.fingerprint,
        model=job.model.info.name,
        priority_class=job.request.priority_class.name,
        tokenizer=job.model.tokenizer,
        shows_token_ids=ask.output.returns_token_ids,
        num_input_tokens=demand.num_input_tokens,
        num_reserved_tokens=job.admitted.reserved_tokens,
        survives_disconnect=ask.admission.detaches,
        journal=journal,
    )
