"""A collector of traces, over OTLP and real gRPC, and what it was sent."""

from collections import abc
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass
class Received:
    """One span, in plain values. `events` by name, times in ns, `links` the ids of other spans."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start: int
    end: int
    attributes: dict[str, object]
    events: dict[str, int]
    is_error: bool
    links: list[str] = field(default_factory=list)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Everything that was exported, in the order of arrival; `raw`: as it came over the wire."""

    def __init__(self) -> None:
        self.spans: list[Received] = []
        self.raw: list[bytes] = []

    def Export(self, request, context):  # noqa: N802  the service's name
        self.raw.append(request.SerializeToString())
        for of_resource in request.resource_spans:
            service = _values(of_resource.resource.attributes)["service.name"]
            for scope in of_resource.scope_spans:
                self.spans += [_received(str(service), span) for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@dataclass
class Tree:
    """The spans of one trace."""

    spans: list[Received] = field(default_factory=list)

    def named(self, name: str) -> list[Received]:
        """All of that name, by start."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: (span.start, span.end))

    def one(self, name: str) -> Received:
        (span,) = self.named(name)
        return span

    def children(self, parent: Received) -> set[str]:
        """The names of what is inside."""
        return {span.name for span in self.spans if span.parent_id == parent.span_id}


@contextmanager
def collecting() -> abc.Iterator[tuple[Collector, str]]:
    """A collector that serves, and its URL."""
    collector, server = Collector(), grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def _received(service: str, span: trace_pb2.Span) -> Received:
    assert span.end_time_unix_nano >= span.start_time_unix_nano, span.name
    return Received(
        service=service,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.kind,
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events={event.name: event.time_unix_nano for event in span.events},
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        links=[link.span_id.hex() for link in span.links],
    )


def _values(pairs: abc.Iterable[common_pb2.KeyValue]) -> dict[str, object]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
