"""Watches a run from outside, step by step, and says what in it breaks a theorem of `fair`.

It is told the sequences before and after each plan, who yields, what was committed, and the policy's leads. It keeps a
ledger of its own and computes the flags by itself, so that it believes the policy in nothing but the amounts charged.
"""

from collections import Counter, abc
from dataclasses import dataclass, field
from typing import Protocol

from tests.fairness.ledger import Bound, Key, Ledger

EPSILON = 1e-6


class Seen(Protocol):
    """An unfinished sequence as the observer needs it. `num_planned_tokens` are those of the plan just made."""

    name: str
    leaf: Key
    is_held: bool
    num_planned_tokens: int
    num_computed_tokens: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Numbers of the policy and the machine that the theorems speak of, in cost units and steps."""

    weight: Bound
    threshold: Bound
    step_bound: Bound
    max_step_cost: float
    min_resident_steps: int
    is_strict: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """What one flow got in one step."""

    leaf: Key
    cost: float
    is_borrowed: bool


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan gives: leaf and largest possible cost of each chunk, who yields, and whether a copy is under way."""

    chunks: abc.Sequence[tuple[Key, float]]
    yielding: abc.Set[Key]
    has_copies: bool


@dataclass(slots=True)
class Report:
    """Breaches by kind, with the first of each in words, and how close the run came to its bounds."""

    breaches: dict[str, str] = field(default_factory=dict)
    gap: float = 0.0
    gap_since_lift: float = 0.0
    num_idle_steps: int = 0
    max_unserved_steps: dict[Key, int] = field(default_factory=dict)
    max_dispatch_steps: dict[Key, int] = field(default_factory=dict)
    charged: dict[Key, float] = field(default_factory=dict)
    served: dict[Key, float] = field(default_factory=dict)
    num_steps: int = 0

    def breach(self, kind: str, words: str) -> None:
        self.breaches.setdefault(kind, f"step {self.num_steps}: {words}")


class Observer:
    """One run. In each step: `before_plan`, `after_plan`, and if there was a plan `after_commit`."""

    def __init__(self, bounds: Bounds, *, compare_counters: bool = True) -> None:
        self.bounds = bounds
        self.report = Report()
        self.ledger = Ledger(bounds.weight, bounds.threshold, bounds.step_bound)
        self.flagged: set[Key] = set()
        self._compare = compare_counters
        self._excess: dict[tuple[Key, Key], float] = {}
        self._excess_since_lift: dict[tuple[Key, Key], float] = {}
        self._largest_step: dict[Key, float] = {}
        self._largest_reach: dict[Key, float] = {}
        self._leads: dict[Key, float] = {}
        self._unserved: dict[Key, int] = {}
        self._num_idle = 0
        self._wanting_leaves: set[Key] = set()
        self._entrants: dict[str, int] = {}
        self._known: set[str] = set()

    def before_plan(self, seqs: abc.Sequence[Seen]) -> None:
        """Everything that arrived, was cancelled or held since the last plan has been told to the scheduler."""
        self.report.num_steps += 1
        for seq in seqs:
            self.ledger.join(seq.leaf)
        self.ledger.begin({seq.leaf for seq in seqs if not seq.is_held})
        self._bound_steps()

    def after_empty_plan(self, seqs: abc.Sequence[Seen]) -> None:
        """A plan came to nothing and is made again at once: everyone who wants something was denied it."""
        denied = {seq.leaf for seq in seqs if not seq.is_held}
        self.ledger.flag(denied)
        self._check_progress(seqs, Planned((), frozenset(), has_copies=False))
        flagged = {leaf[:depth] for leaf in denied for depth in range(2, len(leaf) + 1)}
        self._start_intervals(flagged, {})
        self.flagged = flagged

    def after_plan(self, seqs: abc.Sequence[Seen], planned: Planned, leads: abc.Mapping[Key, float]) -> None:
        """The plan is made, also if it is empty; nothing of it is committed."""
        denied = self.denied(seqs)
        self._check_yielding(planned)
        self._check_leads("plan", leads)
        self.ledger.flag(denied)
        flagged = {leaf[:depth] for leaf in denied for depth in range(2, len(leaf) + 1)}
        self._start_intervals(flagged, leads)
        self.flagged = flagged
        self._check_step_cost(planned)
        self._check_progress(seqs, planned)
        self._time_dispatch(seqs)
        self._leads = dict(leads)

    def after_commit(self, services: abc.Sequence[Committed], leads: abc.Mapping[Key, float]) -> None:
        """The plan's output is committed."""
        raw: dict[Key, float] = {}
        for service in services:
            self.ledger.charge(service.leaf, service.cost, is_borrowed=service.is_borrowed)
            for depth in range(2, len(service.leaf) + 1):
                key = service.leaf[:depth]
                raw[key] = raw.get(key, 0.0) + service.cost / self.bounds.weight(key)
        self._check_leads("commit", leads)
        rises = {key: leads[key] - self._leads[key] for key in raw if key in leads and key in self._leads}
        for key, rise in rises.items():
            if rise > raw[key] + EPSILON:
                self.report.breach("charge", f"{key} got {raw[key]} and was charged {rise}")
            self.report.charged[key] = self.report.charged.get(key, 0.0) + rise
            self.report.served[key] = self.report.served.get(key, 0.0) + raw[key]
        self._check_gaps(rises)
        self._count_waits({service.leaf for service in services if service.cost > 0})

    def denied(self, seqs: abc.Sequence[Seen]) -> set[Key]:
        """R7: the leaves that got less than they could use."""
        return {seq.leaf for seq in seqs if is_denied(seq)}

    def _bound_steps(self) -> None:
        """The bounds hold for the largest step that a node had in the run, also if its weight changes."""
        for key in self.ledger.nodes:
            if len(key) > 1:
                self._largest_step[key] = max(self._largest_step.get(key, 0.0), self.bounds.step_bound(key))

    def _check_yielding(self, planned: Planned) -> None:
        expected = {leaf for leaf in planned.yielding if self.ledger.yields(leaf)}
        if expected != planned.yielding and self._compare:
            self.report.breach("yield", f"{set(planned.yielding) - expected} yield and need not")
        for leaf, _ in planned.chunks:
            if self.ledger.yields(leaf) and leaf not in planned.yielding and self._compare:
                self.report.breach("yield", f"{leaf} is ahead by {self.ledger.leads(leaf)} and does not yield")
            if self.bounds.is_strict and leaf in planned.yielding:
                self.report.breach("strict", f"{leaf} yields and has a chunk")

    def _check_leads(self, when: str, leads: abc.Mapping[Key, float]) -> None:
        """The Lemma, and the same counters as the ledger's."""
        for key, lead in leads.items():
            if key in self.ledger.wanting and lead < -EPSILON:
                self.report.breach("lemma", f"{key} wants and is {-lead} below the floor")
            if lead > self._reach(key) + EPSILON:
                self.report.breach("lemma", f"{key} is {lead} above the floor, at most {self._reach(key)}")
            if self._compare and self._is_comparable(key, when):
                expected = self.ledger.lead(key)
                if (
                    key not in self.ledger.wanting or when == "commit"
                ):  # may be forgotten if it has nothing to answer for
                    lead, expected = max(lead, 0.0), max(expected, 0.0)
                if abs(lead - expected) > EPSILON:
                    self.report.breach("counters", f"{key} leads by {lead}, not {expected}, after the {when}")

    def _is_comparable(self, key: Key, when: str) -> bool:
        """After a commit the only child that wants anything may count or not: the next floor makes up for it."""
        if key not in self.ledger.nodes:
            return False
        siblings = self.ledger.nodes[key[:-1]].children
        return when == "plan" or sum(sibling in self.ledger.wanting for sibling in siblings) > 1

    def _check_step_cost(self, planned: Planned) -> None:
        cost: dict[Key, float] = {}
        for leaf, chunk_cost in planned.chunks:
            cost[leaf] = cost.get(leaf, 0.0) + chunk_cost
        for leaf, planned_cost in cost.items():
            if planned_cost > self.bounds.max_step_cost + EPSILON:
                self.report.breach("step", f"{leaf} gets {planned_cost} of {self.bounds.max_step_cost}")

    def _check_progress(self, seqs: abc.Sequence[Seen], planned: Planned) -> None:
        wanting = {seq.leaf for seq in seqs if not seq.is_held}
        self._num_idle = self._num_idle + 1 if wanting and not planned.chunks and not planned.has_copies else 0
        self.report.num_idle_steps = max(self.report.num_idle_steps, self._num_idle)
        if self._num_idle > self.bounds.min_resident_steps + 2:
            self.report.breach("idle", f"{self._num_idle} steps without a chunk or a copy")
        self._wanting_leaves = wanting

    def _time_dispatch(self, seqs: abc.Sequence[Seen]) -> None:
        """T5: steps that a request waits for its first chunk if its tenant has no other."""
        num_by_leaf = Counter(seq.leaf for seq in seqs)
        waiting = {}
        for seq in seqs:
            is_entrant = num_by_leaf[seq.leaf] == 1 and not seq.is_held and seq.num_computed_tokens == 0
            is_new = seq.name not in self._known
            if is_entrant and not seq.num_planned_tokens and (is_new or seq.name in self._entrants):
                waiting[seq.name] = self._entrants.get(seq.name, 0) + 1
                longest = self.report.max_dispatch_steps
                longest[seq.leaf] = max(longest.get(seq.leaf, 0), waiting[seq.name])
        self._entrants = waiting
        self._known = {seq.name for seq in seqs}

    def _start_intervals(self, flagged: set[Key], leads: abc.Mapping[Key, float]) -> None:
        for excess in (self._excess, self._excess_since_lift):
            for pair in [pair for pair in excess if pair[0] not in flagged]:
                del excess[pair]
        for behind in flagged - self.flagged:
            if leads.get(behind, 1.0) <= 0:
                for ahead in self.ledger.nodes[behind[:-1]].children:
                    self._excess_since_lift[behind, ahead] = 0.0

    def _count_waits(self, served: abc.Set[Key]) -> None:
        """Steps in a row in which a leaf wanted and got nothing that it is charged for."""
        for leaf in set(self._unserved) | self._wanting_leaves:
            is_waiting = leaf in self._wanting_leaves and leaf not in served
            self._unserved[leaf] = self._unserved.get(leaf, 0) + 1 if is_waiting else 0
            longest = self.report.max_unserved_steps
            longest[leaf] = max(longest.get(leaf, 0), self._unserved[leaf])

    def _check_gaps(self, rises: abc.Mapping[Key, float]) -> None:
        """T1 over all intervals: the excess starts anew whenever it falls below zero."""
        for behind in self.flagged:
            for ahead in self.ledger.nodes[behind[:-1]].children:
                if ahead != behind:
                    self._check_gap(behind, ahead, rises.get(ahead, 0.0) - rises.get(behind, 0.0))

    def _check_gap(self, behind: Key, ahead: Key, change: float) -> None:
        excess = max(0.0, self._excess.get((behind, ahead), 0.0) + change)
        self._excess[behind, ahead] = excess
        bound = self._reach(behind) + self._reach(ahead)
        self.report.gap = max(self.report.gap, excess / bound)
        if excess > bound + EPSILON:
            self.report.breach("gap", f"{ahead} got {excess} more than {behind}, at most {bound}")
        if (behind, ahead) in self._excess_since_lift:
            self._excess_since_lift[behind, ahead] += change
            excess, bound = self._excess_since_lift[behind, ahead], self._reach(ahead)
            self.report.gap_since_lift = max(self.report.gap_since_lift, excess / bound)
            if excess > bound + EPSILON:
                self.report.breach("gap", f"{ahead} got {excess} more than {behind}, just lifted, at most {bound}")

    def _reach(self, key: Key) -> float:
        """The largest lead that a node can have: a lead from before its threshold fell, as weights changed, remains."""
        reach = self.bounds.threshold(key) + self._largest_step.get(key, self.bounds.step_bound(key))
        self._largest_reach[key] = max(self._largest_reach.get(key, 0.0), reach)
        return self._largest_reach[key]


def is_denied(seq: Seen) -> bool:
    """R7: it could have used more than the plan gives it. Prompt tokens left over count, and so does every state in
    which it gets nothing."""
    num_left = seq.num_tokens - seq.num_computed_tokens - seq.num_planned_tokens
    return not seq.is_held and (seq.num_planned_tokens == 0 or num_left > 0)
