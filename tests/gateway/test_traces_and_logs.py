"""What operators see of a request: one trace, ended however the request ends, and one log line without text."""

import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from evenflow.inference.v1 import generation_pb2 as pb
from gateway import semconv, telemetry
from tests.gateway.fake_engine import MODEL, begun, deaf, stalled
from tests.gateway.world import Tenant, World, eventually, refused

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STREAM = "evenflow.inference.v1.GenerationService/StreamGenerate"
GENERATE = "evenflow.inference.v1.GenerationService/Generate"
SECRET = "the-secret-recipe"


def by_name(spans: InMemorySpanExporter) -> dict:
    return {span.name: span for span in spans.get_finished_spans()}


async def test_one_trace_joins_the_caller_the_gateway_and_the_engine(
    world: World, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    await tenant.generate(metadata=(("traceparent", TRACEPARENT),), sampling=pb.SamplingOptions(temperature=0.5))
    await eventually(lambda: len(spans.get_finished_spans()) == 6)

    found = by_name(spans)
    server, client = found[GENERATE], found[f"text_completion {MODEL}"]
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACEPARENT.split("-")[1]}
    assert f"{server.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    inner = (semconv.AUTH_SPAN, semconv.ADMISSION_SPAN, semconv.DETOKENIZE_SPAN, semconv.SETTLE_SPAN)
    children = (*(found[name] for name in inner), client)
    assert {span.parent.span_id for span in children} == {server.context.span_id}
    assert (server.kind, client.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert server.attributes[semconv.RPC_STATUS_CODE] == "OK"
    assert found[semconv.AUTH_SPAN].attributes[semconv.AUTH_CACHE] == "hit"
    assert found[semconv.ADMISSION_SPAN].attributes[semconv.RESERVED_TOKENS] == 10
    assert client.attributes[semconv.GEN_AI_INPUT_TOKENS] == 2
    assert client.attributes[semconv.GEN_AI_OUTPUT_TOKENS] == 6
    assert client.attributes[semconv.GEN_AI_REQUEST_TEMPERATURE] == 0.5
    assert client.attributes[semconv.GEN_AI_FINISH_REASONS] == ("stop",)
    engine_parent = (await world.engine.call()).metadata["traceparent"]
    assert engine_parent.split("-")[1:3] == [f"{client.context.trace_id:032x}", f"{client.context.span_id:016x}"]


async def test_a_caller_that_decided_against_a_trace_has_none_and_its_context_goes_on(
    world: World, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    await tenant.generate(metadata=(("traceparent", f"{TRACEPARENT[:-2]}00"), ("tracestate", "vendor=1")))
    await world.settled()

    sent = (await world.engine.call()).metadata
    assert sent["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]
    assert (sent["traceparent"].split("-")[3], sent["tracestate"]) == ("00", "vendor=1")
    assert not spans.get_finished_spans()


async def test_a_chat_is_named_so(tenant: Tenant, spans: InMemorySpanExporter) -> None:
    await tenant.generate(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")]))

    assert by_name(spans)[f"chat {MODEL}"].attributes[semconv.GEN_AI_OPERATION] == "chat"


async def test_every_span_of_a_cancelled_request_ends_with_its_status(
    world: World, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    # Where nothing was generated there is no text to make.
    for script, num_spans in ((stalled, 5), (begun, 11), (deaf, 17)):
        world.engine.script = script
        stream = tenant.stream()
        await stream.read()
        stream.cancel()
        await eventually(lambda num_spans=num_spans: len(spans.get_finished_spans()) == num_spans)

    servers = [span for span in spans.get_finished_spans() if span.name == STREAM]
    assert {span.status.status_code for span in servers} == {StatusCode.ERROR}
    assert {span.attributes[semconv.RPC_STATUS_CODE] for span in servers} == {"CANCELLED"}
    clients = [span for span in spans.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert {span.attributes[semconv.GEN_AI_FINISH_REASONS] for span in clients} == {("cancelled",)}


async def test_a_refused_request_is_an_error_span(tenant: Tenant, spans: InMemorySpanExporter) -> None:
    await refused(tenant.generate(model="nobody"))
    await eventually(lambda: GENERATE in by_name(spans))

    server = by_name(spans)[GENERATE]
    assert server.status.status_code is StatusCode.ERROR
    assert server.attributes[semconv.ERROR_TYPE] == "MODEL_NOT_FOUND"
    assert server.attributes[semconv.RPC_STATUS_CODE] == "NOT_FOUND"


async def test_a_finished_request_is_one_line_and_a_refused_one_too(world: World, tenant: Tenant) -> None:
    with structlog.testing.capture_logs() as lines:
        response = await tenant.generate(metadata=(("x-request-id", "r-1"),))
        await refused(tenant.generate(model="nobody", metadata=(("x-request-id", "r-2"),)))
        await world.settled()

    (finished,) = [line for line in lines if line.get("request_id") == "r-1"]
    (denied,) = [line for line in lines if line.get("request_id") == "r-2"]
    assert (finished["event"], finished["generation_id"]) == ("request finished", response.generation_id)
    assert (finished["input_tokens"], finished["output_tokens"], finished["team"]) == (2, 6, "search")
    assert (denied["event"], denied["reason"], denied["key"]) == (
        "request refused",
        "MODEL_NOT_FOUND",
        tenant.public_id,
    )


async def test_no_log_line_and_no_span_holds_a_prompt_an_output_or_a_key(
    world: World, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    async def script(call) -> None:
        await call.accept()
        await call.emit(SECRET.encode())
        await call.finish()

    world.engine.script = script
    with structlog.testing.capture_logs() as lines:
        await tenant.generate(text=SECRET)
        await tenant.generate(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content=SECRET)]))
        await refused(tenant.generate(text=SECRET, stopping={"max_output_tokens": 0}))
        await refused(tenant.generate(text=SECRET * 1000))
        await refused(tenant.generate(chat=pb.ChatPrompt(messages=[pb.ChatMessage(role=SECRET, content="x")])))
        await world.settled()

    told = repr(lines) + "".join(span.to_json() for span in spans.get_finished_spans())
    assert len(lines) >= 5
    assert SECRET not in told
    assert tenant.key.split("_")[3] not in told


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "evenflow-gateway"),
        ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
        ({"OTEL_SERVICE_NAME": ""}, "evenflow-gateway"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=mine"}, "mine"),
    ],
)
def test_the_operator_may_name_the_service(monkeypatch: pytest.MonkeyPatch, variables: dict, name: str) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    for variable in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)

    started = telemetry.start_telemetry()

    assert started._provider.resource.attributes["service.name"] == name
    started.close()
