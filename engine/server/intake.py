"""Which requests may enter, and which are live. asyncio thread only. What health says is what holds here.

A call is live until its request has ended in the engine *and* its stream is over: draining waits for both, so that a
final message is written and a disconnected client's blocks are free before the process goes.
"""

import asyncio
import time
from collections import Counter, abc
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import structlog
from grpc_health.v1 import health, health_pb2

from engine.core.config import SchedulerConfig
from engine.core.events import Admitted, Event, Finished, Preempted
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, Request
from engine.decision_log import PolicyChoice
from engine.errors import DrainingError, NotReadyError, RefusedError
from engine.grammars.compiler import GrammarCompiler, Vocabulary
from engine.loop import EngineLoop
from engine.loop_messages import Abort, Accepted, Outlet, QueuedAt, Refused, Submit, Update
from engine.request_trace import RequestTrace
from engine.server.convert import Limits, usage_to_pb
from engine.server.mailbox import Mailbox
from engine.server.step_watch import StepTold
from engine.server.usage_outbox import NO_ACCOUNT, Account, UsageOutbox, keep
from engine.telemetry import Tracing

if TYPE_CHECKING:  # it imports torch, which only the runner needs
    from engine.model.info import ModelInfo

log = structlog.get_logger(__name__)

HEALTH_SERVICES = ("", "evenflow.engine.v1.EngineService")


@dataclass(frozen=True, slots=True)
class Engine:
    """What is being served, once the model is loaded, and by which policies; their options as they were given.

    `drafts` are the kind of speculation and the name of the model that proposes drafts; empty: none does.
    """

    loop: EngineLoop
    model: "ModelInfo"
    config: SchedulerConfig
    scheduling_policy: str
    preemption_policy: str
    scheduling_options: abc.Mapping[str, str] = field(default_factory=dict)
    preemption_options: abc.Mapping[str, str] = field(default_factory=dict)
    drafts: tuple[str, str] = ("off", "")

    @property
    def policies(self) -> tuple[PolicyChoice, PolicyChoice]:
        """Scheduling and preemption, as they were asked for."""
        return (
            PolicyChoice(self.scheduling_policy, self.scheduling_options),
            PolicyChoice(self.preemption_policy, self.preemption_options),
        )

    @property
    def limits(self) -> Limits:
        eos_token_ids = frozenset(self.model.eos_token_ids)
        return Limits(self.model.vocabulary_size, eos_token_ids, self.config.max_request_tokens)


@dataclass(slots=True, eq=False)
class Call:
    """One request that entered. `has_left` is written by Intake when the stream is over, `was_scheduled` when any of
    it was in a step's plan; `num_kept_tokens` by whoever reads the stream, where the output ends before its end.
    `cancel_reason` is the wire's, of a call that another one has ended.
    """

    request: Request
    arrived_unix_ns: int
    mailbox: Mailbox
    trace: RequestTrace | None
    account: Account
    has_left: bool = field(default=False)
    was_scheduled: bool = field(default=False)
    num_kept_tokens: int | None = field(default=None)
    cancel_reason: int = field(default=0)

    def told_queue(self, is_client_told: bool) -> Outlet | None:
        """Who hears of its place in the queue: its client and its trace, its trace alone, or nobody."""
        if is_client_told:
            return self.mailbox
        return None if self.trace is None else _TraceOutlet(self.trace)


@dataclass(frozen=True, slots=True)
class _TraceOutlet:
    """Where updates go that only a trace takes note of."""

    trace: RequestTrace

    def put(self, update: Update, at: Nanos) -> None:
        _tell(self.trace, update, at)


class Intake:
    """Loading, then open, then closed for good; or failed, when the engine thread has ended by itself."""

    def __init__(self, tracing: Tracing | None) -> None:
        self.health = health.aio.HealthServicer()
        self.is_closed = False
        self.num_finished = 0
        self.usage = UsageOutbox()
        self.preemptions: Counter[tuple[PreemptionMode, PauseReason]] = Counter()
        self._tracing = tracing
        self._engine: Engine | None = None
        self._grammars: GrammarCompiler | None = None
        self._problem = "the model is being loaded"
        self._calls: set[Call] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def num_dropped_spans(self) -> int | None:
        """Spans that no collector has got; None: there are no spans."""
        return None if self._tracing is None else self._tracing.num_dropped_spans

    @property
    def engine(self) -> Engine:
        """Raises NotReadyError while there is none."""
        if self._engine is None:
            raise NotReadyError(self._problem)
        return self._engine

    @property
    def grammars(self) -> GrammarCompiler:
        """Of the model. Raises NotReadyError while there is none."""
        if self._grammars is None:
            raise NotReadyError(self._problem)
        return self._grammars

    async def begin(self) -> None:
        """Health says NOT_SERVING until `open`."""
        for service in HEALTH_SERVICES:
            await self.health.set(service, health_pb2.HealthCheckResponse.NOT_SERVING)

    async def open(self, engine: Engine) -> None:
        """Requests may enter."""
        model = engine.model
        grammars = GrammarCompiler(Vocabulary(model.tokenizer_json, model.vocabulary_size, model.eos_token_ids))
        await grammars.prepare()
        self._engine, self._grammars = engine, grammars
        for service in HEALTH_SERVICES:
            await self.health.set(service, health_pb2.HealthCheckResponse.SERVING)

    def note_policies(self, scheduling: PolicyChoice | None, preemption: PolicyChoice | None) -> None:
        """The engine has switched to these; None: no switch."""
        engine = self.engine
        if scheduling is not None:
            engine = replace(engine, scheduling_policy=scheduling.name, scheduling_options=scheduling.options)
        if preemption is not None:
            engine = replace(engine, preemption_policy=preemption.name, preemption_options=preemption.options)
        self._engine = engine

    async def close(self) -> None:
        """No request enters any more; those inside go on. Idempotent."""
        self.is_closed = True
        await self.health.enter_graceful_shutdown()

    async def fail(self, problem: str) -> None:
        """The engine is gone: every call ends with NotReadyError."""
        self._engine, self._problem = None, problem
        self.usage.close()
        await self.health.enter_graceful_shutdown()
        for call in tuple(self._calls):
            call.mailbox.put(Refused(NotReadyError(problem)), Nanos(time.monotonic_ns()))

    def enter(self, request: Request, metadata: abc.Mapping[str, str], account: Account = NO_ACCOUNT) -> Call:
        """Queue `request`; from now on the call is live. Raises DrainingError, NotReadyError."""
        if self.is_closed:
            raise DrainingError
        arrived_unix_ns = time.time_ns() - (self.engine.loop.now() - request.arrived_at)
        trace = self._trace_of(request, metadata, arrived_unix_ns)
        mailbox = Mailbox(lambda update, at: self._observe(call, update, at))
        call = Call(request, arrived_unix_ns, mailbox, trace, account)
        self._calls.add(call)
        self._is_idle.clear()
        self.engine.loop.submit(Submit(call.mailbox, request))
        return call

    def tell_step(self, told: StepTold) -> None:
        """A step is told in the traces of the requests that it computed, if one of them has any."""
        traces = [call.trace for call in self._calls if call.trace is not None]
        mine = [trace for trace in traces if trace.generation_id in told.generation_ids]
        if mine and self._tracing is not None and self._engine is not None:
            offset_ns = time.time_ns() - self._engine.loop.now()
            sizes = len(told.generation_ids), told.num_tokens
            self._tracing.write_step(told.started_at + offset_ns, told.ended_at + offset_ns, mine, sizes)

    def leave(self, call: Call) -> None:
        """The call's stream is over. A request that has not ended is aborted before the next step."""
        call.has_left = True
        self._abort(call, FinishReason.CANCELLED)
        self._settle(call)

    def reject(self, call: Call, error: RefusedError) -> None:
        """The request is aborted, and its stream ends with `error`, unless the engine is gone: then it ends anyway."""
        if self._engine is None:
            return
        self._abort(call, FinishReason.CANCELLED)
        call.mailbox.put(Refused(error), self._engine.loop.now())

    def cancel(self, is_meant: abc.Callable[[Request, str], bool], reason: int) -> list[str]:
        """Live requests that are meant, each with its sender, end before the next step; returns their ids."""
        live = [call for call in self._calls if not call.mailbox.has_ended]
        meant = [call for call in live if is_meant(call.request, call.account.sender_id)]
        for call in meant:
            call.cancel_reason = reason
            self._abort(call, FinishReason.CANCELLED)
        return [call.request.generation_id for call in meant]

    def abort_all(self, reason: FinishReason) -> None:
        """Every live request ends with `reason`."""
        for call in self._calls:
            self._abort(call, reason)

    async def wait_idle(self) -> None:
        """Returns once no call is live."""
        await self._is_idle.wait()

    def _abort(self, call: Call, reason: FinishReason) -> None:
        if not call.mailbox.has_ended and self._engine is not None:
            self._engine.loop.submit(Abort(call.mailbox, call.request.generation_id, reason))

    def _observe(self, call: Call, update: Update, at: Nanos) -> None:
        if call.trace is not None:
            _tell(call.trace, update, at)
        if isinstance(update, Preempted):
            self.preemptions[update.mode, update.reason] += 1
        if isinstance(update, Admitted):
            call.was_scheduled = True
        if isinstance(update, Finished):
            self._account_for(call, update)
            self.num_finished += 1
            _log_end(call.request, update)
        self._settle(call)

    def _trace_of(self, request: Request, metadata: abc.Mapping[str, str], unix_ns: int) -> RequestTrace | None:
        if self._tracing is None:
            return None
        block_bytes = self.engine.config.block_size * self.engine.model.kv_bytes_per_token
        return self._tracing.request_trace(metadata, request, unix_ns, block_bytes)

    def _account_for(self, call: Call, finished: Finished) -> None:
        if not call.account.ledger_id:
            return
        usage = usage_to_pb(call.request, finished, call.arrived_unix_ns)
        usage.usage_tag = call.account.usage_tag
        usage.scheduled = call.was_scheduled
        usage.finished_unix_ns = time.time_ns()
        if call.num_kept_tokens is not None:
            keep(usage, call.num_kept_tokens)
        self.usage.add(call.account.ledger_id, usage)

    def _settle(self, call: Call) -> None:
        if call.has_left and call.mailbox.has_ended:
            self._calls.discard(call)
        if not self._calls:
            self._is_idle.set()


def _tell(trace: RequestTrace, update: Update, at: Nanos) -> None:
    match update:
        case Accepted(num_waiting):
            trace.note_depth(num_waiting)
        case QueuedAt(position):
            trace.note_position(position)
        case Refused():
            trace.fail(at)
        case _ if isinstance(update, Event):
            trace.observe(update, at)


def _log_end(request: Request, finished: Finished) -> None:
    log.info(
        "request finished",
        generation_id=request.generation_id,
        tenant=request.tenant_id,
        reason=finished.reason.value,
        prompt_tokens=finished.usage.num_prompt_tokens,
        output_tokens=finished.usage.num_output_tokens,
        num_preemptions=finished.usage.num_preemptions,
        queue_ms=round(finished.timings.queue_ns / 1e6, 1),
    )
