"""How traces and log lines leave the process. Names of spans and attributes: `semconv`.

Spans are exported only where `OTEL_EXPORTER_OTLP_ENDPOINT` is set; otherwise the tracer does nothing. Logs are lines on
stderr. Neither ever holds a credential, and neither a prompt or an output, but for traces where a setting says so.
"""

import os
import sys
import threading
import time
from collections import abc
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.errors import GatewayError
from gateway.light_tracer import LightTracer
from gateway.semconv import ERROR_TYPE
from gateway.span_encoding import LightExporter
from gateway.span_export import BoundedSpans

SERVICE = "evenflow-gateway"
FLUSH_S = 3.0
EXPORT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(slots=True)
class RpcRecord:
    """What logs and error details say about the call that this task serves. Written by interceptors and servicers.

    `arrived_s` is on the monotonic clock.
    """

    method: str
    request_id: str
    # Set from the moment a generation has its own log line and its own settlement.
    generation_id: str | None = None
    # What the caller is told beside its request id, before the first message.
    initial_metadata: dict[str, str] = field(default_factory=dict)
    arrived_s: float = field(default_factory=time.monotonic)


_PROPAGATOR = TraceContextTextMapPropagator()
TRACE_PARENT = "traceparent"

_current_rpc: ContextVar[RpcRecord | None] = ContextVar("evenflow_rpc", default=None)


def current_rpc() -> RpcRecord | None:
    """The call that this task serves; None outside of one."""
    return _current_rpc.get()


def enter_rpc(record: RpcRecord) -> None:
    """From here on this task serves `record`. A task serves one call, so nothing needs to be undone."""
    _current_rpc.set(record)


class Telemetry:
    """The tracer, and the pipeline behind it if there is one."""

    def __init__(self, provider: TracerProvider | None, spans: BoundedSpans | None = None) -> None:
        self._provider = provider
        self._spans = spans
        self.tracer: trace.Tracer = trace.NoOpTracer()
        if provider is not None:
            self.tracer = provider.get_tracer(SERVICE) if spans is None else LightTracer(provider, spans, SERVICE)

    def dropped_spans(self) -> int:
        """How many spans no collector has got, and none will."""
        return 0 if self._spans is None else self._spans.num_dropped

    def close(self) -> None:
        """What was recorded has left the process, or `FLUSH_S` has passed. Blocks until then."""
        if self._provider is not None:
            # A collector that is away must not hold the process; nor must the thread that still waits for it.
            thread = threading.Thread(target=self._provider.shutdown, daemon=True)
            thread.start()
            thread.join(FLUSH_S)


def start_telemetry() -> Telemetry:
    """Exporting if the standard variables name a collector."""
    if not any(os.environ.get(name) for name in EXPORT_VARIABLES):
        return Telemetry(None)
    # The operator's OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win over the name given here.
    resource = Resource.create({SERVICE_NAME: SERVICE}).merge(OTELResourceDetector().detect())
    provider, spans = TracerProvider(resource=resource, shutdown_on_exit=False), BoundedSpans(LightExporter())
    provider.add_span_processor(spans)
    return Telemetry(provider, spans)


def inner_span(tracer: trace.Tracer, name: str) -> AbstractContextManager[trace.Span]:
    """A span inside the current one, which is current in the block and says by what it was refused. Where nothing is
    recorded, it is the current one: most calls are not, and each span would cost as much as if it were."""
    outer = trace.get_current_span()
    if is_left_out(outer) or isinstance(tracer, trace.NoOpTracer):
        return nullcontext(outer)
    return _recorded_span(tracer, name)


@contextmanager
def _recorded_span(tracer: trace.Tracer, name: str) -> abc.Iterator[trace.Span]:
    with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
        try:
            yield span
        except GatewayError as error:
            fail_span(span, error.reason)
            raise


def fail_span(span: trace.Span, error_type: str) -> None:
    """What `span` is of has failed. The reason, not the text: that may say more than a trace is to know."""
    span.set_attribute(ERROR_TYPE, error_type)
    span.set_status(trace.StatusCode.ERROR, error_type)


def is_left_out(span: trace.Span) -> bool:
    """Whether the sampler has decided against the call that `span` is of, and with it against all spans inside."""
    return span.get_span_context().is_valid and not span.is_recording()


def trace_headers(span: trace.Span) -> dict[str, str]:
    """The W3C trace context that makes the receiver's spans children of `span`; empty where nothing is traced."""
    carrier: dict[str, str] = {}
    if span.get_span_context().is_valid:
        _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier


def trace_parent(headers: abc.Mapping[str, str]) -> otel_context.Context:
    """The caller's trace context, empty if it sent none."""
    if TRACE_PARENT not in headers:
        return otel_context.Context()
    return _PROPAGATOR.extract(dict(headers), context=otel_context.Context())


def configure_logging() -> None:
    """Log lines go to stderr: in colour for a person, as JSON for anything else."""
    is_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Plain tracebacks: the richer ones print local variables, and with them prompts and keys.
            *([] if is_terminal else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
            if is_terminal
            else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger("info"),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        # Otherwise each line is written by a logger that is made for it.
        cache_logger_on_first_use=True,
    )
