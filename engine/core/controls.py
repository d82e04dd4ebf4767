"""What the owner of a request says while it is under way: it holds for all sequences of the request alike."""

from engine.core.lifecycle import Lifecycle
from engine.core.policy import LeaveReason
from engine.core.sequence import Sequence
from engine.core.types import Nanos, PriorityClass, SequenceStatus


def grant(lifecycle: Lifecycle, seq: Sequence, max_output_tokens: int, now: Nanos) -> None:
    """The request of `seq` may emit `max_output_tokens` in all."""
    for each in seq.of_request:
        each.granted_output_tokens = max_output_tokens
        lifecycle.hold_or_let_go(each, now)


def set_reader_blocked(lifecycle: Lifecycle, seq: Sequence, blocked: bool, now: Nanos) -> None:
    """The reader takes no more tokens, or takes them again."""
    for each in seq.of_request:
        each.reader_blocked = blocked
        lifecycle.hold_or_let_go(each, now)


def set_class(lifecycle: Lifecycle, seq: Sequence, priority_class: PriorityClass, now: Nanos) -> None:
    """The request belongs to another class, and waits in its queue."""
    for each in seq.of_request:
        _move(lifecycle, each, priority_class, now)


def _move(lifecycle: Lifecycle, seq: Sequence, priority_class: PriorityClass, now: Nanos) -> None:
    old, new = seq.flow, lifecycle.flows.flow(seq.flow.account, priority_class)
    if new is old:
        return
    is_queued = seq.hold_reason is None and seq.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED)
    if is_queued:
        lifecycle.policy.on_leave(seq, LeaveReason.WITHDRAWN, now)
    wants = seq.wants
    lifecycle.want(seq, wants=False)
    has_row = seq.status is SequenceStatus.RUNNING
    lifecycle.blocks.change_flow(seq, new)
    old.num_rows -= has_row
    new.num_rows += has_row
    seq.flow = new
    lifecycle.want(seq, wants=wants)
    if is_queued:
        lifecycle.policy.on_arrive(seq, now)
