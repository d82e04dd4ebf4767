"""Spans on their way out: a queue with a bound, from which a thread of its own exports.

A collector that is slow or away costs a request nothing: what finds no room, or no taker, is counted and gone.
The engine has the same: the two import nothing of each other.
"""

import os
from collections import abc

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_BSP_MAX_EXPORT_BATCH_SIZE, OTEL_BSP_MAX_QUEUE_SIZE
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

# The SDK's own defaults.
QUEUE_SIZE = 2048
BATCH_SIZE = 512

log = structlog.get_logger()


class BoundedSpans(SpanProcessor):
    """Hands spans to the SDK's batches while there is room. `on_end` belongs to one thread, the export to another."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._delivery = _Delivery(exporter)
        self._capacity = _positive(OTEL_BSP_MAX_QUEUE_SIZE, QUEUE_SIZE)
        batch_size = min(self._capacity, _positive(OTEL_BSP_MAX_EXPORT_BATCH_SIZE, BATCH_SIZE))
        self._batches = BatchSpanProcessor(self._delivery, self._capacity, max_export_batch_size=batch_size)
        self._num_queued = 0
        self._num_refused = 0

    @property
    def num_dropped(self) -> int:
        """Spans that no collector has got, and none will."""
        return self._num_refused + self._delivery.num_failed

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing leaves before it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """It is queued, or counted."""
        if self._num_queued - self._delivery.num_taken >= self._capacity:
            self._num_refused += 1
            return
        self._num_queued += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """What is queued has been tried. Blocks."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # the SDK gives it no types

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """As `shutdown`, and it goes on."""
        return self._batches.force_flush(timeout_millis)


class _Delivery(SpanExporter):
    """Counts what it takes from the queue and what of it `exporter` cannot deliver; logs when that begins or ends."""

    def __init__(self, exporter: SpanExporter) -> None:
        self.num_taken = 0
        self.num_failed = 0
        self._exporter = exporter
        self._is_failing = False

    def export(self, spans: abc.Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_taken += len(spans)
        result = self._exporter.export(spans)
        has_failed = result is not SpanExportResult.SUCCESS
        if has_failed:
            self.num_failed += len(spans)
        if has_failed is not self._is_failing:
            self._is_failing = has_failed
            if has_failed:
                log.warning("spans cannot be delivered")
            else:
                log.info("spans are delivered again")
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


def _positive(variable: str, default: int) -> int:
    """The number in that variable; the default where there is none, as the SDK has it."""
    text = os.environ.get(variable, "")
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else default
