"""What operators see of an HTTP request: one trace, one log line, no text and no key; and a port that is taken."""

import asyncio
import socket

import httpx2
import pytest
import structlog
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gateway import semconv
from gateway.errors import SettingsError
from tests.gateway.fake_engine import MODEL, begun
from tests.gateway.world import Tenant, World, eventually

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
PATH = "/v1/chat/completions"
SPAN = f"POST {PATH}"
SECRET = "the-secret-recipe"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}]}


def server_spans(spans: InMemorySpanExporter) -> list:
    return [span for span in spans.get_finished_spans() if span.kind is SpanKind.SERVER]


async def test_one_trace_joins_the_caller_the_door_and_the_engine(
    world: World, http: httpx2.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await http.post(PATH, json=CHAT, headers={"traceparent": TRACEPARENT})
    await eventually(lambda: len(spans.get_finished_spans()) == 6)

    found = {span.name: span for span in spans.get_finished_spans()}
    server, client = found[SPAN], found[f"chat {MODEL}"]
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {TRACEPARENT.split("-")[1]}
    assert f"{server.parent.span_id:016x}" == TRACEPARENT.split("-")[2]
    assert server.attributes[semconv.HTTP_ROUTE] == PATH
    assert server.attributes[semconv.HTTP_STATUS_CODE] == 200
    children = (found[semconv.AUTH_SPAN], found[semconv.ADMISSION_SPAN], client)
    assert {span.parent.span_id for span in children} == {server.context.span_id}
    engine_parent = (await world.engine.call()).metadata["traceparent"]
    assert engine_parent.split("-")[1:3] == [f"{client.context.trace_id:032x}", f"{client.context.span_id:016x}"]


async def test_a_model_is_no_part_of_a_spans_name(
    world: World, http: httpx2.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await http.get(f"/v1/models/{MODEL}")
    await eventually(lambda: len(server_spans(spans)) == 1)

    (server,) = server_spans(spans)
    assert (server.name, server.attributes[semconv.HTTP_ROUTE]) == ("GET /v1/models/{model}", "/v1/models/{model}")


async def test_a_caller_that_decided_against_a_trace_has_none_and_its_context_goes_on(
    world: World, http: httpx2.AsyncClient, spans: InMemorySpanExporter
) -> None:
    context = {"traceparent": f"{TRACEPARENT[:-2]}00", "tracestate": "vendor=1"}
    await http.post(PATH, json=CHAT, headers=context)
    await world.settled()

    sent = (await world.engine.call()).metadata
    assert sent["traceparent"].split("-")[1] == TRACEPARENT.split("-")[1]
    assert (sent["traceparent"].split("-")[3], sent["tracestate"]) == ("00", "vendor=1")
    assert not spans.get_finished_spans()


async def test_a_refused_request_and_one_whose_client_went_away_are_error_spans(
    world: World, http: httpx2.AsyncClient, spans: InMemorySpanExporter
) -> None:
    await http.post(PATH, json=CHAT | {"model": "gpt-9"})
    world.engine.script = begun
    call = asyncio.create_task(http.post(PATH, json=CHAT | {"stream": True}))
    await eventually(lambda: sum(call.num_emitted for call in world.engine.calls) == 3)
    call.cancel()
    await asyncio.wait([call])
    await eventually(lambda: len(server_spans(spans)) == 2)

    refused, gone = server_spans(spans)
    assert {refused.status.status_code, gone.status.status_code} == {StatusCode.ERROR}
    assert refused.attributes[semconv.HTTP_STATUS_CODE] == 404
    assert refused.attributes[semconv.ERROR_TYPE] == "MODEL_NOT_FOUND"
    assert gone.attributes[semconv.ERROR_TYPE] == "CANCELLED"


async def test_a_request_leaves_one_line_without_text_or_key(
    world: World, http: httpx2.AsyncClient, tenant: Tenant, spans: InMemorySpanExporter
) -> None:
    with structlog.testing.capture_logs() as lines:
        whole = await http.post(PATH, json=CHAT, headers={"x-request-id": "mine-1"})
        refused = await http.post(PATH, json=CHAT | {"temperature": SECRET}, headers={"x-request-id": "mine-2"})
        await world.settled()

    told = [line for line in lines if line["event"] in ("request finished", "request refused")]
    assert [(line["event"], line["request_id"]) for line in told] == [
        ("request finished", "mine-1"),
        ("request refused", "mine-2"),
    ]
    assert [response.headers["x-request-id"] for response in (whole, refused)] == ["mine-1", "mine-2"]
    everything = f"{lines} {[dict(span.attributes) for span in spans.get_finished_spans()]} {refused.text}"
    assert SECRET not in everything
    assert tenant.key not in everything


async def test_a_bug_is_told_by_its_request_id_alone(
    world: World, http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_arguments: object) -> None:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(world.live._quota, "reserve", broken)
    with structlog.testing.capture_logs() as lines:
        response = await http.post(PATH, json=CHAT)

    error = response.json()["error"]
    assert (response.status_code, error["type"], error["reason"]) == (500, "server_error", "INTERNAL")
    assert SECRET not in response.text
    assert any(line["event"] == "rpc failed" and line["request_id"] == error["request_id"] for line in lines)


async def test_a_port_that_is_taken_stops_the_start_and_is_named(closed_world: World) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        closed_world.options["http_listen"] = address

        with pytest.raises(SettingsError, match=f"http_listen: cannot listen on {address}: Address already in use"):
            await closed_world.open()
