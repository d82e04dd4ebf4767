"""What a step computes. A plan is handed out band by band (a class each, or all at once), and in each band twice:

pass A  flows that need not yield: heads without room open claims, then decodes, then the chunks of prompts, those that
        run and those that come in together, in the policy's order
pass B  flows that yield get what is left of step, rows and blocks, unless the policy's terms say that they get nothing

1. A head that finds no room ends its flow's admissions and keeps its need from those behind it, but never stops running
   work: a waiting request that does not fit would stop those that could make room for it.
2. Whatever runs in pass A may make room to grow, half-computed prompts too: two that fill the pool would wait for each
   other.
3. Who is served first may take a row from whoever is served later, or from one that concedes it; the one that lost it
   is paused in place.
4. When all are served, decodes of those that do not yield carry drafts with what is left (`speculation`).
5. When nothing is granted and no copy is under way, the latest arrivals give way to the first, which fits alone because
   `add` refuses what does not, and what swapped ones and held beams have kept is dropped: no pair of policies can stop
   the engine.
6. Ties are broken by arrival.

Sources: chunked prefill beside decodes, Agrawal et al. 2024 (Sarathi-Serve); the two passes, claims and yielding are
the rules R3-R5 of docs/fairness.md. Blocks are `memory`'s business, prompts `admission`'s.
"""

from collections import abc

from engine.core.admission import Admission
from engine.core.band import Band, bands
from engine.core.config import SchedulerConfig
from engine.core.guard import GuardedPreemption
from engine.core.lifecycle import Lifecycle
from engine.core.memory import Memory
from engine.core.pacing import Pacing
from engine.core.policy import PlanStart
from engine.core.preemption import Preemptions
from engine.core.row_giver import RowGiver
from engine.core.sequence import Sequence
from engine.core.speculation import Drafts
from engine.core.step import Step
from engine.core.tiers import Tiers
from engine.core.types import Nanos, PauseReason, SequenceStatus


class Planner:
    """Fills one step after the other. Changes states only through `lifecycle`."""

    def __init__(self, config: SchedulerConfig, lifecycle: Lifecycle, preemption: GuardedPreemption) -> None:
        self._config = config
        self._lifecycle = lifecycle
        self._blocks = lifecycle.blocks
        self._memory = Memory(config, lifecycle, preemption)
        self._rows = RowGiver(lifecycle, lends_decodes=config.mix_prefill)
        self.tiers = Tiers(config, lifecycle, self._memory.preemptions)
        self._admission = Admission(config, lifecycle, self._memory, self._rows, self.tiers)
        self._drafts = Drafts(config, lifecycle, self._memory)
        self._last: Step | None = None

    @property
    def claimant(self) -> Sequence | None:
        """The head that blocks are kept for."""
        return self._memory.claimant

    @property
    def num_unclaimed(self) -> int:
        """Free blocks that are not kept for the claimant."""
        return self._memory.num_unclaimed

    @property
    def preemptions(self) -> Preemptions:
        return self._memory.preemptions

    @property
    def are_rows_exhausted(self) -> bool:
        """True if in the last plan a head asked for a row in vain."""
        return self._rows.are_exhausted

    @property
    def pacing(self) -> Pacing:
        return self._admission.pacing

    def plan(self, now: Nanos) -> Step:
        """The next step. It grants nothing only if no sequence may get tokens or a copy is under way.

        A plan that comes to nothing is made again, as protections and claims end with time counted in plans; if that
        does not help, rule 5 of this module does.
        """
        for _ in range(self._config.min_resident_steps + 2):
            step = self._fill(now)
            if step.granted or self._blocks.in_flight or not self._lifecycle.has_wanting:
                return step
        self._break_deadlock(step)
        while not step.granted and (kept := self._kept_by_others()):
            self._memory.give_way(step, kept[-1])
            step = self._fill(now)
            if step.granted or self._blocks.in_flight:
                return step
        if not step.granted:
            self._lifecycle.policy.fail(ValueError("select chose nobody although requests wait and nothing runs"))
            return self._fill(now)
        self._lifecycle.demands.end(step.flows)
        return step

    def demote(self, step: Step) -> None:
        """What is cached moves to the host if room is short, beside a step that grants something."""
        if step.granted and self._memory.claimant is None:
            self.tiers.demote(step.now)

    def _fill(self, now: Nanos) -> Step:
        step = self._begin(now)
        in_order = bands(self._lifecycle, step.terms)
        for band in in_order:
            for part in self._passes(step, band):
                self._serve(step, part)
            if band.class_name is not None:
                step.served_classes.add(band.class_name)
        if not self._config.mix_prefill and not step.granted:
            for band in in_order:
                for part in self._passes(step, band):
                    self._decode(step, part)
        if self._config.num_draft_tokens:
            self._drafts.grant(step)
        self._memory.end()
        self._pause_denied(step)
        self._lifecycle.demands.end(step.flows)
        return step

    def _begin(self, now: Nanos) -> Step:
        lifecycle = self._lifecycle
        lifecycle.num_plans += 1
        if self._last is not None:
            self._last.forget_planned()
        changed, satisfied = lifecycle.demands.begin(lifecycle.flows.take_reweighted())
        terms = lifecycle.policy.begin(PlanStart(now, self._config, lifecycle.prices, changed, satisfied))
        step = self._last = Step(now, self._config.max_num_batched_tokens, terms)
        step.num_flows = lifecycle.demands.num_flows
        self._memory.begin(step)
        self._rows.begin()
        return step

    def _serve(self, step: Step, band: Band) -> None:
        if not band.is_yielding:
            self._admission.claim(step, band)
        if self._config.mix_prefill:
            self._decode(step, band)
        self._admission.serve(step, band)

    def _passes(self, step: Step, band: Band) -> abc.Iterator[Band]:
        yield band
        if step.terms.lends and band.has_yielding:
            yield band.yielding()

    def _decode(self, step: Step, band: Band) -> None:
        block_size = self._config.block_size
        decodes = [seq for seq in band.decodes if seq.row is not None][: step.budget]
        growing = [seq for seq in decodes if seq.num_tokens > len(seq.block_table.device) * block_size]
        if len(growing) <= self._memory.num_takeable(is_entitled=not band.is_yielding):
            self._memory.grow_by_one(step, growing)
            step.grant_decodes(decodes)
        else:
            self._decode_in_turn(step, band)
        self._resume(step, band)

    def _decode_in_turn(self, step: Step, band: Band) -> None:
        """Not all that decode find a block: each that needs one asks for it."""
        block_size = self._config.block_size
        decodes: list[Sequence] = []
        for seq in band.decodes:
            if len(decodes) >= step.budget:
                break
            if seq.row is None:
                continue  # gave its row or its blocks to an earlier one
            if seq.num_tokens <= len(seq.block_table.device) * block_size:
                decodes.append(seq)
            else:
                if self._memory.num_unclaimed <= 0:  # somebody may give way, but nobody that has a grant
                    step.grant_decodes(decodes)
                    decodes = []
                if self._grow(step, band, seq):
                    decodes.append(seq)
        step.grant_decodes(decodes)

    def _resume(self, step: Step, band: Band) -> None:
        for seq in band.paused_decodes:
            if seq.status is not SequenceStatus.PAUSED or not step.budget:
                continue
            has_room = seq.num_tokens <= self._blocks.capacity(seq.block_table) or self._memory.has_block(
                step, seq, is_entitled=not band.is_yielding
            )
            if not has_room:
                continue
            if not self._rows.take(step, seq):
                break  # nobody gives one to the others of this pass either
            self._lifecycle.start(seq, step.now)
            self._memory.grow(step, seq, seq.num_tokens)
            step.grant_decodes([seq])

    def _grow(self, step: Step, band: Band, seq: Sequence) -> bool:
        """True if the table of `seq` holds its next token."""
        if not self._memory.has_block(step, seq, is_entitled=not band.is_yielding):
            return False
        self._memory.grow(step, seq, seq.num_tokens)
        return True

    def _break_deadlock(self, step: Step) -> None:
        """The first to arrive that has blocks is granted tokens, whoever must give way."""
        lifecycle = self._lifecycle
        able = sorted([*lifecycle.running, *lifecycle.paused], key=lambda seq: seq.arrival_index)
        if not able:
            return
        first, others = able[0], able[1:]
        others += [seq for seq in [*lifecycle.swapped, *lifecycle.held] if seq.block_table.device]
        while self._blocks.num_free == 0 and first.num_computed_tokens >= self._blocks.capacity(first.block_table):
            self._memory.give_way(step, others.pop())
        self._admission.grant_anyway(step, first)

    def _kept_by_others(self) -> list[Sequence]:
        """Sequences that have blocks and do not get any further, held beams before what is swapped."""
        lifecycle = self._lifecycle
        beams = [seq for seq in lifecycle.held if seq.beam is not None]
        return [seq for seq in [*beams, *lifecycle.swapped] if seq.block_table.device]

    def _pause_denied(self, step: Step) -> None:
        """Sequences that could have emitted a token, or that yield, and got nothing, are paused in place.

        A prompt that only waits for its next turn goes on running: nobody was promised a pace for it.
        """
        running = self._lifecycle.running
        has_only_prompts = not self._config.mix_prefill and not step.num_decodes
        if len(step.granted) == len(running) or has_only_prompts:
            return
        for seq in [seq for seq in running if not seq.num_scheduled_tokens]:
            is_yielding = seq.flow in step.terms.yielding
            if is_yielding or seq.num_uncomputed_tokens == 1:
                reason = PauseReason.FAIRNESS if is_yielding else PauseReason.KV_PRESSURE
                self._lifecycle.pause(seq, reason, step.now)
