"""Who gets blocks in the model: rule R5, with claims, seizures and the way back."""

import random
from dataclasses import dataclass

from tests.fairness.changed_ledger import ChangedLedger
from tests.fairness.ledger import Key
from tests.fairness.machine import Machine


@dataclass(slots=True, eq=False)
class Job:
    """A sequence. `state` is one of waiting, resident, out (being copied), swapped and in."""

    name: str
    leaf: Key
    num_prompt_tokens: int
    max_output_tokens: int
    arrival: int
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_planned_tokens: int = 0
    num_regained_tokens: int = 0
    num_blocks: int = 0
    state: str = "waiting"
    is_held: bool = False
    due: int = 0
    resident_since: int = 0
    num_preemptions: int = 0
    preempted_at: int = -1


@dataclass(slots=True)
class Claim:
    job: Job
    need: int
    was_free: bool = False


class ModelMemory:
    """The part of the model that counts blocks. Its other part fills the fields when a plan begins."""

    machine: Machine
    changes: frozenset[str]
    random: random.Random
    ledger: ChangedLedger
    jobs: list[Job]
    claim: Claim | None
    step: int
    budget: int
    wanting: set[Key]
    yielding: set[Key]
    granted: dict[Job, bool]
    blocked: dict[Key, int]
    has_preempted: bool
    has_grown: bool

    def _advance(self, job: Job, *, is_borrowed: bool) -> bool:
        raise NotImplementedError

    def _residents(self) -> list[Job]:
        return [job for job in self.jobs if job.state == "resident"]

    def _num_free(self) -> int:
        return self.machine.num_device_blocks - sum(job.num_blocks for job in self.jobs)

    def _need(self, job: Job) -> int:
        return -(-job.num_tokens // self.machine.block_size)

    def _owns_claim(self, leaf: Key) -> bool:
        is_owner = self.claim is not None and self.claim.job.leaf == leaf
        return is_owner and "claim_not_admitted" not in self.changes

    def _reserved_against(self, job: Job, *, is_borrowed: bool, is_running: bool) -> int:
        """R5(b, e, f): blocks that are free and not for this job."""
        claim = self.claim
        claimed = 0 if claim is None or claim.job is job else claim.need
        if is_running and not is_borrowed:
            return 0 if "growth_eats_claim" in self.changes else claimed
        if claim is not None and claim.job is job and "reservations_count_against_claim" not in self.changes:
            return 0
        return claimed + sum(need for leaf, need in self.blocked.items() if claim is None or leaf != claim.job.leaf)

    def _make_room(self, job: Job) -> None:
        """R5(a)."""
        if self.has_grown or any(other.state == "out" for other in self.jobs):
            return
        victims = [other for other in self._residents() if not other.num_planned_tokens]
        self.has_grown = True
        self._preempt(min(victims, key=self._rank))

    def _rank(self, job: Job) -> tuple[float, ...]:
        return (not job.is_held, job.leaf not in self.yielding, -self.ledger.max_lead(job.leaf), -job.arrival)

    def _preempt(self, job: Job) -> None:
        used = sum(self._need(other) for other in self.jobs if other.state in ("out", "swapped", "in"))
        job.num_preemptions += 1
        job.preempted_at = self.step
        self.has_preempted = True
        if used + job.num_blocks <= self.machine.num_host_blocks:
            job.state, job.due = "out", self.step + 1 + self.machine.copy_out_steps
        else:
            job.num_regained_tokens = max(job.num_regained_tokens, job.num_computed_tokens)
            job.state, job.num_blocks, job.num_computed_tokens = "waiting", 0, 0

    def _admit(self, job: Job, *, is_borrowed: bool) -> bool:
        if job.state == "swapped" and not self._may_return(job):
            return False
        need = self._need(job)
        if self._num_free() - self._reserved_against(job, is_borrowed=is_borrowed, is_running=False) >= need:
            if job.state == "waiting" and len(self.granted) >= self.machine.max_num_seqs:
                return False
            if self.claim is not None and self.claim.job is job:
                self.claim = None
            return self._bring_in(job, need, is_borrowed=is_borrowed)
        own = sum(other.num_blocks for other in self.jobs if other.leaf == job.leaf and not other.is_held)
        if not is_borrowed and need + own <= self.machine.num_device_blocks:
            is_first = not self.blocked
            self.blocked[job.leaf] = need
            if self.claim is None and (is_first or "first_head_claims" not in self.changes):
                self._seize(job, need, own)
        self.blocked.setdefault(job.leaf, 0)
        return False

    def _bring_in(self, job: Job, need: int, *, is_borrowed: bool) -> bool:
        job.num_blocks = need
        if job.state == "swapped":
            job.state, job.due = "in", self.step + 1 + self.machine.copy_in_steps
            return True
        job.state, job.resident_since = "resident", self.step
        return self._advance(job, is_borrowed=is_borrowed)

    def _may_return(self, job: Job) -> bool:
        """R5(g)."""
        lead = self.ledger.max_lead(job.leaf)
        heads = {other.leaf for other in self.jobs if other.state in ("waiting", "swapped") and not other.is_held}
        return lead <= self.machine.threshold / 2 or all(self.ledger.max_lead(leaf) >= lead for leaf in heads)

    def _is_protected(self, job: Job) -> bool:
        return self.step - job.resident_since < self.machine.min_resident_steps

    def _seize(self, job: Job, need: int, own: int) -> None:
        """R5(c), then R5(d)."""
        candidates = [other for other in self._residents() if self._is_seizable(other, job)]
        self._collect(job, need, sorted(candidates, key=self._rank))
        if self.claim is None and self.machine.has_entry_rule and own == 0 and need <= self._share(job.leaf):
            self._enter(job, need)

    def _is_seizable(self, other: Job, job: Job) -> bool:
        if other.num_planned_tokens or self._is_protected(other) or (other.leaf == job.leaf and not other.is_held):
            return False
        if "cap_guards_seizure" in self.changes and other.num_preemptions >= self.machine.max_preemptions:
            return False
        return (other.is_held and "held_is_backlogged" not in self.changes) or other.leaf in self.yielding

    def _collect(self, job: Job, need: int, candidates: list[Job]) -> None:
        coming = self._num_free() + sum(other.num_blocks for other in self.jobs if other.state == "out")
        chosen = []
        for other in candidates:
            if coming < need:
                chosen.append(other)
                coming += other.num_blocks
        if coming >= need:
            self.claim = Claim(job, need)
            for other in chosen:
                self._preempt(other)

    def _enter(self, job: Job, need: int) -> None:
        held = {}
        for other in self.jobs:
            held[other.leaf] = held.get(other.leaf, 0) + other.num_blocks * (other.state == "resident")
        coming = self._num_free() + sum(other.num_blocks for other in self.jobs if other.state == "out")
        used = sum(self._need(other) for other in self.jobs if other.state in ("out", "swapped", "in"))
        chosen: list[Job] = []
        for other in sorted(self._residents(), key=self._rank):
            is_recomputing = other.num_computed_tokens < other.num_regained_tokens
            is_guarded = is_recomputing and "regaining_is_seized" not in self.changes
            if coming >= need or other.leaf == job.leaf or other.num_planned_tokens or self._is_protected(other):
                continue
            if (is_guarded and not other.is_held) or other.num_preemptions >= self.machine.max_preemptions:
                continue
            is_ahead = self.ledger.compare(other.leaf, job.leaf) >= 0
            has_room = used + other.num_blocks <= self.machine.num_host_blocks or "regaining_is_seized" in self.changes
            if is_ahead and has_room and held[other.leaf] > self._share(other.leaf):
                chosen.append(other)
                coming += other.num_blocks
                used += other.num_blocks
                held[other.leaf] -= other.num_blocks
        if coming >= need:
            self.claim = Claim(job, need)
            for other in chosen:
                self._preempt(other)

    def _share(self, leaf: Key) -> float:
        share = float(self.machine.num_device_blocks)
        for depth in range(2, len(leaf) + 1):
            siblings = {other[:depth] for other in self.wanting if other[: depth - 1] == leaf[: depth - 1]}
            weights = {key: self.machine.weights.get(key, 1.0) for key in siblings | {leaf[:depth]}}
            share *= weights[leaf[:depth]] / sum(weights.values())
        return share

    def _end_claim(self) -> None:
        """R5(e)."""
        claim = self.claim
        if claim is None:
            return
        leaf = claim.job.leaf
        heads = [
            job for job in self.jobs if job.leaf == leaf and job.state in ("swapped", "waiting") and not job.is_held
        ]
        head = min(heads, key=lambda job: (job.state != "swapped", job.arrival), default=None)
        is_kept = "kept_claim" in self.changes and head is not None
        if not is_kept and (head is not claim.job or leaf in self.yielding or leaf not in self.wanting):
            self.claim = None
        else:
            claim.was_free = self._num_free() >= claim.need
