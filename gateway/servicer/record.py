"""What is left of a request when it has ended: its settlement, its ledger event, its span and its log line."""

import time
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import structlog
from opentelemetry import trace

from gateway.admission import Admission
from gateway.admission_terms import Admitted
from gateway.auth import Principal
from gateway.engine_client import EngineRequest
from gateway.errors import cause_of
from gateway.ledger import Ledger
from gateway.meters import Meters
from gateway.servicer.ask import GenerationAsk
from gateway.servicer.generation_trace import GenerationTrace, Settlement, TraceOptions
from gateway.servicer.job import Job
from gateway.servicer.live import LiveGenerations
from gateway.servicer.measuring import ended_of
from gateway.servicer.outcome import FinishReason, Outcome
from gateway.servicer.relay import Generation
from gateway.servicer.request_ids import RequestIds
from gateway.store.enums import UsageSource
from gateway.store.usage import UsageEvent
from gateway.witness import UsageTag, Witness

log = structlog.get_logger()


class Recorder:
    """Called once per generation, at its beginning and at its end."""

    def __init__(
        self,
        admission: Admission,
        ledger: Ledger,
        witness: Witness,
        live: LiveGenerations,
        request_ids: RequestIds,
        tracer: trace.Tracer,
        meters: Meters | None = None,
        options: TraceOptions | None = None,
    ) -> None:
        self._admission = admission
        self._ledger = ledger
        self._witness = witness
        self._live = live
        self._request_ids = request_ids
        self._tracer = tracer
        self._options = options or TraceOptions()
        self._meters = meters or Meters()

    def accountable(
        self, request: EngineRequest, principal: Principal, ask: GenerationAsk, admitted: Admitted
    ) -> EngineRequest:
        """`request` with what the engine has to know to account for it alone, should this process not live to."""
        assert principal.organization_id is not None, "whoever belongs to no team does not generate"
        assert principal.team_id is not None
        tag = UsageTag(
            ledger_id=self._ledger.id,
            organization_id=principal.organization_id,
            team_id=principal.team_id,
            key_id=principal.key_id,
            model=admitted.demand.model,
            priority_class=request.priority_class.name,
            num_input_tokens=admitted.demand.num_input_tokens,
            num_reserved_tokens=admitted.reserved_tokens,
            policy_revision=admitted.policy_revision,
            request_id=ask.request_id,
            labels=ask.admission.labels,
        )
        return replace(request, ledger_id=self._ledger.id, usage_tag=tag.encode(), sender_id=str(principal.key_id))

    async def on_disk(self) -> None:
        """Return when every event so far would survive this process."""
        await self._ledger.on_disk()

    def begin_span(self, job: Job) -> GenerationTrace:
        """The span of the engine call, child of the RPC's; that one itself where it is not recorded."""
        return GenerationTrace(self._tracer, self._options, job)

    def ended(self, told: GenerationTrace, request_id: str, generation: Generation, outcome: Outcome) -> None:
        """It is settled, on its way to the ledger, and no longer live: each, whatever becomes of the others."""
        job = generation.job
        is_billed = outcome.error is None or outcome.usage.num_billed_tokens > 0
        ledger = "none" if not generation.progress.is_accepted else "spool" if self._ledger.is_behind else "db"
        with self._meters.stage("settle"), ExitStack() as steps:  # the last one is the first to happen
            steps.callback(self._measure, generation, outcome)
            steps.callback(_log_line, request_id, generation, outcome)
            steps.callback(told.end, generation, outcome, Settlement(time.time_ns(), ledger))
            steps.callback(self._settle, job, outcome, is_accepted=generation.progress.is_accepted)
            if generation.progress.is_accepted:
                steps.callback(self._account, generation, outcome)
            steps.callback(self._request_ids.ended, job.generation_id, is_billed=is_billed)
            steps.callback(self._live.remove, generation, answers_retries=is_billed)

    def _measure(self, generation: Generation, outcome: Outcome) -> None:
        self._meters.ended(ended_of(generation, outcome))

    def _account(self, generation: Generation, outcome: Outcome) -> None:
        self._ledger.record(_usage_event(generation, outcome))
        if generation.progress.is_stopped:
            job = generation.job
            self._witness.note_kept(job.model.engine, job.generation_id, outcome.usage.num_output_tokens)

    def _settle(self, job: Job, outcome: Outcome, *, is_accepted: bool) -> None:
        if is_accepted:
            usage = outcome.usage
            self._admission.settle(
                job.admitted,
                usage.num_input_tokens,
                usage.num_output_tokens,
                usage.num_cached_input_tokens,
                is_whole=outcome.error is None and outcome.finish_reason in (FinishReason.STOP, FinishReason.LENGTH),
            )
        else:
            self._admission.release(job.admitted)


def _usage_event(generation: Generation, outcome: Outcome) -> UsageEvent:
    job, usage, timings = generation.job, outcome.usage, outcome.timings
    assert job.principal.organization_id is not None, "a platform key does not generate"
    assert job.principal.team_id is not None
    finished = generation.progress.finished
    return UsageEvent(
        generation_id=UUID(job.generation_id),
        organization_id=job.principal.organization_id,
        team_id=job.principal.team_id,
        key_id=job.principal.key_id,
        model=job.model.info.name,
        priority_class=job.request.priority_class.name,
        input_tokens=usage.num_input_tokens,
        output_tokens=usage.num_output_tokens,
        billed_tokens=usage.num_billed_tokens,
        finish_reason=outcome.finish_reason.value.upper(),
        source=UsageSource.ENGINE if finished else UsageSource.GATEWAY,
        finished_at=datetime.now(UTC),
        policy_revision=job.admitted.policy_revision,
        request_id=job.ask.request_id,
        cached_input_tokens=usage.num_cached_input_tokens,
        reserved_tokens=usage.num_reserved_tokens,
        discarded_tokens=usage.num_discarded_tokens,
        recomputed_tokens=finished.usage.recomputed_tokens if finished else 0,
        num_preemptions=outcome.num_preemptions,
        queue_ns=timings.queue_ns if timings else 0,
        prefill_ns=timings.prefill_ns if timings else 0,
        decode_ns=timings.decode_ns if timings else 0,
        preempted_ns=timings.preempted_ns if timings else 0,
        labels=job.ask.admission.labels,
    )


def _log_line(request_id: str, generation: Generation, outcome: Outcome) -> None:
    job, progress = generation.job, generation.progress
    first_token_s = progress.first_token_s
    log.info(
        "request finished",
        generation_id=job.generation_id,
        request_id=request_id,
        key=job.principal.public_id,
        organization=job.principal.organization,
        team=job.principal.team,
        model=job.model.info.name,
        priority_class=job.request.priority_class.name,
        finish_reason=outcome.finish_reason.value,
        error=outcome.error.reason if outcome.error else None,
        input_tokens=outcome.usage.num_input_tokens,
        output_tokens=outcome.usage.num_output_tokens,
        num_preemptions=outcome.num_preemptions,
        first_token_ms=None if first_token_s is None else round((first_token_s - progress.started_s) * 1000, 1),
        duration_ms=round((time.monotonic() - progress.started_s) * 1000, 1),
        **cause_of(outcome.error),
    )
