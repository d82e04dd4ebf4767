"""The rules R1 to R9 of `fair` played step by step, with blocks counted and copies that take their time.

Small and slow on purpose: it finds traffic on which a changed rule breaks a theorem, and shows that the observer sees
it. `changes` names the rules that are changed; nothing of the engine is used. One class, no prefix sharing.
"""

import random
from collections import abc

from tests.fairness.changed_ledger import ChangedLedger
from tests.fairness.ledger import Key
from tests.fairness.machine import Machine
from tests.fairness.model_memory import Claim, Job, ModelMemory
from tests.fairness.observer import Committed, Planned

MAX_AGE = 60  # steps, where a changed rule lets old requests overtake


class Model(ModelMemory):
    """The scheduler and its policy in one."""

    def __init__(self, machine: Machine, changes: abc.Collection[str] = (), seed: int = 0) -> None:
        self.machine, self.changes = machine, frozenset(changes)
        self.random = random.Random(seed)
        bounds = machine.bounds()
        self.ledger = ChangedLedger(bounds.weight, bounds.threshold, bounds.step_bound, self.changes)
        self.jobs: list[Job] = []
        self.claim: Claim | None = None
        self.step = 0
        self.served_at: dict[Key, int] = {}
        self.arrived_at: dict[str, int] = {}
        self.num_arrivals = 0

    # --- what the run may do between plans

    def add(self, name: str, leaf: Key, prompt: int, output: int) -> None:
        self.jobs.append(Job(name, leaf, prompt, output, self.num_arrivals, num_tokens=prompt))
        self.num_arrivals += 1
        self.arrived_at[name] = self.step
        self.ledger.join(leaf)

    def cancel(self, name: str) -> None:
        leaves = {job.leaf for job in self.jobs if job.name == name}
        self.jobs = [job for job in self.jobs if job.name != name]
        if "flag_dies" in self.changes:
            for leaf in leaves - {job.leaf for job in self.jobs}:
                self.ledger.nodes[leaf].is_flagged = False

    def hold(self, name: str, *, is_held: bool) -> None:
        for job in self.jobs:
            if job.name == name:
                job.is_held = is_held

    def set_weight(self, key: Key, weight: float) -> None:
        self.machine.weights[key] = weight  # type: ignore[index] # a dict where weights are edited

    def seen(self) -> list[Job]:
        return self.jobs

    def leads(self) -> dict[Key, float]:
        return {key: self.ledger.lead(key) for key in self.ledger.nodes if len(key) > 1}

    # --- the plan

    def plan(self) -> list[Planned]:
        self.step += 1
        self._complete_copies()
        self.wanting = {job.leaf for job in self.jobs if not job.is_held}
        if "held_is_backlogged" in self.changes:
            self.wanting = {job.leaf for job in self.jobs}
        self.ledger.begin(self.wanting)
        self.yielding = {leaf for leaf in self.wanting if self.ledger.yields(leaf)}
        self.budget = self.machine.max_num_batched_tokens
        self.chunks: list[tuple[Key, float]] = []
        self.planned_cost: dict[Key, float] = {}
        self.granted: dict[Job, int] = {}
        self.blocked: dict[Key, int] = {}
        self.has_preempted = self.has_grown = False
        self._end_claim()
        gate = "pause_below_swap" in self.changes
        gated = (
            {f for f in self.wanting if self.ledger.max_lead(f) > self.machine.threshold / 4} if gate else self.yielding
        )
        if "protected_runs" in self.changes:
            fresh = {job.leaf for job in self._residents() if self._is_protected(job)}
            gated = gated - fresh
        if "aged_overtakes" in self.changes:
            waiting = [job for job in self.jobs if job.state == "waiting"]
            aged = {job.leaf for job in waiting if self.step - self.arrived_at[job.name] > MAX_AGE}
            gated = self.wanting - aged if aged else gated
        self.gated = gated
        self._serve(self.wanting - gated, is_borrowed=False)
        if not self.machine.is_strict:
            self._serve(self.wanting & gated, is_borrowed=True)
        if self.claim is not None and self.claim.was_free and "kept_claim" not in self.changes:
            self.claim = None
        self._flag()
        has_copies = any(job.state in ("out", "in") for job in self.jobs)
        return [Planned(self.chunks, self.yielding, has_copies)]

    def _complete_copies(self) -> None:
        for job in self.jobs:
            if job.state == "out" and job.due <= self.step:
                job.state, job.num_blocks = "swapped", 0
            elif job.state == "in" and job.due <= self.step:
                job.state, job.resident_since = "resident", self.step

    def _serve(self, leaves: abc.Set[Key], *, is_borrowed: bool) -> None:
        live = {leaf for leaf in leaves if not self._is_stopped(leaf)}
        while live and self.budget:
            leaf = self._pick(live)
            if not self._grant(leaf, is_borrowed=is_borrowed):
                live.discard(leaf)

    def _is_stopped(self, leaf: Key) -> bool:
        return all(job.is_held for job in self.jobs if job.leaf == leaf)

    def _pick(self, live: abc.Set[Key]) -> Key:
        if self.machine.is_random:
            return self.random.choice(sorted(live))
        key: Key = next(iter(live))[:1]
        while key not in live:
            below = {leaf[: len(key) + 1] for leaf in live if leaf[: len(key)] == key}
            key = min(below, key=lambda node: (self._provisional(node), self.served_at.get(node, -1), node))
        return key

    def _provisional(self, key: Key) -> float:
        return self.ledger.nodes[key].counter + self.planned_cost.get(key, 0.0) / self.machine.weights.get(key, 1.0)

    def _grant(self, leaf: Key, *, is_borrowed: bool) -> bool:
        mine = [job for job in self.jobs if job.leaf == leaf and not job.is_held and not job.num_planned_tokens]
        running = [job for job in mine if job.state == "resident"]
        for job in sorted(running, key=lambda job: (job.num_tokens - job.num_computed_tokens > 1, job.arrival)):
            if job.state == "resident" and self._advance(job, is_borrowed=is_borrowed):
                return True
        heads = [job for job in mine if job.state in ("swapped", "waiting") and job.preempted_at != self.step]
        if leaf in self.blocked or not heads or (self.has_preempted and not self._owns_claim(leaf)):
            return False
        head = min(heads, key=lambda job: (job.state != "swapped", job.arrival))
        return self._admit(head, is_borrowed=is_borrowed)

    def _advance(self, job: Job, *, is_borrowed: bool) -> bool:
        if len(self.granted) >= self.machine.max_num_seqs:
            return False
        size = self.machine.block_size
        num_spare = self._num_free() - self._reserved_against(job, is_borrowed=is_borrowed, is_running=True)
        capacity = (job.num_blocks + max(0, num_spare)) * size
        num_tokens = min(self.budget, job.num_tokens - job.num_computed_tokens, capacity - job.num_computed_tokens)
        if num_tokens <= 0:
            if self.budget and not is_borrowed:
                self._make_room(job)
            return False
        job.num_blocks = max(job.num_blocks, -(-(job.num_computed_tokens + num_tokens) // size))
        self._note(job, num_tokens, is_borrowed=is_borrowed)
        return True

    def _note(self, job: Job, num_tokens: int, *, is_borrowed: bool) -> None:
        job.num_planned_tokens = num_tokens
        self.granted[job] = is_borrowed
        self.budget -= num_tokens
        cost = self._cost(job)
        self.chunks.append((job.leaf, cost))
        for depth in range(2, len(job.leaf) + 1):
            key = job.leaf[:depth]
            self.planned_cost[key] = self.planned_cost.get(key, 0.0) + cost
            self.served_at[key] = self.step

    def _cost(self, job: Job) -> float:
        end = job.num_computed_tokens + job.num_planned_tokens
        new = max(0, min(end, job.num_prompt_tokens) - max(job.num_computed_tokens, job.num_regained_tokens))
        return new + self.machine.output_cost * (end == job.num_tokens)

    # --- the commit

    def commit(self) -> list[Committed]:
        costs: dict[tuple[Key, bool], float] = {}
        for job, is_borrowed in self.granted.items():
            if job not in self.jobs:
                continue
            key = job.leaf, bool(is_borrowed)
            costs[key] = costs.get(key, 0.0) + self._cost(job)
            job.num_computed_tokens += job.num_planned_tokens
            if job.num_computed_tokens == job.num_tokens:
                job.num_tokens += 1
            job.num_planned_tokens = 0
        self.jobs = [job for job in self.jobs if job.num_tokens - job.num_prompt_tokens < job.max_output_tokens]
        services = [Committed(leaf, cost, is_borrowed) for (leaf, is_borrowed), cost in costs.items()]
        for service in services:
            is_capped = service.is_borrowed and "uncapped" not in self.changes
            self.ledger.charge(service.leaf, service.cost, is_borrowed=is_capped)
        return services

    def _flag(self) -> None:
        denied = set()
        for job in self.jobs:
            num_left = job.num_tokens - job.num_computed_tokens - job.num_planned_tokens
            is_stopped = job.is_held and "held_is_backlogged" not in self.changes
            if not is_stopped and (num_left > 0 or not job.num_planned_tokens):
                denied.add(job.leaf)
        if "own_blocks_excuse" in self.changes:
            denied = {leaf for leaf in denied if not self._fills_pool(leaf)}
        self.ledger.flag(denied)

    def _fills_pool(self, leaf: Key) -> bool:
        """Every denied job of the leaf waits, and would not fit beside the leaf's own blocks."""
        own = sum(job.num_blocks for job in self.jobs if job.leaf == leaf)
        idle = [job for job in self.jobs if job.leaf == leaf and not job.num_planned_tokens]
        return bool(idle) and all(self._need(job) + own > self.machine.num_device_blocks for job in idle)
