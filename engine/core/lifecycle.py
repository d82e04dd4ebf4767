"""Every unfinished sequence, the state it is in, and the one method per transition that may change it.

    state                       row     device  host   known to the policy as waiting   list
    WAITING                     no      no      no     yes                              (the policy's own index)
    RUNNING                     yes     yes     no     no                               running
    PAUSED, held                no      yes     no     no                               held
    PAUSED, held, recomputed    no      no      no     no                               (none: `by_generation` only)
    PAUSED, not held            may     yes     no     no                               paused
    SWAPPING_OUT                no      may     yes    no                               (`blocks.in_flight`)
    SWAPPED                     no      may     yes    unless it is held                swapped
    SWAPPING_IN                 no      yes     no     no                               (`blocks.in_flight`)
    FINISHED in the open plan   yes     yes     no     no                               ended_in_plan, until the commit
    FINISHED during a copy      no      may     may    no                               (`blocks.in_flight`)

A sequence is *held* while `hold_reason` says so: its output is not granted, its reader takes no more, or it is a beam
that waits for others. One that is PAUSED for fairness keeps its row until another needs it. Lists are in order of
arrival. Decides nothing: that is up to the planner. Transitions that take blocks away or bring them back are in
`preemption`, those of what is cached in `tiers`, those from beams to beams in `beam_rounds`, and what the owner of a
request may say in `controls`.
"""

from collections import abc

from engine.core import by_arrival
from engine.core.block_manager import BlockManager
from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.demand import Demands
from engine.core.events import Admitted, DispatchReason, Event, Preempted, Resumed
from engine.core.flow import Flows
from engine.core.guard import GuardedPolicy
from engine.core.plan import BlockCopy
from engine.core.policy import LeaveReason, SequenceView
from engine.core.ranking import Ranking
from engine.core.rows import Rows
from engine.core.sequence import Sequence
from engine.core.types import (
    BlockId,
    FinishReason,
    Nanos,
    PauseReason,
    PreemptionMode,
    Request,
    SequenceStatus,
)


class Lifecycle:
    """The sequences, their rows and blocks, and what happened to them since `take_events`.

    num_plans        plans that were begun, the one being made included
    num_transitions  changes of a sequence's state
    by_generation    by its id, the sequence that stands for each request: the first of its beams, where it has several
    copies           copies that have begun and that the runner has not been told of
    block_copies     (from, to) on the device, in order, which the next plan begins with: nothing writes a block before
    chosen           the last token of sequences that have a row whose runner was not told of it
    """

    def __init__(self, config: SchedulerConfig, policy: GuardedPolicy) -> None:
        self.policy = policy
        self.blocks = BlockManager.of(config)
        self.rows = Rows(config.max_num_seqs)
        self.flows = Flows()
        self.demands = Demands()
        self.prices = Prices()
        self.by_generation: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.paused: list[Sequence] = []
        self.held: list[Sequence] = []
        self.swapped: list[Sequence] = []
        self.ended_in_plan: list[Sequence] = []
        self.expiring: Ranking[Sequence] = Ranking()
        self.events: list[Event] = []
        self.copies: list[BlockCopy] = []
        self.block_copies: list[tuple[BlockId, BlockId]] = []
        self.chosen: dict[Sequence, int] = {}
        self.num_plans = self.num_transitions = self.num_ends = self.num_arrivals = 0
        self.num_preemptions = self.num_pauses = self.num_swaps = 0
        self._speculates = config.num_draft_tokens > 0

    @property
    def has_wanting(self) -> bool:
        """True if some unfinished sequence is not held."""
        return self.demands.num_wanting > 0

    @property
    def unfinished(self) -> abc.Iterator[Sequence]:
        """All sequences that have not ended, request by request."""
        return (each for seq in self.by_generation.values() for each in seq.of_request)

    def queued(self, view: SequenceView) -> Sequence:
        """The sequence that a policy names of those that wait."""
        seq = self.policy.waiting[view.arrival_index]
        assert isinstance(seq, Sequence), "policies are told of sequences"
        return seq

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self.events = self.events, []
        return events

    def take_copies(self) -> tuple[BlockCopy, ...]:
        """The copies that have begun since the last call."""
        copies, self.copies = tuple(self.copies), []
        return copies

    def take_block_copies(self) -> tuple[tuple[BlockId, BlockId], ...]:
        """The copies on the device that were asked for since the last call."""
        pairs, self.block_copies = tuple(self.block_copies), []
        return pairs

    def arrive(self, request: Request, now: Nanos) -> Sequence:
        """The request waits; where nothing is granted yet it is held at once."""
        seq = Sequence.of(request, self.num_arrivals, self.flows.join(request), speculates=self._speculates)
        self.num_arrivals += 1
        self.blocks.welcome(seq)
        self.by_generation[request.generation_id] = seq
        seq.flow.account.num_sequences[seq.status] += 1
        self.want(seq, wants=True)
        self.watch_expiry(seq)
        self.policy.on_arrive(seq, now)
        if seq.hold_reason is not None:
            self._hold(seq, seq.hold_reason, now)
        return seq

    def enter(self, seq: Sequence, now: Nanos) -> None:
        """A sequence that another one has forked into stands where its blocks and what holds it say."""
        seq.flow.account.num_sequences[seq.status] += 1
        self.watch_expiry(seq)
        is_held = seq.hold_reason is not None
        self.want(seq, wants=not is_held)
        if seq.block_table.device:
            self.set_status(seq, SequenceStatus.PAUSED)
            by_arrival.insert(self.held if is_held else self.paused, seq)
        else:
            self.wait(seq, now)

    def start(self, seq: Sequence, now: Nanos, reason: DispatchReason = DispatchReason.ORDER) -> None:
        """A waiting or paused sequence runs, in the row that it kept or in a free one: the caller has checked."""
        if seq.status is SequenceStatus.WAITING:
            self.policy.on_leave(seq, LeaveReason.ADMITTED, now)
            seq.resident_since = self.num_plans
        else:
            by_arrival.remove(self.paused, seq)
        if seq.row is None:
            seq.row = self.rows.take()
        by_arrival.insert(self.running, seq)
        self.set_status(seq, SequenceStatus.RUNNING)
        seq.has_spoken = False
        seq.flow.num_rows += 1
        if seq.timeline.started_at is None:
            self.begin_service(seq, now, reason)
        elif seq.timeline.suspended_at is not None:
            seq.resume(self.blocks.num_blocks(seq.num_lost_tokens), now)
            self.tell(seq, Resumed(seq.key, now))

    def begin_service(self, seq: Sequence, now: Nanos, reason: DispatchReason) -> None:
        """The sequence has come in for the first time."""
        self.events.append(Admitted(seq.key, seq.begin(now), reason))
        self.watch_expiry(seq)  # its time in the queue is no longer limited

    def pause(self, seq: Sequence, reason: PauseReason, now: Nanos) -> None:
        """A running sequence keeps its blocks and gets no more tokens; one that is held leaves its row, too."""
        self.leave_list(seq)
        is_held = seq.hold_reason is not None
        if is_held:
            self.leave_row(seq)
        by_arrival.insert(self.held if is_held else self.paused, seq)
        self.set_status(seq, SequenceStatus.PAUSED)
        self.want(seq, wants=not is_held)
        seq.timeline.suspend(now)
        if reason is not PauseReason.SIBLINGS:
            seq.flow.account.num_pauses += 1
            self.num_pauses += 1
        self.tell(seq, Preempted(seq.key, PreemptionMode.PAUSE, reason, now))

    def tell(self, seq: Sequence, event: Preempted | Resumed) -> None:
        """`event` has happened to `seq`, and to its request unless that was so by another of its beams."""
        if seq.beam is None or seq.beam.note(event):
            self.events.append(event)

    def finish(self, seq: Sequence, reason: FinishReason, now: Nanos, error: str | None = None) -> None:
        """The request of the sequence has ended, and the sequence with it."""
        del self.by_generation[seq.request.generation_id]
        finished = seq.finished(reason, now, error)
        for each in seq.of_request:
            self.end(each)
            self.policy.on_leave(each, LeaveReason.FINISHED, now)
        self.num_ends += 1
        self.flows.leave(seq.flow.account)
        self.events.append(finished)

    def end(self, seq: Sequence) -> None:
        """The sequence has ended. What the open plan or a copy uses is free once that has ended, the rest at once."""
        in_copy = seq.status in (SequenceStatus.SWAPPING_OUT, SequenceStatus.SWAPPING_IN)
        in_plan = seq.num_scheduled_tokens > 0
        self.leave_list(seq)
        self.want(seq, wants=False)
        if not in_plan:
            self.leave_row(seq)
        self.set_status(seq, SequenceStatus.FINISHED)
        self.expiring.discard(seq)
        if in_plan:
            self.ended_in_plan.append(seq)
        elif not in_copy:
            self.blocks.free(seq)

    def release_ended(self) -> None:
        """Rows and blocks of sequences that ended while the plan was open are free: it is open no more."""
        for seq in self.ended_in_plan:
            seq.num_scheduled_tokens = 0
            self.leave_row(seq)
            self.blocks.free(seq)
        self.ended_in_plan.clear()

    def wait(self, seq: Sequence, now: Nanos) -> None:
        """The sequence, which has no blocks, stands in the policy's queue, or nowhere if it is held."""
        if seq.hold_reason is None:
            self.set_status(seq, SequenceStatus.WAITING)
            self.policy.on_arrive(seq, now)
        else:
            self.set_status(seq, SequenceStatus.PAUSED)

    def leave_list(self, seq: Sequence) -> None:
        """The sequence is in none of the lists."""
        if seq.status is SequenceStatus.RUNNING:
            by_arrival.remove(self.running, seq)
        elif seq.status is SequenceStatus.SWAPPED:
            by_arrival.remove(self.swapped, seq)
        elif seq.status is SequenceStatus.PAUSED and seq.block_table.device:
            by_arrival.remove(self.paused if seq.hold_reason is None else self.held, seq)

    def leave_row(self, seq: Sequence) -> None:
        """The sequence has no row."""
        if seq.row is not None:
            self.rows.stop(seq.row)
            seq.lose_row()
            self.chosen.pop(seq, None)

    def set_status(self, seq: Sequence, status: SequenceStatus) -> None:
        """Called by the transitions only."""
        if seq.status is SequenceStatus.RUNNING:
            seq.flow.num_rows -= 1
        num_sequences = seq.flow.account.num_sequences
        num_sequences[seq.status] -= 1
        num_sequences[status] += 1
        self.num_transitions += 1
        seq.status = status

    def hold_or_let_go(self, seq: Sequence, now: Nanos) -> None:
        """What may hold the sequence has changed."""
        seq.watch()
        reason = seq.hold_reason
        if reason is not None and seq.wants:
            self._hold(seq, reason, now)
        elif reason is None and not seq.wants:
            self._let_go(seq, now)

    def _hold(self, seq: Sequence, reason: PauseReason, now: Nanos) -> None:
        self.want(seq, wants=False)
        if seq.status in (SequenceStatus.WAITING, SequenceStatus.SWAPPED):
            self.policy.on_leave(seq, LeaveReason.WITHDRAWN, now)
        if seq.status is SequenceStatus.WAITING:
            self.set_status(seq, SequenceStatus.PAUSED)
        elif seq.status is SequenceStatus.PAUSED:
            by_arrival.remove(self.paused, seq)
            self.leave_row(seq)
            by_arrival.insert(self.held, seq)
        elif seq.status is SequenceStatus.RUNNING and not seq.num_scheduled_tokens:  # else the commit pauses it
            self.pause(seq, reason, now)

    def _let_go(self, seq: Sequence, now: Nanos) -> None:
        self.want(seq, wants=True)
        if seq.status is SequenceStatus.SWAPPED:
            self.policy.on_arrive(seq, now)
        elif seq.status is SequenceStatus.PAUSED and seq.block_table.device:
            by_arrival.remove(self.held, seq)
            by_arrival.insert(self.paused, seq)
        elif seq.status is SequenceStatus.PAUSED:
            self.wait(seq, now)

    def want(self, seq: Sequence, *, wants: bool) -> None:
        """The sequence is unfinished and not held, or is not."""
        if wants is not seq.wants:
            seq.wants = wants
            self.demands.change(seq.flow, 1 if wants else -1)

    def watch_expiry(self, seq: Sequence) -> None:
        """It is known when the sequence ends if it has not moved on."""
        if (expires_at := seq.expires_at) is None:
            self.expiring.discard(seq)
        else:
            self.expiring.put(seq, (expires_at, seq.arrival_index))
