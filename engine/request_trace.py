"""The spans of one request, built from timestamps at its end: nothing is opened, and no span made, while it runs."""

from dataclasses import dataclass, field

from opentelemetry import trace
from opentelemetry.context import Context

from engine import semconv
from engine.core.events import (
    Admitted,
    Event,
    Finished,
    Move,
    MoveKind,
    Preempted,
    Resumed,
    TokensEmitted,
)
from engine.core.types import FinishReason, Nanos, PreemptionMode, Request

# A long request gives way hundreds of times where others are short; its trace must stay one that can be looked at.
MAX_SEGMENTS = 128

Attributes = dict[str, str | int | float]

_MOVE_SPANS = {
    MoveKind.SWAP_OUT: semconv.SPAN_SWAP_OUT,
    MoveKind.SWAP_IN: semconv.SPAN_SWAP_IN,
    MoveKind.RECOMPUTE: semconv.SPAN_RECOMPUTE,
}


@dataclass(slots=True)
class Segment:
    """A stretch of a request's life; `end` and the last attributes are set by RequestTrace when it is over.

    `preemption` numbers the preemptions that took its blocks, as `Move` does; 0 for any other stretch.
    """

    name: str
    start: Nanos
    end: Nanos
    attributes: Attributes = field(default_factory=dict)
    preemption: int = 0


class RequestTrace:
    """Notes when a request changed its state, and writes the spans when it has ended, whatever the reason.

    Beyond MAX_SEGMENTS, preemptions are counted on the span that they interrupt and have none of their own.
    """

    def __init__(
        self, tracer: trace.Tracer, parent: Context, request: Request, unix_offset_ns: int, block_bytes: int = 0
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._unix_offset_ns = unix_offset_ns
        self._block_bytes = block_bytes
        self._common: Attributes = {
            semconv.ATTRIBUTE_GENERATION_ID: request.generation_id,
            semconv.ATTRIBUTE_TENANT: request.tenant_id,
        }
        self._segments: list[Segment] = []
        self._num_preemptions = 0
        self._has_tokens = False
        self._is_omitting = False
        self._begin(semconv.SPAN_QUEUE, request.arrived_at)
        self._segments[-1].attributes |= {
            semconv.ATTRIBUTE_PRIORITY_CLASS: request.priority_class.name,
            semconv.ATTRIBUTE_WEIGHT: request.path[-1].weight,
        }

    @property
    def generation_id(self) -> str:
        return str(self._common[semconv.ATTRIBUTE_GENERATION_ID])

    @property
    def context(self) -> trace.SpanContext:
        """Of the span that its spans are children of."""
        return trace.get_current_span(self._parent).get_span_context()

    def note_depth(self, num_waiting: int) -> None:
        """So many waited when it came."""
        self._segments[0].attributes[semconv.ATTRIBUTE_QUEUE_DEPTH] = num_waiting

    def note_position(self, position: int) -> None:
        """So many are served before it. The first time counts: it is nearest to its entry."""
        self._segments[0].attributes.setdefault(semconv.ATTRIBUTE_QUEUE_POSITION, position)

    def observe(self, event: Event, at: Nanos) -> None:
        """Take note of `event`; Finished writes the spans."""
        match event:
            case Admitted(_, queue_ns):
                queue = self._segments[0]
                queue.attributes[semconv.ATTRIBUTE_DISPATCH_REASON] = event.reason.value
                self._begin(semconv.SPAN_PREFILL, Nanos(queue.start + queue_ns))
            case TokensEmitted(_, token_ids):
                if self._segments[-1].name != semconv.SPAN_DECODE:
                    self._has_tokens = True
                    self._begin(semconv.SPAN_DECODE, at)
                self._add(semconv.ATTRIBUTE_OUTPUT_TOKENS, len(token_ids))
                self._add(semconv.ATTRIBUTE_STEPS, 1)
            case Preempted():
                self._preempt(event, event.at or at)
            case Resumed() if not self._is_omitting:
                self._begin(semconv.SPAN_DECODE if self._has_tokens else semconv.SPAN_PREFILL, event.at or at)
            case Finished():
                self._finish(event, at)

    def fail(self, at: Nanos) -> None:
        """The request has ended without a Finished: write the spans, the last one as failed."""
        self._export(at, (), has_failed=True)

    def _preempt(self, event: Preempted, at: Nanos) -> None:
        takes_blocks = event.mode is not PreemptionMode.PAUSE
        self._num_preemptions += takes_blocks
        last = self._segments[-1]
        self._is_omitting = len(self._segments) >= MAX_SEGMENTS and last.name != semconv.SPAN_PREEMPTED
        if self._is_omitting:
            self._add(semconv.ATTRIBUTE_OMITTED_PREEMPTIONS, 1)
            return
        self._begin(semconv.SPAN_PREEMPTED, at)
        segment = self._segments[-1]
        segment.preemption = self._num_preemptions if takes_blocks else 0
        segment.attributes |= {
            semconv.ATTRIBUTE_PREEMPTION_MODE: event.mode.value,
            semconv.ATTRIBUTE_PREEMPTION_REASON: event.reason.value,
        }
        if event.claimant:
            segment.attributes[semconv.ATTRIBUTE_VICTIM_OF] = event.claimant

    def _begin(self, name: str, at: Nanos) -> None:
        if self._segments:
            self._segments[-1].end = at
        self._segments.append(Segment(name, start=at, end=at))

    def _add(self, attribute: str, number: int) -> None:
        attributes = self._segments[-1].attributes
        attributes[attribute] = int(attributes.get(attribute, 0)) + number

    def _finish(self, finished: Finished, at: Nanos) -> None:
        if finished.timings.decode_ns and self._segments[-1].name == semconv.SPAN_PREFILL and not self._has_tokens:
            self._add_search(finished, at)
        self._segments[-1].attributes[semconv.ATTRIBUTE_FINISH_REASON] = finished.reason.value
        prefill = [segment for segment in self._segments if segment.name == semconv.SPAN_PREFILL]
        for segment in prefill[-1:]:
            segment.attributes |= {
                semconv.ATTRIBUTE_PROMPT_TOKENS: finished.usage.num_prompt_tokens,
                semconv.ATTRIBUTE_CACHED_PROMPT_TOKENS: finished.usage.num_cached_prompt_tokens,
                semconv.ATTRIBUTE_CHUNKS: finished.timings.num_prefill_steps,
            }
        self._export(at, finished.moves, has_failed=finished.reason is FinishReason.ERROR)

    def _add_search(self, finished: Finished, at: Nanos) -> None:
        """It has emitted nothing before its end, and yet decoded: the beams of a search."""
        self._begin(semconv.SPAN_DECODE, Nanos(max(self._segments[-1].start, at - finished.timings.decode_ns)))
        self._add(semconv.ATTRIBUTE_OUTPUT_TOKENS, finished.usage.num_output_tokens)
        self._add(semconv.ATTRIBUTE_STEPS, finished.timings.num_decode_steps + 1)

    def _export(self, at: Nanos, moves: tuple[Move, ...], *, has_failed: bool) -> None:
        self._segments[-1].end = at
        for segment in self._segments:
            span = self._span(segment.name, self._parent, segment.attributes, segment.start)
            if has_failed and segment is self._segments[-1]:
                span.set_status(trace.StatusCode.ERROR)
            span.end(segment.end + self._unix_offset_ns)
            own = [move for move in moves if move.preemption == segment.preemption] if segment.preemption else []
            if own:
                self._export_moves(own, trace.set_span_in_context(span), at)

    def _export_moves(self, moves: list[Move], parent: Context, at: Nanos) -> None:
        """What became of the blocks, under the preemption that took them. Computing again begins where that ends."""
        for move in moves:
            attributes: Attributes = {
                semconv.ATTRIBUTE_BLOCKS: move.num_blocks,
                semconv.ATTRIBUTE_BYTES: move.num_blocks * self._block_bytes,
            }
            if move.kind is MoveKind.RECOMPUTE:
                attributes[semconv.ATTRIBUTE_TOKENS] = move.num_tokens
            span = self._span(_MOVE_SPANS[move.kind], parent, attributes, move.started_at)
            span.end((at if move.ended_at is None else move.ended_at) + self._unix_offset_ns)

    def _span(self, name: str, parent: Context, attributes: Attributes, start: Nanos) -> trace.Span:
        return self._tracer.start_span(
            name, context=parent, attributes=self._common | attributes, start_time=start + self._unix_offset_ns
        )
