"""Every unfinished sequence, the state it is in, and the one method per transition that may change it.

    state                       row   blocks  known to the policy as waiting   list
    WAITING                     no    no      yes                              (the policy's own index)
    RUNNING                     yes   yes     no                               running
    PAUSED, held                no    yes     no                               held
    PAUSED, held, preempted     no    no      no                               (none: `by_generation` only)
    PAUSED, no longer held      no    yes     no                               resuming, until a row is free
    FINISHED in the open plan   yes   yes     no                               ended_in_plan, until the commit

A sequence is *held* while `hold_reason` says so: its output is not granted, or its reader takes no more. Lists are in
order of arrival. Decides nothing: who is admitted, preempted or computed is up to the planner.
"""

from bisect import bisect_left, insort

from engine.core.block_manager import BlockManager
from engine.core.config import SchedulerConfig
from engine.core.events import Admitted, Event, Finished, Preempted, Resumed
from engine.core.policy import LeaveReason, SchedulingPolicy
from engine.core.ranking import Ranking
from engine.core.rows import Rows
from engine.core.sequence import Sequence
from engine.core.tenant import Tenants
from engine.core.types import FinishReason, Nanos, PauseReason, PreemptionMode, Request, SequenceStatus


def _arrival(seq: Sequence) -> int:
    return seq.arrival_index


class Lifecycle:
    """The sequences, their rows and blocks, and what happened to them since `take_events`."""

    def __init__(self, config: SchedulerConfig, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.blocks = BlockManager(config.num_device_blocks, config.block_size)
        self.rows = Rows(config.max_num_seqs)
        self.tenants = Tenants()
        self.by_generation: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.resuming: list[Sequence] = []
        self.held: list[Sequence] = []
        self.ended_in_plan: list[Sequence] = []
        self.expiring: Ranking[Sequence] = Ranking()
        self.events: list[Event] = []
        self.num_preemptions = 0
        self._num_arrivals = 0

    def take_events(self) -> list[Event]:
        """What happened since the last call."""
        events, self.events = self.events, []
        return events

    def arrive(self, request: Request, now: Nanos) -> None:
        """The request waits; where nothing is granted yet it is held at once."""
        seq = Sequence.of(request, self._num_arrivals, self.tenants.join(request))
        self._num_arrivals += 1
        self.by_generation[request.generation_id] = seq
        seq.tenant.num_sequences[seq.status] += 1
        self._watch_expiry(seq)
        self.policy.on_arrive(seq, now)
        if seq.hold_reason is not None:
            self._hold(seq, seq.hold_reason, now)

    def start(self, seq: Sequence, now: Nanos) -> None:
        """A waiting or resuming sequence runs. The caller has checked that a row is free."""
        if seq.status is SequenceStatus.WAITING:
            self.policy.on_leave(seq, LeaveReason.ADMITTED, now)
        else:
            _remove(self.resuming, seq)
        seq.row = self.rows.take()
        insort(self.running, seq, key=_arrival)
        self._set_status(seq, SequenceStatus.RUNNING)
        if seq.timeline.started_at is None:
            seq.timeline.started_at = now
            self._watch_expiry(seq)  # its time in the queue is no longer limited
            self.events.append(Admitted(seq.key, Nanos(now - seq.arrived_at)))
        else:
            seq.timeline.resume(now)
            self.events.append(Resumed(seq.key))

    def pause(self, seq: Sequence, reason: PauseReason, now: Nanos) -> None:
        """A running sequence that is held, for `reason`, keeps its blocks and leaves its row."""
        self._leave_list(seq)
        self._leave_row(seq)
        insort(self.held, seq, key=_arrival)
        self._set_status(seq, SequenceStatus.PAUSED)
        seq.timeline.suspend(now)
        self.events.append(Preempted(seq.key, PreemptionMode.PAUSE, reason))

    def preempt(self, seq: Sequence, now: Nanos) -> None:
        """A sequence that has blocks loses them, waits, and will be computed again. No plan that uses it is open."""
        self._leave_list(seq)
        self._release(seq)
        seq.num_regained_tokens = max(seq.num_regained_tokens, seq.num_computed_tokens)
        seq.num_computed_tokens = 0
        seq.num_preemptions += 1
        self.num_preemptions += 1
        seq.timeline.suspend(now)
        self.events.append(Preempted(seq.key, PreemptionMode.RECOMPUTE, PauseReason.KV_PRESSURE))
        if seq.hold_reason is None:
            self._wait(seq, now)
        else:
            self._set_status(seq, SequenceStatus.PAUSED)

    def grant(self, seq: Sequence, max_output_tokens: int, now: Nanos) -> None:
        """The sequence may emit `max_output_tokens` in all."""
        reason_before = seq.hold_reason
        seq.granted_output_tokens = max_output_tokens
        self._hold_or_let_go(seq, reason_before, now)

    def set_reader_blocked(self, seq: Sequence, blocked: bool, now: Nanos) -> None:
        """The reader takes no more tokens, or takes them again."""
        reason_before = seq.hold_reason
        seq.reader_blocked = blocked
        self._hold_or_let_go(seq, reason_before, now)

    def finish(self, seq: Sequence, reason: FinishReason, now: Nanos, error: str | None = None) -> None:
        """The sequence has ended. Row and blocks are free, but for what the open plan uses: until `release_ended`."""
        in_plan = seq.num_scheduled_tokens > 0
        self._leave_list(seq)
        self._set_status(seq, SequenceStatus.FINISHED)
        del self.by_generation[seq.request.generation_id]
        self.expiring.discard(seq)
        self.policy.on_leave(seq, LeaveReason.FINISHED, now)
        self.tenants.leave(seq.tenant)
        self.events.append(Finished(seq.key, reason, seq.usage(), seq.timeline.timings(now), error))
        if in_plan:
            self.ended_in_plan.append(seq)
        else:
            self._release(seq)

    def release_ended(self) -> None:
        """Rows and blocks of sequences that ended while the plan was open are free: it is open no more."""
        for seq in self.ended_in_plan:
            self._release(seq)
        self.ended_in_plan.clear()

    def _hold_or_let_go(self, seq: Sequence, reason_before: PauseReason | None, now: Nanos) -> None:
        reason = seq.hold_reason
        if reason is not None and reason_before is None:
            self._hold(seq, reason, now)
        elif reason is None and reason_before is not None:
            self._let_go(seq, now)

    def _hold(self, seq: Sequence, reason: PauseReason, now: Nanos) -> None:
        if seq.status is SequenceStatus.WAITING:
            self.policy.on_leave(seq, LeaveReason.HELD, now)
            self._set_status(seq, SequenceStatus.PAUSED)
        elif seq.status is SequenceStatus.PAUSED:
            _remove(self.resuming, seq)
            insort(self.held, seq, key=_arrival)
        elif not seq.num_scheduled_tokens:  # else the commit pauses it
            self.pause(seq, reason, now)

    def _let_go(self, seq: Sequence, now: Nanos) -> None:
        if seq.status is SequenceStatus.RUNNING:
            return  # held and let go while its plan was open
        if seq.block_table.device:
            _remove(self.held, seq)
            insort(self.resuming, seq, key=_arrival)
        else:
            self._wait(seq, now)

    def _wait(self, seq: Sequence, now: Nanos) -> None:
        self._set_status(seq, SequenceStatus.WAITING)
        self.policy.on_arrive(seq, now)

    def _leave_list(self, seq: Sequence) -> None:
        if seq.status is SequenceStatus.RUNNING:
            _remove(self.running, seq)
        elif seq.block_table.device:
            _remove(self.resuming if seq.hold_reason is None else self.held, seq)

    def _release(self, seq: Sequence) -> None:
        seq.num_scheduled_tokens = 0
        self._leave_row(seq)
        self.blocks.free(seq.block_table)

    def _leave_row(self, seq: Sequence) -> None:
        if seq.row is not None:
            self.rows.stop(seq.row)
            seq.row = None

    def _set_status(self, seq: Sequence, status: SequenceStatus) -> None:
        seq.tenant.num_sequences[seq.status] -= 1
        seq.tenant.num_sequences[status] += 1
        seq.status = status

    def _watch_expiry(self, seq: Sequence) -> None:
        expires_at = seq.expires_at
        if expires_at is None:
            self.expiring.discard(seq)
        else:
            self.expiring.put(seq, (expires_at, seq.arrival_index))


def _remove(seqs: list[Sequence], seq: Sequence) -> None:
    del seqs[bisect_left(seqs, seq.arrival_index, key=_arrival)]
