"""The real scheduler in front of the observer: its sequences as seen from outside, copies that end late, own accounts.

What is told to the observer comes from plans, sequence states and tokens, never from what the policy was charged; that
is compared with it. `Watched` stands between scheduler and policy and changes nothing unless it is told to.
"""

from collections import abc
from dataclasses import dataclass, replace

from engine.core import invariants
from engine.core.plan import StepOutput, StepPlan
from engine.core.policy import FlowView, PlanStart, SchedulingPolicy, Service, Terms
from engine.core.scheduler import Scheduler
from engine.core.sequence import Sequence
from engine.core.types import FinishReason, Nanos, PathNode, PriorityClass, Request, SequenceStatus
from engine.plugins import load_preemption_policy, load_scheduling_policy
from tests.builders import STEP_NS, make_config
from tests.fairness.ledger import Key
from tests.fairness.machine import Machine
from tests.fairness.observer import Bounds, Committed, Planned

NEVER_EARLIER = 10**9  # a policy revision above all others


@dataclass(frozen=True, slots=True)
class SeenSequence:
    name: str
    leaf: Key
    is_held: bool
    num_planned_tokens: int
    num_computed_tokens: int
    num_tokens: int


class Watched:
    """A policy, and what passes between it and the scheduler. `rewrites` are applied to the terms of each plan, and
    `forgeries` to what the policy is told when one begins."""

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.rewrites: list[abc.Callable[[Terms], Terms]] = []
        self.forgeries: list[abc.Callable[[PlanStart], PlanStart]] = []
        self.terms = Terms()
        self.num_begun = 0
        self.services: list[Service] = []

    def __getattr__(self, name: str) -> object:
        if name == "policy":  # not there yet while a copy of this object is made
            raise AttributeError(name)
        return getattr(self.policy, name)

    def begin(self, start: PlanStart) -> Terms:
        self.num_begun += 1
        for forge in self.forgeries:
            start = forge(start)
        self.terms = self.policy.begin(start)
        for rewrite in self.rewrites:
            self.terms = rewrite(self.terms)
        return self.terms

    def charge(self, service: Service) -> None:
        self.services.append(service)
        self.policy.charge(service)


def leaf_of(flow: FlowView) -> Key:
    return flow.nodes[-1].key


def fair_options(machine: Machine, **options: object) -> dict[str, str]:
    """The policy's options that say what the machine of the model says."""
    mode = "strict" if machine.is_strict else "work_conserving"
    chosen = {"mode": mode, "theta": machine.threshold, "output_cost": machine.output_cost} | options
    return {name: str(value) for name, value in chosen.items()}


class SchedulerWorld:
    """A scheduler with `fair` and `over_served`, or with the policy it is given, on the machine of a model."""

    def __init__(
        self,
        machine: Machine,
        policy: SchedulingPolicy | None = None,
        *,
        options: abc.Mapping[str, object] | None = None,
        config: abc.Mapping[str, object] | None = None,
        checks_invariants: bool = False,
    ) -> None:
        self.machine = machine
        self.weights = dict(machine.weights)
        self.policy = Watched(policy or load_scheduling_policy("fair", fair_options(machine, **(options or {}))))
        self.scheduler = Scheduler(
            make_config(**(_config(machine) | dict(config or {}))),
            self.policy,  # type: ignore[arg-type] # it has the policy's methods
            load_preemption_policy("over_served", {}),
        )
        self.now = Nanos(0)
        self.classes: dict[str, PriorityClass] = {}
        self.num_deadlocks = 0
        self.accounts: list[str] = []  # what was charged and is not what was computed
        self._checks = checks_invariants
        self._break_deadlock = self.scheduler.planner._break_deadlock
        self.scheduler.planner._break_deadlock = self._note_deadlock  # type: ignore[method-assign] # to count them
        self._open: StepPlan | None = None
        self._planned: list[tuple[Sequence, float, bool]] = []
        self._due: list[tuple[int, int]] = []
        self._high: dict[str, int] = {}
        self._num_steps = 0

    def add(self, name: str, leaf: Key, num_prompt_tokens: int, max_output_tokens: int) -> None:
        path = tuple(PathNode(leaf[depth], self._weight(leaf[: depth + 1])) for depth in range(1, len(leaf)))
        request = Request(
            generation_id=name,
            path=path,
            prompt_token_ids=(1,) * num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            arrived_at=self.now,
            priority_class=self.classes.get(leaf[0], PriorityClass(leaf[0])),
            policy_revision=NEVER_EARLIER,
        )
        self.scheduler.add(request, self.now)
        self._high[name] = 0

    def cancel(self, name: str) -> None:
        self.scheduler.abort(name, FinishReason.CANCELLED, self.now)
        self._check()

    def hold(self, name: str, *, is_held: bool) -> None:
        self.scheduler.set_reader_blocked(name, is_held, self.now)
        self._check()

    def set_weight(self, key: Key, weight: float) -> None:
        # A node's weight is the same in every class.
        self.weights |= {each: weight for each in self.weights if each[1:] == key[1:]} | {key: weight}
        self.scheduler.update_nodes([(key[1:], weight, NEVER_EARLIER)], self.now)

    def plan(self) -> list[Planned]:
        """One or more plans: those that came to nothing were made again."""
        self._num_steps += 1
        num_begun = self.policy.num_begun
        self._open = self.scheduler.plan(self.now)
        self._check()
        if self.scheduler.policy_fault is not None:
            raise AssertionError(self.scheduler.policy_fault)
        yielding = frozenset(map(leaf_of, self.policy.terms.yielding))
        self._planned = [(seq, self._cost(seq), leaf_of(seq.flow) in yielding) for seq in self.scheduler.open_sequences]
        copies = () if self._open is None else self._open.copies
        for copy in copies:
            delay = self.machine.copy_out_steps if copy.direction.value == "out" else self.machine.copy_in_steps
            self._due.append((self._num_steps + delay, copy.copy_id))
        chunks = [(leaf_of(seq.flow), cost) for seq, cost, _ in self._planned]
        num_empty = self.policy.num_begun - num_begun - 1
        last = Planned(chunks, yielding, self.scheduler.num_copies_in_flight > 0)
        return [Planned((), frozenset(), has_copies=False)] * num_empty + [last]

    def commit(self) -> list[Committed]:
        completed = tuple(copy_id for due, copy_id in self._due if due <= self._num_steps)
        self._due = [item for item in self._due if item[0] > self._num_steps]
        self.now = Nanos(self.now + STEP_NS)
        self.policy.services.clear()
        costs: dict[tuple[Key, bool], float] = {}
        for seq, cost, is_borrowed in self._planned:
            if seq.status is not SequenceStatus.FINISHED:
                key = leaf_of(seq.flow), is_borrowed
                costs[key] = costs.get(key, 0.0) + cost
                end = seq.num_computed_tokens + seq.num_scheduled_tokens
                self._high[seq.key.generation_id] = max(self._high[seq.key.generation_id], end)
        plan, self._open = self._open, None
        if plan is None:
            self.scheduler.complete_copies(completed, self.now)
        else:
            rows = [row for row, samples in zip(plan.rows, plan.samples, strict=True) if samples]
            output = StepOutput(plan.step_id, dict.fromkeys(rows, (1,)), completed_copies=completed)
            self.scheduler.commit(output, self.now)
        self._check()
        self._compare(costs)
        return [Committed(leaf, cost, is_borrowed) for (leaf, is_borrowed), cost in costs.items()]

    def seen(self) -> list[SeenSequence]:
        return [
            SeenSequence(
                seq.key.generation_id,
                leaf_of(seq.flow),
                seq.hold_reason is not None,
                seq.num_scheduled_tokens,
                seq.num_computed_tokens,
                seq.num_tokens,
            )
            for seq in self.scheduler.lifecycle.by_generation.values()
        ]

    def leads(self) -> dict[Key, float]:
        leads: dict[Key, float] = {}
        for flow in self.scheduler.lifecycle.flows.all():
            standing = self.policy.standing(flow)
            assert len(standing) in (0, len(flow.nodes)), f"{len(standing)} numbers for {flow.nodes}"
            leads |= {node.key: lead for node, lead in zip(flow.nodes, standing, strict=False)}
        return leads

    def bounds(self) -> Bounds:
        return replace(
            self.machine.bounds(),
            weight=self._weight,
            threshold=self._threshold,
            step_bound=lambda key: self.machine.max_step_cost / self._weight(key),
        )

    def _threshold(self, key: Key) -> float:
        """What the machine says, or what the policy has chosen for itself."""
        if self.machine.threshold:
            return self.machine.threshold
        for flow in self.scheduler.lifecycle.flows.all():
            for node, threshold in zip(flow.nodes, self.policy.threshold(flow), strict=False):
                if node.key == key:
                    return threshold
        return 0.0

    def _weight(self, key: Key) -> float:
        return self.weights.get(key, 1.0)

    def _cost(self, seq: Sequence) -> float:
        end = seq.num_computed_tokens + seq.num_scheduled_tokens
        start = max(seq.num_computed_tokens, self._high[seq.key.generation_id])
        num_new = max(0, min(end, seq.num_prompt_tokens) - start)
        return num_new + self.machine.output_cost * (end == seq.num_tokens)

    def _compare(self, costs: abc.Mapping[tuple[Key, bool], float]) -> None:
        """Conservation: what the policy was charged is what was computed for the first time, or emitted."""
        charged = {
            (leaf_of(s.flow), s.is_borrowed): s.num_prefill_tokens + self.machine.output_cost * s.num_output_tokens
            for s in self.policy.services
        }
        if charged != dict(costs):
            self.accounts.append(f"step {self._num_steps}: charged {charged}, computed {dict(costs)}")

    def _note_deadlock(self, step: object) -> None:
        self.num_deadlocks += 1
        self._break_deadlock(step)  # type: ignore[arg-type] # it is what the planner passes

    def _check(self) -> None:
        if self._checks:
            invariants.check(self.scheduler)


def _config(machine: Machine) -> dict[str, object]:
    return {
        "max_num_batched_tokens": machine.max_num_batched_tokens,
        "max_num_seqs": machine.max_num_seqs,
        "block_size": machine.block_size,
        "num_device_blocks": machine.num_device_blocks,
        "num_host_blocks": machine.num_host_blocks,
        "max_model_len": machine.num_device_blocks * machine.block_size,
        "min_resident_steps": machine.min_resident_steps,
        "max_preemptions": machine.max_preemptions,
        "partial_swap": machine.partial_swap,
        "growth_reserve_tokens": 0,
    }
