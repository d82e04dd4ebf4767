"""The log's form, and how traces leave the process.

Nothing is traced, and the SDK not even imported, unless OTEL_EXPORTER_OTLP_ENDPOINT (or its TRACES form) is set.
Spans are children of the gateway's, whose context comes in the call's `traceparent`; a call without one is not traced,
nor one that the sampler decides against: by default, one that its caller has decided against.
"""

import contextlib
import logging
import os
import sys
from collections import abc
from typing import TYPE_CHECKING

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from engine import semconv
from engine.core.types import Request
from engine.request_trace import RequestTrace

if TYPE_CHECKING:  # the SDK is imported where traces are exported
    from opentelemetry.sdk.trace import TracerProvider

    from engine.span_export import BoundedSpans

SERVICE_NAME = "evenflow-engine"

EXPORT_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


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

    from engine.span_export import BoundedSpans

    # The operator's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the name given here.
    resource = Resource.create({"service.name": SERVICE_NAME}).merge(OTELResourceDetector().detect())
    provider, spans = TracerProvider(resource=resource, shutdown_on_exit=False), BoundedSpans(OTLPSpanExporter())
    provider.add_span_processor(spans)
    return Tracing(provider, spans)


class Tracing:
    """Owns the provider; makes one RequestTrace per traced request."""

    def __init__(self, provider: "TracerProvider", spans: "BoundedSpans | None" = None) -> None:
        self._provider = provider
        self._spans = spans
        self._tracer = provider.get_tracer("evenflow.engine")
        self._propagator = TraceContextTextMapPropagator()

    @property
    def num_dropped_spans(self) -> int:
        """Spans that no collector has got."""
        return 0 if self._spans is None else self._spans.num_dropped

    def request_trace(
        self, metadata: abc.Mapping[str, str], request: Request, unix_ns: int, block_bytes: int = 0
    ) -> RequestTrace | None:
        """None if the caller sent no context, or the sampler says no. `unix_ns` is the calendar time of
        `request.arrived_at`, `block_bytes` the size of a KV block."""
        parent = self._propagator.extract(metadata)
        context = trace.get_current_span(parent).get_span_context()
        if not context.is_valid:
            return None
        # All spans of a trace have the same fate, so that whoever has none need not take notes of anything.
        decided = self._provider.sampler.should_sample(parent, context.trace_id, semconv.SPAN_QUEUE)
        if not decided.decision.is_sampled():  # type: ignore[no-untyped-call]  # the SDK gives it no types
            return None
        return RequestTrace(self._tracer, parent, request, unix_ns - request.arrived_at, block_bytes)

    def write_step(
        self, start_unix_ns: int, end_unix_ns: int, traces: abc.Sequence[RequestTrace], sizes: tuple[int, int]
    ) -> None:
        """A step is a span of its own, linked to the `traces` that it is a part of. `sizes`: sequences and tokens."""
        span = self._tracer.start_span(
            semconv.SPAN_STEP,
            context=Context(),
            links=[trace.Link(request.context) for request in traces],
            attributes=dict(zip((semconv.ATTRIBUTE_SEQUENCES, semconv.ATTRIBUTE_TOKENS), sizes, strict=True)),
            start_time=start_unix_ns,
        )
        span.end(end_unix_ns)

    def shutdown(self) -> None:
        """Exports what is left. Blocks."""
        self._provider.shutdown()
