"""A tracer for a process that makes thousands of spans a second: the SDK's sampler, ids, resource and export, and spans
of our own.

The SDK's span checks and copies each attribute under a lock, and asks the sampler for each span anew. All of ours are
constants of `semconv` with plain values, made and ended on one thread, and share the fate of the call that they are of.
Limits of attributes (`OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT` and the like) are not applied: there are few, and text is cut
before it comes here.
"""

import time
from collections import abc
from contextlib import contextmanager
from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.util.types import AnyValue, Attributes

_SAMPLED, _LEFT_OUT = trace.TraceFlags(trace.TraceFlags.SAMPLED), trace.TraceFlags(trace.TraceFlags.DEFAULT)
_UNSET = trace.Status(trace.StatusCode.UNSET)


@dataclass(slots=True, eq=False)
class LightSpan(trace.Span):
    """Written by the thread that made it, and by nobody once it has ended. Times in ns, in calendar time."""

    tracer: "LightTracer"
    name: str
    context: trace.SpanContext
    parent: trace.SpanContext | None
    kind: trace.SpanKind
    start_time: int
    attributes: dict[str, AnyValue]
    events: list[Event] = field(default_factory=list)
    status: trace.Status = _UNSET
    has_ended: bool = False

    def end(self, end_time: int | None = None) -> None:
        """It is on its way to the collector. A second call does nothing."""
        if not self.has_ended:
            self.has_ended = True
            self.tracer.export(self, time.time_ns() if end_time is None else end_time)

    def get_span_context(self) -> trace.SpanContext:
        return self.context

    def set_attributes(self, attributes: abc.Mapping[str, AnyValue]) -> None:
        self.attributes.update(attributes)

    def set_attribute(self, key: str, value: AnyValue) -> None:
        self.attributes[key] = value

    def add_event(self, name: str, attributes: Attributes = None, timestamp: int | None = None) -> None:
        self.events.append(Event(name, attributes, timestamp))

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return not self.has_ended

    def set_status(self, status: trace.Status | trace.StatusCode, description: str | None = None) -> None:
        self.status = status if isinstance(status, trace.Status) else trace.Status(status, description)

    def record_exception(
        self,
        exception: BaseException,
        attributes: Attributes = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        """Nothing: the text of an exception may say more than a trace is to know."""


class LightTracer(trace.Tracer):
    """Spans as `provider` would sample and name them, handed to `processor` when they have ended."""

    def __init__(self, provider: TracerProvider, processor: SpanProcessor, name: str) -> None:
        self._resource = provider.resource
        self._scope = InstrumentationScope(name)
        self._processor = processor
        self._sampler = provider.sampler
        self._ids = provider.id_generator

    def start_span(
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: abc.Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> trace.Span:
        """See trace.Tracer. Links and exceptions are not recorded: there are none that a trace is to know."""
        parent = trace.get_current_span(context).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        flags, state = parent.trace_flags, parent.trace_state
        if parent.is_remote or not parent.is_valid:
            decided = self._sampler.should_sample(context, trace_id, name, kind, attributes, links)
            is_sampled = decided.decision.is_sampled()  # type: ignore[no-untyped-call]  # the SDK gives it no types
            flags, state = _SAMPLED if is_sampled else _LEFT_OUT, decided.trace_state or state
        own = trace.SpanContext(
            trace_id, self._ids.generate_span_id(), is_remote=False, trace_flags=flags, trace_state=state
        )
        if not flags.sampled:
            return trace.NonRecordingSpan(own)
        start_time = time.time_ns() if start_time is None else start_time
        return LightSpan(self, name, own, parent if parent.is_valid else None, kind, start_time, dict(attributes or {}))

    def export(self, span: LightSpan, end_time: int) -> None:
        """`span` has ended, and is what it will be."""
        self._processor.on_end(
            ReadableSpan(
                name=span.name,
                context=span.context,
                parent=span.parent,
                resource=self._resource,
                attributes=span.attributes,
                events=span.events,
                kind=span.kind,
                status=span.status,
                start_time=span.start_time,
                end_time=end_time,
                instrumentation_scope=self._scope,
            )
        )

    @contextmanager
    def start_as_current_span(  # type: ignore[override]  # the SDK's may also decorate a function, which nobody needs
        self,
        name: str,
        context: Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: Attributes = None,
        links: abc.Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
        end_on_exit: bool = True,
    ) -> abc.Iterator[trace.Span]:
        """See trace.Tracer."""
        span = self.start_span(name, context, kind, attributes, links, start_time)
        with trace.use_span(span, end_on_exit, record_exception=False, set_status_on_exception=False):
            yield span
