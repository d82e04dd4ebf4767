"""Spans leave the gateway as the SDK would have sent them."""

import pytest
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from gateway import semconv, span_encoding
from gateway.light_tracer import LightTracer
from gateway.span_encoding import LightExporter
from gateway.telemetry import fail_span, trace_headers, trace_parent

VALUES = {
    semconv.TEAM: "search",
    "text": "a",
    "long": "x" * 1000,
    "number": 1,
    "part": 1.0,
    "is": True,
    "many": ("a", "b"),
    "none": "",
}
REMOTE = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "vendor=1"}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> LightTracer:
    provider = TracerProvider(resource=Resource.create({"service.name": "s"}), shutdown_on_exit=False)
    return LightTracer(provider, SimpleSpanProcessor(exporter), "scope")


def some_spans(tracer: LightTracer) -> None:
    with tracer.start_as_current_span("call", context=trace_parent(REMOTE), kind=trace.SpanKind.SERVER) as outer:
        outer.set_attributes(VALUES)
        inner = tracer.start_span("inner", start_time=5, attributes={"number": True})
        inner.add_event("first", {"part": 2.5}, timestamp=7)
        fail_span(inner, "BROKEN")
        inner.end(9)
    tracer.start_span("alone", context=trace_parent({})).end()


def encoded(spans: tuple[ReadableSpan, ...]):
    channel = LightExporter(endpoint="http://127.0.0.1:9")
    try:
        return channel._translate_data(spans)
    finally:
        channel.shutdown()


def test_they_are_what_the_sdk_makes_of_them(tracer: LightTracer, exporter: InMemorySpanExporter) -> None:
    for _ in range(2):  # the second time most of it is known
        some_spans(tracer)
    spans = exporter.get_finished_spans()

    assert [span.name for span in spans[:3]] == ["inner", "call", "alone"]
    assert encoded(spans) == encode_spans(spans)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (semconv.GEN_AI_INPUT_MESSAGES, "secret"),
        (semconv.OPENINFERENCE_INPUT_VALUE, "secret"),
        (semconv.OPENINFERENCE_OUTPUT_TEXT.format(0), "secret"),
        (semconv.OPENINFERENCE_PARAMETERS, "secret"),
        (semconv.GEN_AI_REQUEST_STOP, ("secret",)),
        (semconv.GENERATION_ID, "0195"),
        (semconv.GEN_AI_REQUEST_SEED, 7),
        (semconv.GEN_AI_LATENCY_WHOLE_S, 0.5),
        ("anything else", "secret"),
    ],
)
def test_what_a_user_has_written_and_what_cannot_recur_is_not_kept(
    tracer: LightTracer, exporter: InMemorySpanExporter, name: str, value: str | tuple[str] | float
) -> None:
    span_encoding._known.cache_clear()
    tracer.start_span("call", attributes={name: value}).end()
    encoded(exporter.get_finished_spans())

    assert span_encoding._known.cache_info().currsize == 0


def test_a_name_of_the_configuration_is_kept_once(tracer: LightTracer, exporter: InMemorySpanExporter) -> None:
    span_encoding._known.cache_clear()
    for _ in range(2):
        tracer.start_span("call", attributes={semconv.TEAM: "search"}).end()
    encoded(exporter.get_finished_spans())

    assert span_encoding._known.cache_info().currsize == 1


@pytest.mark.parametrize("values", [(1, 1.0, True), ((1,), (1.0,), (True,))])
def test_values_that_are_equal_are_told_apart_by_their_kind(
    tracer: LightTracer, exporter: InMemorySpanExporter, values: tuple[object, ...]
) -> None:
    for value in values:
        tracer.start_span("call", attributes={semconv.NUM_LIMITS: value}).end()
    spans = exporter.get_finished_spans()

    assert encoded(spans) == encode_spans(spans)


def test_an_sdk_that_would_not_ask_for_the_messages_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in OTLPSpanExporter.__mro__:
        if "_translate_data" in vars(owner):
            monkeypatch.delattr(owner, "_translate_data")
    with pytest.raises(RuntimeError, match="has no _translate_data"):
        LightExporter()


def test_a_span_is_told_once_and_not_changed_by_a_second_end(
    tracer: LightTracer, exporter: InMemorySpanExporter
) -> None:
    span = tracer.start_span("call")
    span.end()
    span.end()

    assert len(exporter.get_finished_spans()) == 1
    assert not span.is_recording()


def test_inner_spans_share_the_fate_of_their_call(exporter: InMemorySpanExporter, monkeypatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    tracer = LightTracer(TracerProvider(shutdown_on_exit=False), SimpleSpanProcessor(exporter), "scope")
    with (
        tracer.start_as_current_span("call", context=trace_parent(REMOTE)) as call,
        tracer.start_as_current_span("i") as i,
    ):
        assert not any(span.is_recording() for span in (call, i))
        sent = trace_headers(i)

    assert (sent["traceparent"][-2:], sent["tracestate"]) == ("00", "vendor=1")
    assert not exporter.get_finished_spans()
