"""A collector that is slow, away or refuses costs a request nothing: spans are queued up to a bound, and counted."""

import threading
from collections import abc
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import engine.span_export
import gateway.span_export
from gateway.store.db import Database
from gateway.telemetry import Telemetry, start_telemetry
from tests.gateway.fake_engine import FakeEngine
from tests.gateway.world import World

NUM_REQUESTS, SPANS_EACH, ROOM = 20, 6, 16


class Stuck(SpanExporter):
    """Takes a batch and does not come back until `release`."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.num_spans = 0
        self._released = threading.Event()

    def export(self, spans: abc.Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_spans += len(spans)
        self.entered.set()
        self._released.wait()
        return SpanExportResult.SUCCESS

    def release(self) -> None:
        self._released.set()


class Refusing(SpanExporter):
    """Never delivers anything."""

    def export(self, spans: abc.Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.FAILURE


@pytest.fixture(params=[gateway.span_export, engine.span_export], ids=["gateway", "engine"])
def bounded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    """The processor of either process, with little room and batches of four."""
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(ROOM))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    return request.param.BoundedSpans


def emit(provider: TracerProvider, num_spans: int) -> None:
    for number in range(num_spans):
        provider.get_tracer("t").start_span(str(number)).end()


def test_what_finds_no_room_is_dropped_and_counted(bounded) -> None:
    exporter = Stuck()
    spans, provider = bounded(exporter), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    emit(provider, 4)
    exporter.entered.wait()
    emit(provider, ROOM + 5)  # the batch that is being exported takes no room

    assert spans.num_dropped == 5
    exporter.release()
    provider.shutdown()
    assert (exporter.num_spans, spans.num_dropped) == (4 + ROOM, 5)


def test_what_no_collector_takes_is_counted(bounded) -> None:
    spans, provider = bounded(Refusing()), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    emit(provider, 7)
    provider.shutdown()

    assert spans.num_dropped == 7


def test_nothing_is_dropped_that_is_delivered(bounded) -> None:
    exporter = InMemorySpanExporter()
    spans, provider = bounded(exporter), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(spans)
    for _ in range(10):
        emit(provider, ROOM)
        provider.force_flush()
    provider.shutdown()

    assert (len(exporter.get_finished_spans()), spans.num_dropped) == (10 * ROOM, 0)


async def test_requests_end_while_a_collector_hangs(
    database: Database, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", str(ROOM))
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
    exporter, provider = Stuck(), TracerProvider(shutdown_on_exit=False)
    spans = gateway.span_export.BoundedSpans(exporter)
    provider.add_span_processor(spans)
    engine, telemetry = FakeEngine(tmp_path / "engine.sock"), Telemetry(provider, spans)
    await engine.start()
    world = World(engine, database, database_url, telemetry, tmp_path / "data")
    await world.open()
    await world.serving()
    tenant = await world.tenant()
    for _ in range(NUM_REQUESTS):
        await tenant.generate()
    await world.settled()

    assert exporter.num_spans == 1  # it hangs since the first one
    # Each request's are there or counted, but for what its call ends after its answer.
    num_ended = telemetry.dropped_spans() + ROOM + exporter.num_spans
    assert (NUM_REQUESTS - 1) * SPANS_EACH < num_ended <= NUM_REQUESTS * SPANS_EACH
    exporter.release()
    await world.close()
    await engine.stop()
    telemetry.close()


@pytest.mark.parametrize(
    ("sampler", "argument", "is_recorded"),
    [
        ("always_on", "", True),
        ("always_off", "", False),
        ("parentbased_traceidratio", "0", False),
        ("parentbased_traceidratio", "1", True),
    ],
)
def test_the_sampler_that_the_operator_names_decides(
    monkeypatch: pytest.MonkeyPatch, sampler: str, argument: str, is_recorded: bool
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    telemetry = start_telemetry()
    span = telemetry.tracer.start_span("a call")

    assert span.is_recording() is is_recorded
    telemetry.close()
