"""Multi-level feedback queue with skip-join: short work first without knowing lengths. Source: Wu et al. 2023
(FastServe, arXiv 2305.05920).

The quantum of the first level is `quantum` decode steps, and each level's is twice that of the level above. A request
joins the first level whose quantum covers the time of its uncached prompt, by the engine's prices; when it has used the
quantum up, it goes one level down. One that has waited for `starvation_ms` starts again at the first level. A sequence
gives way, by swap, to a waiting one of a level above its own.

No bound on shares: a tenant that sends many short requests is served before all others. A request waits for at most
`starvation_ms` and the older requests of the first level. A head that does not fit may be passed. O(log n) per call.
"""

import math
from collections import abc
from dataclasses import dataclass

from engine.core.arrival_order import has_run
from engine.core.costs import Prices
from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import NANOS_PER_MS, Nanos
from policies import snapshots
from policies.options import at_least
from policies.waiting import first_not_passed


@dataclass(slots=True, eq=False)
class _Job:
    """Where a request joined: at `joined_level`, when it had `num_output_tokens`; `num_steps` is its prompt in decode
    steps, paid with the first token after that. It is at `level` until it has `num_next_tokens`."""

    joined_level: int
    num_steps: int
    num_output_tokens: int
    level: int = 0
    num_next_tokens: float = 0.0


class Mlfq:
    """Levels by work received, arrivals within a level, those that have run first.

    quantum        decode steps of the first level, >= 1
    levels         >= 1; in the last one there is no quantum
    starvation_ms  of waiting after which a request starts again at the first level, >= 0; 0 is never

    Raises ValueError, naming the option, where a value is out of range.
    """

    def __init__(self, *, quantum: int = 1, levels: int = 12, starvation_ms: float = 5_000.0) -> None:
        at_least(1, quantum=quantum, levels=levels)
        at_least(0, starvation_ms=starvation_ms)
        self._quantum = quantum
        self._last_level = levels - 1
        self._starvation_ns = starvation_ms * NANOS_PER_MS
        self._prices = Prices()
        self._jobs: dict[int, _Job] = {}  # by arrival index, until they end
        self._waiting: Ranking[SequenceView] = Ranking()
        self._since: Ranking[SequenceView] = Ranking()  # by the time at which they began to wait

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        if seq.arrival_index not in self._jobs:
            self._jobs[seq.arrival_index] = self._join(seq)
        self._put(seq)
        if self._starvation_ns:
            self._since.put(seq, (now, seq.arrival_index))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        self._waiting.discard(seq)
        self._since.discard(seq)
        if reason is LeaveReason.FINISHED:
            self._jobs.pop(seq.arrival_index, None)

    def begin(self, start: PlanStart) -> Terms:
        self._prices = start.prices
        starved_since = start.now - self._starvation_ns
        while (seq := self._since.first()) is not None and self._since.rank_of(seq)[0] <= starved_since:
            self._since.discard(seq)
            self._jobs[seq.arrival_index] = _Job(0, 0, seq.num_output_tokens)
            self._put(seq)
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        return first_not_passed(self._waiting, passed)

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (self._level(seq), 0.0 if has_run(seq) else 1.0)

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        return Concession.SWAP if self._level(victim) > self._level(claimant) else Concession.NOTHING

    def charge(self, service: Service) -> None:
        """The levels follow from what each sequence has emitted."""

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        return ()

    def snapshot(self) -> bytes:
        return snapshots.dump("mlfq")

    def restore(self, snapshot: bytes) -> None:
        snapshots.load("mlfq", snapshot)

    def _join(self, seq: SequenceView) -> _Job:
        """The first level whose quantum covers the prompt."""
        step, num_cached = self._prices.step, seq.num_cached_prompt_tokens
        prefill_ns = step.chunk_ns(num_cached, seq.num_prompt_tokens - num_cached)
        num_steps = math.ceil(prefill_ns / max(1.0, step.base_ns + step.decode_ns))
        level = (-(-num_steps // self._quantum) - 1).bit_length() if num_steps else 0
        return _Job(min(level, self._last_level), num_steps, 0)

    def _put(self, seq: SequenceView) -> None:
        self._waiting.put(seq, (*self.key(seq), seq.arrival_index))

    def _level(self, seq: SequenceView) -> int:
        job = self._jobs.get(seq.arrival_index)
        if job is None:  # it ran before this policy took over, or has ended
            job = self._join(seq)
        if seq.num_output_tokens >= job.num_next_tokens:
            self._descend(job, seq.num_output_tokens)
        return job.level

    def _descend(self, job: _Job, num_output_tokens: int) -> None:
        """Level k below the joined one is reached when the quanta of the k levels before it are used up."""
        quantum, num_emitted = self._quantum << job.joined_level, num_output_tokens - job.num_output_tokens
        num_quanta = (job.num_steps + num_emitted) // quantum if num_emitted > 0 else 0
        num_levels = (num_quanta + 1).bit_length() - 1
        job.level = min(job.joined_level + num_levels, self._last_level)
        num_left = max(1, ((2 << num_levels) - 1) * quantum - job.num_steps)
        job.num_next_tokens = job.num_output_tokens + num_left if job.level < self._last_level else math.inf
