"""The prompts of a plan: next chunks of those that run, and heads that come in, one turn after the other.

Whoever the policy ranks first takes a turn; what nobody could use in the first turns goes round again until the budget,
the blocks or the prompts end.
"""

import heapq
from collections import abc

from engine.core.band import Band
from engine.core.config import SchedulerConfig
from engine.core.events import DispatchReason
from engine.core.lifecycle import Lifecycle
from engine.core.memory import Memory
from engine.core.pacing import Pacing
from engine.core.plan import CopyDirection
from engine.core.row_giver import RowGiver
from engine.core.sequence import Sequence
from engine.core.step import Step
from engine.core.tiers import Tiers
from engine.core.types import SequenceStatus

RESIDENT = (SequenceStatus.RUNNING, SequenceStatus.PAUSED)
MAX_PASSED = 16  # heads without room that a plan looks behind; each keeps its need from those that pass it
MAX_CLAIMANTS = 4  # heads that may ask all residents to give way, per plan

Rank = tuple[tuple[float, ...], int]
Moment = tuple[int, int]  # while it is the same, so are all ranks


class Turns:
    """Prompts by the turns that they have had in this plan, then by rank.

    Ranks only rise within a plan, so an old one is put right when it comes first.
    """

    def __init__(
        self,
        rank: abc.Callable[[Sequence], Rank],
        moment: abc.Callable[[], Moment],
        seqs: abc.Iterable[Sequence],
    ) -> None:
        self._rank, self._moment = rank, moment
        now = moment()
        self._heap = [(0, rank(seq), seq, now) for seq in seqs]
        heapq.heapify(self._heap)

    def first(self) -> tuple[int, Rank, Sequence, Moment] | None:
        """The prompt whose turn it is, with its turns so far, its rank, and when that was taken; None if there is
        none."""
        now = self._moment()
        while self._heap:
            num_turns, known, seq, taken_at = self._heap[0]
            if taken_at == now:
                return self._heap[0]
            rank = max(known, self._rank(seq))
            heapq.heapreplace(self._heap, (num_turns, rank, seq, now))
        return None

    def put(self, seq: Sequence) -> None:
        """One more prompt, which has just had a turn."""
        heapq.heappush(self._heap, (1, self._rank(seq), seq, self._moment()))

    def end_turn(self, *, goes_on: bool) -> None:
        """The first one has had its turn, and takes more of them or not."""
        num_turns, rank, seq, taken_at = self._heap[0]
        if goes_on:
            heapq.heapreplace(self._heap, (num_turns + 1, rank, seq, taken_at))
        else:
            heapq.heappop(self._heap)


class Admission:
    """Serves the prompts of one band after the other."""

    def __init__(
        self, config: SchedulerConfig, lifecycle: Lifecycle, memory: Memory, rows: RowGiver, tiers: Tiers
    ) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._memory = memory
        self._rows = rows
        self._tiers = tiers
        self.pacing = Pacing(config)
        self._turn = max(1, int(config.max_prefill_share * config.max_num_batched_tokens))
        self._opened_in = 0  # number of the last plan that admitted somebody, where `admission_interval` spaces them
        self._num_ends = 0

    def claim(self, step: Step, band: Band) -> None:
        """The first head that finds no room, and can get it from others, has a claim."""
        if self._memory.claimant is None:
            self._memory.claim(step, self._heads(step, band))

    def _heads(self, step: Step, band: Band) -> abc.Iterator[Sequence]:
        passed: list[Sequence] = []
        while len(passed) < MAX_CLAIMANTS and (seq := self._select(step, band, passed)) is not None:
            if not self._is_awaiting(step, seq):
                yield seq
            passed.append(seq)

    def serve(self, step: Step, band: Band) -> None:
        """Every turn of the band is taken."""
        self.pacing.prices = self._lifecycle.prices
        self.pacing.begin(step)
        turns = Turns(
            self._rank,
            lambda: (self._lifecycle.num_transitions, step.num_grants),
            [seq for seq in band.prompts if seq.status in RESIDENT],
        )
        head = self._next_head(step, band)
        while step.budget > 0:
            first = turns.first()
            if head is not None and (first is None or (0, self._rank(head)) < first[:2]):
                if self._is_awaiting(step, head):
                    step.passed.append(head)
                elif not self._admit(step, head):
                    self._pass(step, head)
                elif head.status is SequenceStatus.RUNNING:
                    turns.put(head)
                head = self._next_head(step, band)
            elif first is None:
                return
            else:
                turns.end_turn(goes_on=self._advance(step, band, first[2]))

    def grant_anyway(self, step: Step, seq: Sequence) -> None:
        """`seq`, in a plan that granted nothing, gets what its blocks and the free ones hold."""
        self.pacing.begin(step)
        self._rows.take_anyway(step, seq)
        self._start(step, seq, DispatchReason.IDLE)
        num_tokens = min(step.budget, seq.num_uncomputed_tokens)
        if self._config.enable_chunked_prefill:
            num_tokens = self.pacing.limit(seq, num_tokens)  # nothing is granted yet, so that some are within it
        self._grant(step, seq, num_tokens, self._blocks.num_free)

    def _rank(self, seq: Sequence) -> Rank:
        return self._lifecycle.policy.key(seq), seq.arrival_index

    def _select(self, step: Step, band: Band, passed: list[Sequence]) -> Sequence | None:
        """The first head that was not passed; None if there is none, or it is not served in this pass."""
        while len(passed) < MAX_PASSED:
            view = self._lifecycle.policy.select(passed)
            if view is None:
                return None
            seq = self._lifecycle.queued(view)
            if band.serves(seq):
                return seq
            if seq.flow.priority_class.name not in step.served_classes:
                return None  # its turn is still to come, in another pass
            passed.append(seq)
        return None

    def _next_head(self, step: Step, band: Band) -> Sequence | None:
        """The head that may come in next; None if none may in this plan."""
        if len(step.passed) >= MAX_PASSED or not step.budget or not self._is_open():
            return None
        claimant = self._memory.claimant
        if step.has_preempted and claimant is None:
            return None
        while (seq := self._select(step, band, step.passed)) is not None:
            if seq.status is SequenceStatus.WAITING:
                return None if self._rows.are_exhausted else seq
            if self._rows.can_take(step, seq) or not (self._lifecycle.paused or self._blocks.in_flight):
                return seq
            step.passed.append(seq)  # without a row only one comes in from the host: it is there for the next row
        return None

    def _is_awaiting(self, step: Step, seq: Sequence) -> bool:
        """True if somebody who is served no later than `seq`, a head, computes what it would compute first: then it
        comes in when it can share that."""
        prefixes = self._blocks.prefixes
        if prefixes is None or seq.status is not SequenceStatus.WAITING:
            return False
        ahead = prefixes.ahead_of(seq)
        if ahead is None or ahead.flow is seq.flow:
            return ahead is not None
        is_no_later = ahead.priority_class.rank <= seq.priority_class.rank
        return is_no_later and ahead.flow not in step.terms.yielding

    def _is_open(self) -> bool:
        interval, lifecycle = self._config.admission_interval, self._lifecycle
        if interval == 1 or not lifecycle.running or lifecycle.num_ends != self._num_ends:
            return True
        num_plans = lifecycle.num_plans - self._opened_in
        return num_plans == 0 or num_plans >= interval

    def _admit(self, step: Step, seq: Sequence) -> bool:
        """True if `seq` has come in: it runs, or its blocks are on their way back."""
        is_waiting = seq.status is SequenceStatus.WAITING
        if is_waiting and not self._rows.can_take(step, seq):
            return False
        if not self._memory.can_admit(step, seq):
            return False
        if not is_waiting:
            return self._swap_in(step, seq)
        prefixes = self._blocks.prefixes
        hit = None if prefixes is None else prefixes.hit(seq)
        seq.num_computed_tokens = 0 if hit is None else hit.num_tokens
        fetches = hit is not None and bool(hit.host_block_ids)
        if not (self._tiers.fetch(seq, self._reason(step, seq), step.now) if fetches else self._enter(step, seq)):
            seq.num_computed_tokens = 0
            return False
        self._memory.use(seq)
        self._opened_in, self._num_ends = self._lifecycle.num_plans, self._lifecycle.num_ends
        return True

    def _enter(self, step: Step, seq: Sequence) -> bool:
        """True if `seq` runs, with what it found on the device."""
        num_tokens = self._first_chunk(step, seq)
        if not num_tokens or not self._rows.take(step, seq):
            return False
        prefixes = self._blocks.prefixes
        hit = None if prefixes is None else prefixes.adopt(seq)
        self._start(step, seq, self._reason(step, seq))
        if hit is not None:
            self._lifecycle.block_copies += self._blocks.copy_found(seq, hit)
        self._grant(step, seq, num_tokens, self._blocks.num_free)
        return True

    def _reason(self, step: Step, seq: Sequence) -> DispatchReason:
        """Why a head comes in now."""
        if self._memory.claimant is seq:
            return DispatchReason.CLAIM
        if step.passed:
            return DispatchReason.PASSED
        return DispatchReason.ORDER if len(self._lifecycle.policy.waiting) > 1 else DispatchReason.ALONE

    def _swap_in(self, step: Step, seq: Sequence) -> bool:
        preemptions = self._memory.preemptions
        if not preemptions.is_link_free(CopyDirection.IN, step.now):
            return False
        preemptions.swap_in(seq, step.now)
        self._memory.use(seq)
        return True

    def _first_chunk(self, step: Step, seq: Sequence) -> int:
        if not self._config.enable_chunked_prefill:
            return seq.num_uncomputed_tokens if seq.num_uncomputed_tokens <= step.budget else 0
        is_behind = seq.flow not in step.terms.yielding
        if is_behind and self.pacing.can_make_way(seq) and self._memory.is_light(step, seq):
            self.pacing.make_way(seq)
        return self.pacing.limit(seq, min(self._turn, step.budget, seq.num_uncomputed_tokens))

    def _pass(self, step: Step, seq: Sequence) -> None:
        step.passed.append(seq)
        self._memory.reserve(seq)

    def _advance(self, step: Step, band: Band, seq: Sequence) -> bool:
        """Grant one turn of `seq`, or as much of it as budget, pace and blocks allow. False if that is nothing."""
        start = seq.num_computed_tokens + seq.num_scheduled_tokens
        num_tokens = min(self._turn, step.budget, seq.num_tokens - start)
        if num_tokens > 0:
            num_tokens = self.pacing.limit(seq, num_tokens)
        if num_tokens <= 0:
            return False
        if start >= self._blocks.capacity(seq.block_table) and not self._memory.has_block(
            step, seq, is_entitled=not band.is_yielding
        ):
            return False
        if seq.status not in RESIDENT or not self._rows.take(step, seq):
            return False
        self._start(step, seq)
        num_takeable = self._memory.num_takeable(is_entitled=not band.is_yielding)
        return self._grant(step, seq, num_tokens, max(0, num_takeable))

    def _start(self, step: Step, seq: Sequence, reason: DispatchReason = DispatchReason.ORDER) -> None:
        if seq.status is not SequenceStatus.RUNNING:
            self._lifecycle.start(seq, step.now, reason)
            if self._blocks.prefixes is not None:
                self._blocks.prefixes.announce(seq, seq.num_computed_tokens // self._config.block_size)

    def _grant(self, step: Step, seq: Sequence, num_tokens: int, num_takeable: int) -> bool:
        """Grant up to `num_tokens`, with at most `num_takeable` more blocks. False if not even one token fits."""
        table = seq.block_table
        start = seq.num_computed_tokens + seq.num_scheduled_tokens
        end = min(start + num_tokens, (len(table.device) + num_takeable) * self._config.block_size)
        if end <= start:
            return False
        self._memory.grow(step, seq, end)
        step.grant(seq, end - start)
        self.pacing.spend(seq, start, end - start)
        return True
