"""The spans of one generation on this side of the wire: the call of the engine, the making of text, the settlement.

The call's span is opened at the start, because the engine's are its children; all that it says is said at its end, and
the other two are built then, from timestamps. Text is in it only where the operator allows it.
"""

import time
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context

from gateway import semconv
from gateway.semconv import Semconv
from gateway.servicer.ask import ChatPrompt, Prompt, TextPrompt
from gateway.servicer.job import Job
from gateway.servicer.measuring import operation_of
from gateway.servicer.outcome import FinishReason, Outcome
from gateway.servicer.relay import Generation
from gateway.servicer.watched_text import WatchedText
from gateway.span_dialects import Attributes, Content, Message, content_attributes, span_name, translated
from gateway.telemetry import fail_span, is_left_out
from gateway.tokenizer import OutputText

NS_PER_S = 1_000_000_000
# Of a prompt, and of an output: a collector takes messages of 4 MiB, and a batch has many spans.
MAX_CONTENT_CHARACTERS = 16_384
_END_EVENTS = {FinishReason.CANCELLED: semconv.CANCELLED_EVENT, FinishReason.DEADLINE: semconv.DEADLINE_EVENT}


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """`dialect`: whose words; `has_content`: prompt and output are in traces."""

    dialect: Semconv = Semconv.GEN_AI_V0_1
    has_content: bool = False


@dataclass(frozen=True, slots=True)
class Settlement:
    """When it began, in calendar time in ns, and where the usage went: `db`, `spool` while that is away, or `none`."""

    began_at: int
    ledger: str


class GenerationTrace:
    """Written by the Recorder; `span` is that of the engine call, or the RPC's where nothing is recorded."""

    def __init__(self, tracer: trace.Tracer, options: TraceOptions, job: Job) -> None:
        outer = trace.get_current_span()
        self.span = outer
        self._tracer = tracer
        self._options = options
        self._outer: Context = trace.set_span_in_context(outer)
        self._operation = operation_of(job)
        self._text: WatchedText | None = None
        if not is_left_out(outer):
            name = span_name(options.dialect, self._operation, job.model.info.name)
            self.span = tracer.start_span(name, kind=trace.SpanKind.CLIENT)

    def watched(self, text: OutputText) -> OutputText | WatchedText:
        """`text`, watched where there is a span to tell of it."""
        if not self.span.is_recording():
            return text
        self._text = WatchedText(text, keeps_text=self._options.has_content, max_characters=MAX_CONTENT_CHARACTERS)
        return self._text

    def end(self, generation: Generation, outcome: Outcome, settlement: Settlement) -> None:
        """Everything is told and over; the settlement has just ended."""
        span = self.span
        if not span.is_recording():
            return
        said = _asked(generation.job, self._operation) | _answered(generation, outcome)
        span.set_attributes(translated(self._options.dialect, said))
        if self._options.has_content:
            self._tell_content(generation, outcome)
        self._tell_events(generation, outcome)
        if outcome.error is not None:
            fail_span(span, outcome.error.reason)
        if self._text is not None and self._text.first_at is not None:
            self._tell_text(self._text, self._text.first_at, generation.job.generation_id)
        self._tell_settlement(settlement, generation, outcome)
        span.end(settlement.began_at)

    def _tell_settlement(self, settlement: Settlement, generation: Generation, outcome: Outcome) -> None:
        usage = outcome.usage
        billed = usage.num_billed_tokens if generation.progress.is_accepted else 0
        span = self._tracer.start_span(
            semconv.SETTLE_SPAN,
            context=self._outer,
            start_time=settlement.began_at,
            attributes={
                semconv.GENERATION_ID: generation.job.generation_id,
                semconv.BILLED_TOKENS: billed,
                semconv.REFUNDED_TOKENS: max(0, usage.num_reserved_tokens - billed),
                semconv.DISCARDED_TOKENS: usage.num_discarded_tokens,
                semconv.LEDGER: settlement.ledger,
            },
        )
        span.end()

    def _tell_text(self, text: WatchedText, first_at: int, generation_id: str) -> None:
        """As long as the work took: it was done in pieces, up to the end of the output."""
        span = self._tracer.start_span(
            semconv.DETOKENIZE_SPAN,
            context=self._outer,
            start_time=first_at,
            attributes={
                semconv.GENERATION_ID: generation_id,
                semconv.NUM_CHUNKS: text.num_chunks,
                semconv.NUM_CHARACTERS: text.num_characters,
            },
        )
        span.end(first_at + text.busy_ns)

    def _tell_events(self, generation: Generation, outcome: Outcome) -> None:
        first_token_s = generation.progress.first_token_s
        if first_token_s is not None:
            ago_ns = round((time.monotonic() - first_token_s) * NS_PER_S)
            self.span.add_event(semconv.FIRST_OUTPUT_EVENT, timestamp=time.time_ns() - ago_ns)
        if (event := _END_EVENTS.get(outcome.finish_reason)) is not None:
            self.span.add_event(event)

    def _tell_content(self, generation: Generation, outcome: Outcome) -> None:
        prompt, room = [], MAX_CONTENT_CHARACTERS
        for message in _messages(generation.job.ask.prompt):
            prompt.append(Message(message.role, message.text[:room]))
            room = max(0, room - len(message.text))
        output = "" if self._text is None else self._text.kept
        content = Content(tuple(prompt), output, outcome.finish_reason.value)
        self.span.set_attributes(content_attributes(self._options.dialect, content))
        is_cut = not room or (self._text is not None and self._text.num_characters > len(output))
        self.span.set_attribute(semconv.IS_CONTENT_CUT, is_cut)
        stop = generation.job.ask.stopping.stop
        if stop:
            self.span.set_attributes(translated(self._options.dialect, {semconv.GEN_AI_REQUEST_STOP: stop}))


def _asked(job: Job, operation: str) -> Attributes:
    model, sampling = job.model.info.name, job.request.sampling
    return {
        semconv.GEN_AI_OPERATION: operation,
        semconv.GEN_AI_PROVIDER: semconv.PROVIDER,
        semconv.GEN_AI_REQUEST_MODEL: model,
        semconv.GEN_AI_REQUEST_MAX_TOKENS: job.request.max_output_tokens,
        semconv.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
        semconv.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        semconv.GEN_AI_REQUEST_TOP_K: sampling.top_k,
        semconv.GEN_AI_REQUEST_SEED: sampling.seed,
        semconv.GEN_AI_REQUEST_STREAM: job.request.reports_queue,
        semconv.SERVER_ADDRESS: job.model.engine.address,
        semconv.GENERATION_ID: job.generation_id,
        semconv.ORGANIZATION: job.principal.organization or "",
        semconv.TEAM: job.principal.team or "",
        semconv.PRIORITY_CLASS: job.request.priority_class.name,
    }


def _answered(generation: Generation, outcome: Outcome) -> Attributes:
    usage, progress, timings = outcome.usage, generation.progress, outcome.timings
    told: Attributes = {
        semconv.GEN_AI_RESPONSE_ID: generation.job.generation_id,
        semconv.GEN_AI_RESPONSE_MODEL: generation.job.model.info.name,
        semconv.GEN_AI_FINISH_REASONS: tuple([each.value for each in progress.found or (outcome.finish_reason,)]),
        semconv.GEN_AI_INPUT_TOKENS: usage.num_input_tokens,
        semconv.GEN_AI_CACHED_TOKENS: usage.num_cached_input_tokens,
        semconv.GEN_AI_OUTPUT_TOKENS: usage.num_output_tokens,
        semconv.BILLED_TOKENS: usage.num_billed_tokens,
    }
    if generation.job.ask.num_beams > 1:
        told[semconv.NUM_BEAMS] = generation.job.ask.num_beams
    if outcome.num_preemptions:
        told[semconv.NUM_PREEMPTIONS] = outcome.num_preemptions
    if progress.first_token_s is not None:
        told[semconv.GEN_AI_FIRST_CHUNK_S] = progress.first_token_s - progress.started_s
    if timings is not None:
        queue_s, prefill_s = timings.queue_ns / NS_PER_S, timings.prefill_ns / NS_PER_S
        decode_s = timings.decode_ns / NS_PER_S
        told |= {
            semconv.GEN_AI_LATENCY_QUEUE_S: queue_s,
            semconv.GEN_AI_LATENCY_FIRST_S: queue_s + prefill_s,
            semconv.GEN_AI_LATENCY_PREFILL_S: prefill_s,
            semconv.GEN_AI_LATENCY_DECODE_S: decode_s,
            semconv.GEN_AI_LATENCY_INFERENCE_S: prefill_s + decode_s,
            semconv.GEN_AI_LATENCY_WHOLE_S: queue_s + prefill_s + decode_s,
        }
    return told


def _messages(prompt: Prompt) -> tuple[Message, ...]:
    """What the prompt says; nothing where it came in tokens."""
    match prompt:
        case ChatPrompt(messages):
            return tuple(Message(message.role, message.content) for message in messages)
        case TextPrompt(text):
            return (Message("user", text),)
        case _:
            return ()
