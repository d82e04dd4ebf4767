"""One SERVER span per request, child of the caller's span, ended with a status however the request ends."""

import asyncio
from collections import abc
from contextlib import contextmanager

from opentelemetry import trace

from gateway.http.call import CANCELLED, HttpCall
from gateway.http.routes import HttpRoute
from gateway.semconv import HTTP_METHOD, HTTP_ROUTE, HTTP_STATUS_CODE
from gateway.telemetry import fail_span, trace_parent

TRACE_HEADERS = ("traceparent", "tracestate")


@contextmanager
def server_span(call: HttpCall, route: HttpRoute, tracer: trace.Tracer) -> abc.Iterator[None]:
    """The span is current inside the block, which sets `status`, `error` and `is_gone` of the call."""
    parent = {name: value for name in TRACE_HEADERS for value in call.headers(name)[:1]}
    with tracer.start_as_current_span(
        f"{route.verb} {route.template}",
        context=trace_parent(parent),
        kind=trace.SpanKind.SERVER,
        attributes={HTTP_METHOD: route.verb, HTTP_ROUTE: route.template},
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield
        except asyncio.CancelledError:
            fail_span(span, CANCELLED)
            raise
        if call.status is not None:
            span.set_attribute(HTTP_STATUS_CODE, call.status)
        if call.error_type:
            fail_span(span, call.error_type)
