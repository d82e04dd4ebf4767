"""Spans of a request: children of the gateway's, built at the end, whatever the end was. None without an endpoint."""

import subprocess
import sys
from concurrent import futures

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from engine import request_trace, semconv, telemetry
from engine.core.events import (
    Admitted,
    DispatchReason,
    Finished,
    Move,
    MoveKind,
    Preempted,
    Resumed,
    Timings,
    TokensEmitted,
    Usage,
)
from engine.core.types import FinishReason, Nanos, PathNode, PauseReason, PreemptionMode, Request, SequenceKey
from engine.telemetry import Tracing, start_tracing
from tests.engine.conftest import serving
from tests.engine.wire import generate, refusal, start

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"
KEY = SequenceKey("g", 0)
REQUEST = Request("g", (PathNode("acme", 1.0), PathNode("search", 3.0)), (5, 6, 7), 4, arrived_at=Nanos(100))
UNIX_NS = 1_000_000_100


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Tracing(provider)
    provider.shutdown()


def finished(reason=FinishReason.LENGTH) -> Finished:
    return Finished(KEY, reason, Usage(3, 1, 4, 0, 0), Timings(0, 0, 0, 0, 2, 3))


def spans_of(tracing, exporter, *observed):
    """(name, start, end, attributes) of each span, on the request's own clock."""
    request_trace = tracing.request_trace({"traceparent": TRACEPARENT}, REQUEST, UNIX_NS)
    for event, at in observed:
        request_trace.observe(event, Nanos(at))
    return [
        (span.name, span.start_time - 1_000_000_000, span.end_time - 1_000_000_000, dict(span.attributes))
        for span in exporter.get_finished_spans()
    ]


def test_a_search_that_tells_nothing_before_its_end_has_decoded_all_the_same(tracing, exporter):
    end = Finished(KEY, FinishReason.LENGTH, Usage(3, 0, 17, 0, 0), Timings(50, 100, 600, 0, 1, 4))
    spans = spans_of(tracing, exporter, (Admitted(KEY, Nanos(50)), 150), (end, 850))
    assert [span[:3] for span in spans] == [
        ("evenflow.queue", 100, 150),
        ("evenflow.prefill", 150, 250),
        ("evenflow.decode", 250, 850),
    ]
    assert spans[-1][3][semconv.ATTRIBUTE_OUTPUT_TOKENS] == 17
    assert spans[-1][3][semconv.ATTRIBUTE_STEPS] == 5


def test_request_is_a_queue_a_prefill_and_a_decode_span(tracing, exporter):
    spans = spans_of(
        tracing,
        exporter,
        (Admitted(KEY, Nanos(50)), 300),
        (TokensEmitted(KEY, (1,)), 300),
        (TokensEmitted(KEY, (2, 3)), 400),
        (finished(), 500),
    )
    assert [span[:3] for span in spans] == [
        ("evenflow.queue", 100, 150),
        ("evenflow.prefill", 150, 300),
        ("evenflow.decode", 300, 500),
    ]
    queue, prefill, decode = (span[3] for span in spans)
    assert queue["evenflow.priority_class"] == "default"
    assert queue["evenflow.weight"] == 3.0
    assert (prefill["evenflow.prompt_tokens"], prefill["evenflow.cached_prompt_tokens"]) == (3, 1)
    assert prefill["evenflow.prefill.chunks"] == 2
    assert (decode["evenflow.output_tokens"], decode["evenflow.steps"]) == (3, 2)
    assert decode["evenflow.finish_reason"] == "length"
    assert {span[3]["evenflow.tenant"] for span in spans} == {"acme/search"}


def test_preemption_splits_what_it_interrupts(tracing, exporter):
    spans = spans_of(
        tracing,
        exporter,
        (Admitted(KEY, Nanos(0)), 100),
        (Preempted(KEY, PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE), 110),
        (Resumed(KEY), 120),
        (TokensEmitted(KEY, (1,)), 130),
        (Preempted(KEY, PreemptionMode.PAUSE, PauseReason.QUOTA), 140),
        (Resumed(KEY), 150),
        (TokensEmitted(KEY, (2, 3)), 160),
        (finished(), 170),
    )
    assert [span[:3] for span in spans] == [
        ("evenflow.queue", 100, 100),
        ("evenflow.prefill", 100, 110),
        ("evenflow.preempted", 110, 120),
        ("evenflow.prefill", 120, 130),
        ("evenflow.decode", 130, 140),
        ("evenflow.preempted", 140, 150),
        ("evenflow.decode", 150, 170),
    ]
    assert spans[2][3]["evenflow.preemption.reason"] == "kv_pressure"
    assert spans[5][3]["evenflow.preemption.mode"] == "pause"
    assert [span[3]["evenflow.output_tokens"] for span in spans if span[0] == "evenflow.decode"] == [1, 2]


@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("reason", list(PauseReason))
def test_preempted_span_says_how_and_why(tracing, exporter, mode, reason):
    spans = spans_of(
        tracing,
        exporter,
        (Admitted(KEY, Nanos(0)), 100),
        (Preempted(KEY, mode, reason), 110),
        (Resumed(KEY), 120),
        (finished(), 130),
    )
    ((_, start_ns, end_ns, attributes),) = [span for span in spans if span[0] == "evenflow.preempted"]
    assert (start_ns, end_ns) == (110, 120)
    assert attributes["evenflow.preemption.mode"] == mode.value
    assert attributes["evenflow.preemption.reason"] == reason.value


def test_request_that_gives_way_all_the_time_has_a_trace_that_can_be_looked_at(tracing, exporter):
    events = [(Admitted(KEY, Nanos(0)), 100)]
    for turn in range(1000):
        at = 200 + 10 * turn
        events += [
            (TokensEmitted(KEY, (1,)), at),
            (Preempted(KEY, PreemptionMode.PAUSE, PauseReason.FAIRNESS), at + 1),
            (Resumed(KEY), at + 5),
        ]
    spans = spans_of(tracing, exporter, *events, (finished(), 20_000))

    own = [span for span in spans if span[0] == "evenflow.preempted"]
    decodes = [span[3] for span in spans if span[0] == "evenflow.decode"]
    assert len(spans) <= request_trace.MAX_SEGMENTS + 1
    assert len(own) + sum(attributes.get("evenflow.preemption.omitted", 0) for attributes in decodes) == 1000
    assert sum(attributes.get("evenflow.output_tokens", 0) for attributes in decodes) == 1000
    assert [span[1] for span in spans[1:]] == [span[2] for span in spans[:-1]]


@pytest.mark.parametrize("reason", list(FinishReason))
def test_request_that_ends_in_the_queue_has_its_span_whatever_the_reason(tracing, exporter, reason):
    ((name, start_ns, end_ns, attributes),) = spans_of(tracing, exporter, (finished(reason), 900))
    assert (name, start_ns, end_ns) == ("evenflow.queue", 100, 900)
    assert attributes["evenflow.finish_reason"] == reason.value
    is_error = exporter.get_finished_spans()[0].status.status_code is trace.StatusCode.ERROR
    assert is_error == (reason is FinishReason.ERROR)


def test_what_became_of_its_blocks_lies_under_the_preemption_that_took_them(tracing, exporter):
    moves = (
        Move(MoveKind.SWAP_OUT, 1, 4, 0, Nanos(110), Nanos(115)),
        Move(MoveKind.SWAP_IN, 1, 4, 0, Nanos(118), Nanos(120)),
        Move(MoveKind.RECOMPUTE, 2, 3, 10, Nanos(150), None),
    )
    request_trace = tracing.request_trace({"traceparent": TRACEPARENT}, REQUEST, UNIX_NS, block_bytes=100)
    for event, at in (
        (Admitted(KEY, Nanos(0)), 100),
        (Preempted(KEY, PreemptionMode.SWAP, PauseReason.FAIRNESS, Nanos(110), "other"), 117),
        (Resumed(KEY, Nanos(120)), 125),
        (Preempted(KEY, PreemptionMode.PAUSE, PauseReason.READER, Nanos(130)), 130),
        (Preempted(KEY, PreemptionMode.RECOMPUTE, PauseReason.READER, Nanos(140)), 140),
        (Resumed(KEY, Nanos(150)), 150),
        (Finished(KEY, FinishReason.CANCELLED, Usage(3, 1, 4, 0, 2), Timings(0, 0, 0, 0, 2, 3), moves=moves), 170),
    ):
        request_trace.observe(event, Nanos(at))
    spans = {span.name: span for span in exporter.get_finished_spans()}
    swapped, paused, dropped = [span for span in exporter.get_finished_spans() if span.name == "evenflow.preempted"]

    assert (swapped.start_time, swapped.end_time) == (1_000_000_110, 1_000_000_120)
    assert swapped.attributes["evenflow.preemption.victim_of"] == "other"
    assert "evenflow.preemption.victim_of" not in paused.attributes
    out, back, again = (spans[f"evenflow.{name}"] for name in ("swap_out", "swap_in", "recompute"))
    assert [span.parent.span_id for span in (out, back, again)] == [
        swapped.context.span_id,
        swapped.context.span_id,
        dropped.context.span_id,
    ]
    assert (out.attributes["evenflow.blocks"], out.attributes["evenflow.bytes"]) == (4, 400)
    assert (again.attributes["evenflow.tokens"], again.end_time) == (10, 1_000_000_170)


def test_queue_span_says_how_many_waited_where_it_stood_and_why_it_came_in(tracing, exporter):
    request_trace = tracing.request_trace({"traceparent": TRACEPARENT}, REQUEST, UNIX_NS)
    request_trace.note_depth(7)
    request_trace.note_position(3)
    request_trace.note_position(1)
    request_trace.observe(Admitted(KEY, Nanos(50), DispatchReason.CLAIM), Nanos(150))
    request_trace.observe(finished(), Nanos(160))

    queue = exporter.get_finished_spans()[0].attributes
    assert (queue["evenflow.queue.depth_at_entry"], queue["evenflow.queue.position"]) == (7, 3)
    assert queue["evenflow.queue.dispatch_reason"] == "claim"


def test_call_whose_caller_decided_against_a_trace_takes_no_notes(tracing):
    assert tracing.request_trace({"traceparent": f"{TRACEPARENT[:-2]}00"}, REQUEST, UNIX_NS) is None


def test_call_without_a_context_is_not_traced(tracing):
    assert tracing.request_trace({}, REQUEST, UNIX_NS) is None
    assert tracing.request_trace({"traceparent": "nonsense"}, REQUEST, UNIX_NS) is None


def test_every_emitted_name_is_a_constant_of_the_module(tracing, exporter):
    spans = spans_of(
        tracing,
        exporter,
        (Admitted(KEY, Nanos(0)), 100),
        (TokensEmitted(KEY, (1,)), 130),
        (Preempted(KEY, PreemptionMode.PAUSE, PauseReason.QUOTA), 140),
        (finished(), 170),
    )
    names = {value for name, value in vars(semconv).items() if name.startswith(("SPAN_", "ATTRIBUTE_"))}
    assert {span[0] for span in spans}.union(*(span[3] for span in spans)) <= names


def of_requests(spans) -> list:
    """All but those of steps."""
    return [span for span in spans if span.name != semconv.SPAN_STEP]


async def test_spans_of_a_call_are_children_of_the_callers_span(tracing, exporter, runner, tmp_path):
    async with serving(runner, tmp_path, tracing) as stub:
        await generate(stub, start("a"), metadata=(("traceparent", TRACEPARENT),)).to_end()
        await generate(stub, start("b")).to_end()
    spans = of_requests(exporter.get_finished_spans())
    assert [span.name for span in spans] == ["evenflow.queue", "evenflow.prefill", "evenflow.decode"]
    for span in spans:
        assert trace.format_trace_id(span.context.trace_id) == TRACE_ID
        assert trace.format_span_id(span.parent.span_id) == PARENT_ID
    assert spans[-1].attributes["evenflow.output_tokens"] == 4


async def test_cancelled_and_refused_calls_end_their_spans(tracing, exporter, runner, tmp_path):
    traced = {"metadata": (("traceparent", TRACEPARENT),)}
    async with serving(runner, tmp_path, tracing) as stub:
        answer = generate(stub, start("a", max_output_tokens=9, grant_output_tokens=1), **traced)
        await answer.until("preempted")
        answer.cancel_rpc()
        await refusal(generate(stub, start("b", max_output_tokens=500), **traced))
    spans = of_requests(exporter.get_finished_spans())
    assert {span.attributes["evenflow.generation_id"] for span in spans} == {"a", "b"}
    cancelled = [span for span in spans if span.attributes.get("evenflow.finish_reason") == "cancelled"]
    assert [span.name for span in cancelled] == ["evenflow.preempted"]


def test_nothing_is_traced_and_no_sdk_imported_without_an_endpoint(monkeypatch):
    for name in telemetry.EXPORT_ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert start_tracing() is None
    code = (
        "import sys, engine.server.serve, engine.telemetry as t; t.start_tracing();"
        "print(any(m.startswith(('opentelemetry.sdk', 'opentelemetry.exporter', 'torch')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "evenflow-engine"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_SERVICE_NAME": ""}, "evenflow-engine"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}, "mine"),
    ],
)
def test_operator_may_name_the_service(monkeypatch, variables, name):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    tracing = start_tracing()
    assert tracing._provider.resource.attributes["service.name"] == name
    tracing.shutdown()


async def test_spans_reach_a_collector_over_otlp(monkeypatch, runner, tmp_path):
    received = []

    class Collector(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request, context):  # noqa: N802  the service's name
            received.extend(request.resource_spans)
            return trace_service_pb2.ExportTraceServiceResponse()

    collector = grpc.server(futures.ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Collector(), collector)
    port = collector.add_insecure_port("127.0.0.1:0")
    collector.start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
    tracing = start_tracing()
    async with serving(runner, tmp_path, tracing) as stub:
        await generate(stub, start("a"), metadata=(("traceparent", TRACEPARENT),)).to_end()
    tracing.shutdown()
    collector.stop(None).wait()
    spans = of_requests([span for resource in received for scope in resource.scope_spans for span in scope.spans])
    assert [span.name for span in spans] == ["evenflow.queue", "evenflow.prefill", "evenflow.decode"]
    resource = {pair.key: pair.value.string_value for pair in received[0].resource.attributes}
    assert resource["service.name"] == "evenflow-engine"
