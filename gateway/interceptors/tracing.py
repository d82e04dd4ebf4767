"""One SERVER span per call, child of the caller's span, ended with a status however the call ends."""

import asyncio
from collections import abc
from contextlib import contextmanager

import grpc
from opentelemetry import trace

from gateway.interceptors.call import Call
from gateway.semconv import RPC_METHOD, RPC_STATUS_CODE, RPC_SYSTEM
from gateway.telemetry import fail_span, trace_parent


@contextmanager
def server_span(call: Call, tracer: trace.Tracer) -> abc.Iterator[None]:
    """The span is current inside the block."""
    name = call.record.method
    with tracer.start_as_current_span(
        name,
        context=trace_parent(dict(call.headers)),
        kind=trace.SpanKind.SERVER,
        attributes={RPC_SYSTEM: "grpc", RPC_METHOD: name},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except asyncio.CancelledError:
            code = call.cancelled_code
            _close(span, code, code.name)
            raise
        except BaseException:
            _close(
                span, *((call.error.code, call.error.reason) if call.error else (grpc.StatusCode.UNKNOWN, "UNKNOWN"))
            )
            raise
        span.set_attribute(RPC_STATUS_CODE, grpc.StatusCode.OK.name)


def _close(span: trace.Span, code: grpc.StatusCode, error_type: str) -> None:
    span.set_attribute(RPC_STATUS_CODE, code.name)
    fail_span(span, error_type)
