"""Spans as OTLP's messages, in half the time that the SDK takes: many values of most spans have been said before.

The exporter's thread shares the interpreter with the calls that it tells of, so that its time is theirs. Only values of
`semconv.ENUMERABLE` are kept: nothing that cannot recur, and nothing that a user has written.
"""

from collections import abc
from functools import lru_cache

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span, SpanFlags, Status
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode

from gateway.semconv import ENUMERABLE

NUM_KEPT = 4096

_KINDS = {kind.removeprefix("SPAN_KIND_"): number for kind, number in Span.SpanKind.items()}

_HOOK = "_translate_data"  # the SDK's own, which it promises to nobody
_CODES = {code: Status.StatusCode.Value(f"STATUS_CODE_{code.name}") for code in StatusCode}


class LightExporter(OTLPSpanExporter):
    """The SDK's exporter over gRPC, for spans of one resource and one scope whose values are plain.

    Raises RuntimeError where the SDK would never ask it for its messages.
    """

    def __init__(self, endpoint: str | None = None) -> None:
        if not hasattr(OTLPSpanExporter, _HOOK):
            raise RuntimeError(
                f"this version of opentelemetry-exporter-otlp-proto-grpc has no {_HOOK}: use an older one"
            )
        super().__init__(endpoint=endpoint)

    def _translate_data(self, data: abc.Sequence[ReadableSpan]) -> ExportTraceServiceRequest:
        resource, scope = data[0].resource, data[0].instrumentation_scope
        spans = ScopeSpans(scope=InstrumentationScope(name=scope.name if scope else ""), spans=map(encoded, data))
        of_resource = ResourceSpans(resource=Resource(attributes=_attributes(resource.attributes)), scope_spans=[spans])
        return ExportTraceServiceRequest(resource_spans=[of_resource])


def encoded(span: ReadableSpan) -> Span:
    """The message that says what `span` does, but for links, of which ours have none."""
    context, parent, status = span.context, span.parent, span.status
    flags: int = SpanFlags.SPAN_FLAGS_CONTEXT_HAS_IS_REMOTE_MASK
    if parent is not None and parent.is_remote:
        flags |= SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK
    return Span(
        trace_id=context.trace_id.to_bytes(16, "big"),
        span_id=context.span_id.to_bytes(8, "big"),
        trace_state=context.trace_state.to_header() if context.trace_state else "",
        parent_span_id=b"" if parent is None else parent.span_id.to_bytes(8, "big"),
        name=span.name,
        kind=_KINDS[span.kind.name],
        start_time_unix_nano=span.start_time or 0,
        end_time_unix_nano=span.end_time or 0,
        attributes=_attributes(span.attributes or {}),
        events=[
            Span.Event(name=event.name, time_unix_nano=event.timestamp, attributes=_attributes(event.attributes or {}))
            for event in span.events
        ],
        status=Status(code=_CODES[status.status_code], message=status.description or ""),
        flags=flags,
    )


def _attributes(attributes: abc.Mapping[str, object]) -> list[KeyValue]:
    return [
        _known(name, _kind(value), value) if name in ENUMERABLE else KeyValue(key=name, value=_any(value))
        for name, value in attributes.items()
    ]


def _kind(value: object) -> type | tuple[type, ...]:
    """What tells 1 from 1.0 and True, which are equal; and (1,) from (1.0,)."""
    return tuple(map(type, value)) if isinstance(value, tuple) else type(value)


@lru_cache(NUM_KEPT)
def _known(name: str, kind: type | tuple[type, ...], value: object) -> KeyValue:
    """One and the same for the same value of the same kind."""
    return KeyValue(key=name, value=_any(value))


def _any(value: object) -> AnyValue:
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case tuple():
            return AnyValue(array_value=ArrayValue(values=[_any(each) for each in value]))
        case _:
            return AnyValue(string_value=str(value))
