"""Names of all spans and attributes, the log's form, and the spans of one request, built from timestamps at its end.

Nothing is traced, and the SDK not even imported, unless OTEL_EXPORTER_OTLP_ENDPOINT (or its TRACES form) is set.
Spans are children of the gateway's, whose context comes in the call's `traceparent`; a call without one is not traced.
"""

import contextlib
import logging
import os
import sys
from collections import abc
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine.core.events import Admitted, Event, Finished, Preempted, Resumed, TokensEmitted
from engine.core.types import FinishReason, Nanos, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE_NAME = "evenflow-engine"

SPAN_QUEUE = "evenflow.queue"
SPAN_PREFILL = "evenflow.prefill"
SPAN_DECODE = "evenflow.decode"
SPAN_PREEMPTED = "evenflow.preempted"

ATTRIBUTE_GENERATION_ID = "evenflow.generation_id"
ATTRIBUTE_TENANT = "evenflow.tenant"
ATTRIBUTE_PRIORITY_CLASS = "evenflow.priority_class"
ATTRIBUTE_WEIGHT = "evenflow.weight"
ATTRIBUTE_PROMPT_TOKENS = "evenflow.prompt_tokens"
ATTRIBUTE_CACHED_PROMPT_TOKENS = "evenflow.cached_prompt_tokens"
ATTRIBUTE_OUTPUT_TOKENS = "evenflow.output_tokens"
ATTRIBUTE_STEPS = "evenflow.steps"
ATTRIBUTE_PREEMPTION_MODE = "evenflow.preemption.mode"
ATTRIBUTE_PREEMPTION_REASON = "evenflow.preemption.reason"
ATTRIBUTE_OMITTED_PREEMPTIONS = "evenflow.preemption.omitted"
ATTRIBUTE_FINISH_REASON = "evenflow.finish_reason"

EXPORT_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

# A long request gives way hundreds of times where others are short; its trace must stay one that can be looked at.
MAX_SEGMENTS = 128

Attributes = dict[str, str | int | float]


def configure_logging(log_format: str) -> None:
    """The log goes to stderr: one JSON object a line, or readable text ("auto": on a terminal only)."""
    is_console = log_format == "console" or (log_format == "auto" and sys.stderr.isatty())
    # A traceback with the values of its variables would show prompts.
    console = structlog.dev.ConsoleRenderer(
        colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([console] if is_console else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_names: StderrLogger(),
    )


class StderrLogger:
    """Lines to stderr, whose reader may go away: a process without its supervisor must drain all the same."""

    def write_line(self, line: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = write_line


def start_tracing() -> "Tracing | None":
    """Exporting as the standard OTEL_ variables say; None where they name no endpoint."""
    if not any(os.environ.get(name) for name in EXPORT_ENDPOINTS):
        return None
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # The operator's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the name given here.
    resource = Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider)


class Tracing:
    """Owns the provider; makes one RequestTrace per traced request."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("evenflow.engine")
        self._propagator = TraceContextTextMapPropagator()

    def request_trace(self, metadata: abc.Mapping[str, str], request: Request, unix_ns: int) -> "RequestTrace | None":
        """None if the caller sent no context. `unix_ns` is the calendar time of `request.arrived_at`."""
        parent = self._propagator.extract(metadata)
        if not trace.get_current_span(parent).get_span_context().is_valid:
            return None
        return RequestTrace(self._tracer, parent, request, unix_ns - request.arrived_at)

    def shutdown(self) -> None:
        """Exports what is left. Blocks."""
        self._provider.shutdown()


@dataclass(slots=True)
class Segment:
    """A stretch of a request's life; `end` and the last attributes are set by RequestTrace when it is over."""

    name: str
    start: Nanos
    end: Nanos
    attributes: Attributes = field(default_factory=dict)


class RequestTrace:
    """Notes when a request changed its state, and writes the spans when it has ended, whatever the reason.

    Beyond MAX_SEGMENTS, preemptions are counted on the span that they interrupt and have none of their own.
    """

    def __init__(self, tracer: trace.Tracer, parent: Context, request: Request, unix_offset_ns: int) -> None:
        self._tracer = tracer
        self._parent = parent
        self._unix_offset_ns = unix_offset_ns
        self._common: Attributes = {
            ATTRIBUTE_GENERATION_ID: request.generation_id,
            ATTRIBUTE_TENANT: request.tenant_id,
        }
        self._segments: list[Segment] = []
        self._has_tokens = False
        self._is_omitting = False
        self._begin(SPAN_QUEUE, request.arrived_at)
        self._segments[-1].attributes |= {
            ATTRIBUTE_PRIORITY_CLASS: request.priority_class.name,
            ATTRIBUTE_WEIGHT: request.path[-1].weight,
        }

    def observe(self, event: Event, at: Nanos) -> None:
        """Take note of `event`; Finished writes the spans."""
        match event:
            case Admitted(_, queue_ns):
                self._begin(SPAN_PREFILL, Nanos(self._segments[0].start + queue_ns))
            case TokensEmitted(_, token_ids):
                if self._segments[-1].name != SPAN_DECODE:
                    self._has_tokens = True
                    self._begin(SPAN_DECODE, at)
                self._add(ATTRIBUTE_OUTPUT_TOKENS, len(token_ids))
                self._add(ATTRIBUTE_STEPS, 1)
            case Preempted():
                self._preempt(event, at)
            case Resumed() if not self._is_omitting:
                self._begin(SPAN_DECODE if self._has_tokens else SPAN_PREFILL, at)
            case Finished():
                self._finish(event, at)

    def fail(self, at: Nanos) -> None:
        """The request has ended without a Finished: write the spans, the last one as failed."""
        self._export(at, has_failed=True)

    def _preempt(self, event: Preempted, at: Nanos) -> None:
        self._is_omitting = len(self._segments) >= MAX_SEGMENTS and self._segments[-1].name != SPAN_PREEMPTED
        if self._is_omitting:
            self._add(ATTRIBUTE_OMITTED_PREEMPTIONS, 1)
            return
        self._begin(SPAN_PREEMPTED, at)
        self._segments[-1].attributes |= {
            ATTRIBUTE_PREEMPTION_MODE: event.mode.value,
            ATTRIBUTE_PREEMPTION_REASON: event.reason.value,
        }

    def _begin(self, name: str, at: Nanos) -> None:
        if self._segments:
            self._segments[-1].end = at
        self._segments.append(Segment(name, start=at, end=at))

    def _add(self, attribute: str, number: int) -> None:
        attributes = self._segments[-1].attributes
        attributes[attribute] = int(attributes.get(attribute, 0)) + number

    def _finish(self, finished: Finished, at: Nanos) -> None:
        self._segments[-1].attributes[ATTRIBUTE_FINISH_REASON] = finished.reason.value
        prefill = [segment for segment in self._segments if segment.name == SPAN_PREFILL]
        for segment in prefill[-1:]:
            segment.attributes |= {
                ATTRIBUTE_PROMPT_TOKENS: finished.usage.num_prompt_tokens,
                ATTRIBUTE_CACHED_PROMPT_TOKENS: finished.usage.num_cached_prompt_tokens,
                ATTRIBUTE_STEPS: finished.timings.num_prefill_steps,
            }
        self._export(at, has_failed=finished.reason is FinishReason.ERROR)

    def _export(self, at: Nanos, *, has_failed: bool) -> None:
        self._segments[-1].end = at
        for segment in self._segments:
            span = self._tracer.start_span(
                segment.name,
                context=self._parent,
                attributes=self._common | segment.attributes,
                start_time=segment.start + self._unix_offset_ns,
            )
            if has_failed and segment is self._segments[-1]:
                span.set_status(trace.StatusCode.ERROR)
            span.end(segment.end + self._unix_offset_ns)
