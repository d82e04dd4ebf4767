"""The names of all spans, attributes and log events of the gateway, and how they leave the process.

Spans are exported only where `OTEL_EXPORTER_OTLP_ENDPOINT` is set; otherwise the tracer does nothing. Logs are lines on
stderr. Neither ever holds prompt text, generated text or a credential. Attribute names: OpenTelemetry's semantic
conventions for RPC and for GenAI v0.1.0.
"""

import os
import sys
import threading
from collections import abc
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field

import structlog
from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SERVICE = "evenflow-gateway"
PROVIDER = "evenflow"
FLUSH_S = 3.0
EXPORT_VARIABLES = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

AUTH_SPAN = "evenflow.auth"
ADMISSION_SPAN = "evenflow.admission"

AUTH_CACHE = "evenflow.auth.cache"
POLICY_REVISION = "evenflow.policy.revision"
RESERVED_TOKENS = "evenflow.admission.reserved_tokens"
NUM_LIMITS = "evenflow.admission.limits"
BILLED_TOKENS = "evenflow.billed_tokens"
GENERATION_ID = "evenflow.generation_id"
ORGANIZATION = "evenflow.organization"
TEAM = "evenflow.team"
PRIORITY_CLASS = "evenflow.priority_class"

RPC_SYSTEM = "rpc.system.name"
RPC_METHOD = "rpc.method"
RPC_STATUS_CODE = "rpc.response.status_code"
ERROR_TYPE = "error.type"
GEN_AI_OPERATION = "gen_ai.operation.name"
GEN_AI_PROVIDER = "gen_ai.provider.name"
GEN_AI_REQUEST_MODEL = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K = "gen_ai.request.top_k"
GEN_AI_RESPONSE_ID = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL = "gen_ai.response.model"
GEN_AI_FINISH_REASONS = "gen_ai.response.finish_reasons"
GEN_AI_FIRST_CHUNK_S = "gen_ai.response.time_to_first_chunk"
GEN_AI_INPUT_TOKENS = "gen_ai.usage.input_tokens"
GEN_AI_CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"

# Metrics, as Prometheus has them; a counter's name ends in `_total` when it is scraped. Labels: `engine` is an address,
# `tenant` is `organization/team` for the tenants that are served most, and OTHER_TENANTS for all others together.
METRIC_LIVE_REQUESTS = "evenflow_gateway_live_requests"
METRIC_POLICY_REVISION = "evenflow_gateway_policy_revision"
METRIC_STORE_UP = "evenflow_gateway_store_up"
METRIC_UPTIME = "evenflow_gateway_uptime_seconds"
METRIC_SPOOL_RECORDS = "evenflow_ledger_spool_records"
METRIC_SPOOL_BYTES = "evenflow_ledger_spool_bytes"
METRIC_SPOOL_OLDEST = "evenflow_ledger_spool_oldest_seconds"
METRIC_LEDGER_DUPLICATES = "evenflow_ledger_duplicates"
METRIC_LEDGER_DROPPED = "evenflow_ledger_dropped_events"
METRIC_SPOOL_DAMAGED = "evenflow_ledger_spool_damaged_bytes"
METRIC_QUOTA_DENIALS = "evenflow_quota_denials"
METRIC_QUOTA_SHADOW_DENIALS = "evenflow_quota_shadow_denials"
METRIC_LEASE_GRANTED = "evenflow_lease_granted_tokens"
METRIC_LEASE_RETURNED = "evenflow_lease_returned_tokens"
METRIC_LEASE_EXPIRED = "evenflow_lease_expired_tokens"
METRIC_LEASE_MISSED = "evenflow_lease_missed_tokens"
METRIC_LEASE_OVERDRAWN = "evenflow_lease_overdrawn_tokens"
METRIC_LEASE_REFRESH = "evenflow_lease_refresh_seconds"
METRIC_ENGINE_UP = "evenflow_engine_up"
METRIC_ENGINE_POLICY = "evenflow_engine_policy"
METRIC_ENGINE_POLICY_FAULT = "evenflow_engine_policy_fault"
METRIC_ENGINE_REQUESTS = "evenflow_engine_requests"
METRIC_ENGINE_BLOCKS = "evenflow_engine_blocks"
METRIC_ENGINE_FREE_BLOCKS = "evenflow_engine_free_blocks"
METRIC_ENGINE_FENCED_BLOCKS = "evenflow_engine_fenced_blocks"
METRIC_ENGINE_STEP = "evenflow_engine_step_seconds"
METRIC_ENGINE_STEPS = "evenflow_engine_steps"
METRIC_ENGINE_PREEMPTIONS = "evenflow_engine_preemptions"
METRIC_ENGINE_SWAPS = "evenflow_engine_swaps"
METRIC_ENGINE_PAUSES = "evenflow_engine_pauses"
METRIC_ENGINE_USAGE_WAITING = "evenflow_engine_unacknowledged_usage"
METRIC_ENGINE_USAGE_DROPPED = "evenflow_engine_dropped_usage"
METRIC_ENGINE_PRICE = "evenflow_engine_price_seconds"
METRIC_TENANT_TOKENS = "evenflow_tenant_tokens"
METRIC_TENANT_WORK = "evenflow_tenant_served_work"
METRIC_TENANT_WAIT = "evenflow_tenant_wait_seconds"
METRIC_TENANT_PAUSES = "evenflow_tenant_pauses"
METRIC_TENANT_SWAPS = "evenflow_tenant_swaps"
METRIC_TENANT_COPIED = "evenflow_tenant_copied_bytes"
METRIC_TENANT_REQUESTS = "evenflow_tenant_requests"
METRIC_TENANT_SHARE = "evenflow_tenant_share"
METRIC_TENANT_WEIGHT_SHARE = "evenflow_tenant_weight_share"
METRIC_TENANT_LEAD = "evenflow_tenant_lead"
METRIC_TENANT_BLOCKS = "evenflow_tenant_device_blocks"
OTHER_TENANTS = "other"


@dataclass(slots=True)
class RpcRecord:
    """What logs and error details say about the call that this task serves. Written by interceptors and servicers."""

    method: str
    request_id: str
    # Set from the moment a generation has its own log line and its own settlement.
    generation_id: str | None = None
    # What the caller is told beside its request id, before the first message.
    initial_metadata: dict[str, str] = field(default_factory=dict)


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

    def __init__(self, provider: TracerProvider | None) -> None:
        self._provider = provider
        self.tracer: trace.Tracer = provider.get_tracer(SERVICE) if provider else trace.NoOpTracer()

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
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Telemetry(provider)


def inner_span(tracer: trace.Tracer, name: str) -> AbstractContextManager[trace.Span]:
    """A span inside the current one, which is current in the block. Where that is not recorded, it is the same one:
    most calls are not, and each span would cost as much as if it were."""
    outer = trace.get_current_span()
    if is_left_out(outer):
        return nullcontext(outer)
    return tracer.start_as_current_span(name, record_exception=False)


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
    )
