"""A policy called as the scheduler calls it, beside a plain list of who waits. Blocks, rows and budgets do not end.

Every sequence that is admitted computes its tokens and emits one in each step, until it has emitted all.
"""

from collections import abc
from dataclasses import dataclass, field

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.policy import Demand, FlowView, LeaveReason, PlanStart, SchedulingPolicy, SequenceView, Service, Terms
from engine.core.types import Nanos, PriorityClass, SequenceStatus
from engine.sim.conformance.report import require
from engine.sim.conformance.views import DEFAULT_CLASS, START, PlainFlow, PlainSequence, Tenancy

BLOCK_SIZE = 4
STEP_NS = 10_000_000
CONFIG = SchedulerConfig(
    max_num_seqs=8, max_num_batched_tokens=64, block_size=BLOCK_SIZE, num_device_blocks=64, max_model_len=1024
)


@dataclass
class Book:
    """Sequences by state, each list in an order that does not depend on the policy's."""

    policy: SchedulingPolicy
    tenancy: Tenancy = field(default_factory=Tenancy)
    now: Nanos = START
    num_arrivals: int = 0
    waiting: list[PlainSequence] = field(default_factory=list)
    running: list[PlainSequence] = field(default_factory=list)
    held: list[PlainSequence] = field(default_factory=list)
    _denied: set[int] = field(default_factory=set)  # arrival indexes of those that the last plan left waiting
    _demands: dict[int, Demand] = field(default_factory=dict)  # by id of the flow, as the last plan began

    def arrive(
        self,
        team: str = "a",
        *,
        weight: float = 1.0,
        priority_class: PriorityClass = DEFAULT_CLASS,
        organization: str | None = None,
        **fields: int,
    ) -> PlainSequence:
        """A new sequence waits; `fields` are those of PlainSequence."""
        flow = self.tenancy.flow(team, weight=weight, priority_class=priority_class, organization=organization)
        seq = PlainSequence(self.num_arrivals, flow, arrived_at=self.now, **fields)  # type: ignore[arg-type] # ints all
        self.num_arrivals += 1
        self._wait(seq)
        return seq

    def begin(self) -> Terms:
        """A plan begins, a step after the last one."""
        self.now = Nanos(self.now + STEP_NS)
        denied = {id(seq.flow) for seq in (*self.waiting, *self.running) if seq.arrival_index in self._denied}
        busy = {id(seq.flow) for seq in (*self.waiting, *self.running)}
        changed, satisfied = [], []
        for flow in self.tenancy.flows.values():
            flow.demand = _demand(id(flow), denied, busy)
            if flow.demand is not self._demands.get(id(flow), Demand.NONE):
                changed.append(flow)
            if flow.demand is Demand.SATISFIED:
                satisfied.append(flow)
            self._demands[id(flow)] = flow.demand
        terms = self.policy.begin(PlanStart(self.now, CONFIG, Prices(), changed, satisfied))
        require(isinstance(terms, Terms), f"begin gave {terms!r} instead of Terms")
        return terms

    def select(self, passed: abc.Collection[SequenceView] = ()) -> PlainSequence | None:
        """What the policy selects, which waits and was not passed."""
        view = self.policy.select(passed)
        if view is None:
            return None
        found = [seq for seq in self.waiting if seq is view]
        require(bool(found), f"select named {getattr(view, 'key', view)!r}, which does not wait")
        require(found[0] not in passed, f"select named {found[0].key} again, which was passed")
        return found[0]

    def admit(self, seq: PlainSequence) -> None:
        """`seq` has a row and blocks from now on."""
        self.waiting.remove(seq)
        self.policy.on_leave(seq, LeaveReason.ADMITTED, self.now)
        seq.status = SequenceStatus.RUNNING
        seq.num_device_blocks = -(-seq.num_tokens // BLOCK_SIZE)
        seq.flow.num_rows += 1
        seq.flow.num_device_blocks += seq.num_device_blocks
        for node in seq.flow.nodes:
            node.num_planned_prefill_tokens += seq.num_tokens - seq.num_computed_tokens
        self.running.append(seq)

    def commit(self) -> None:
        """Each running sequence has computed its tokens and emitted one; those that have emitted all have ended."""
        self._denied = {seq.arrival_index for seq in self.waiting}
        services: dict[int, Service] = {}
        for seq in self.running:
            num_new = max(0, seq.num_prompt_tokens - seq.num_computed_tokens) if not seq.num_preemptions else 0
            old = services.get(id(seq.flow), Service(seq.flow, 0, 0, 0))
            services[id(seq.flow)] = Service(seq.flow, old.num_prefill_tokens + num_new, old.num_output_tokens + 1, 0)
            seq.num_computed_tokens = seq.num_tokens
            seq.num_output_tokens += 1
        for node in self.tenancy.nodes.values():
            node.num_planned_prefill_tokens = node.num_planned_output_tokens = 0
        for service in services.values():
            self.policy.charge(service)
        for seq in [seq for seq in self.running if seq.num_output_tokens == seq.max_output_tokens]:
            self.finish(seq)

    def pass_decodes(self, num_steps: int) -> None:
        """So many steps, in which everyone that runs decoded and nobody came, ended or was admitted, were committed and
        planned; the policy has been told."""
        for seq in self.running:
            seq.num_computed_tokens += num_steps
            seq.num_output_tokens += num_steps
        self.now = Nanos(self.now + num_steps * STEP_NS)

    def preempt(self, seq: PlainSequence, *, swap: bool = False) -> None:
        """A running sequence has lost its blocks, or has them on the host, and waits."""
        self._stop_running(seq)
        seq.num_preemptions += 1
        self._denied.add(seq.arrival_index)
        if not swap:
            seq.num_computed_tokens = 0
        self._wait(seq, SequenceStatus.SWAPPED if swap else SequenceStatus.WAITING)

    def hold(self, seq: PlainSequence) -> None:
        """A waiting sequence is held."""
        self.waiting.remove(seq)
        self.policy.on_leave(seq, LeaveReason.WITHDRAWN, self.now)
        self.held.append(seq)

    def let_go(self, seq: PlainSequence) -> None:
        """A held sequence waits again."""
        self.held.remove(seq)
        self._wait(seq, seq.status)

    def finish(self, seq: PlainSequence) -> None:
        """A sequence has ended, in whatever state it was."""
        if seq in self.running:
            self._stop_running(seq)
        else:
            (self.waiting if seq in self.waiting else self.held).remove(seq)
        seq.status = SequenceStatus.FINISHED
        self.policy.on_leave(seq, LeaveReason.FINISHED, self.now)

    def forget(self) -> None:
        """Flows whose tenants have gone exist no more; the last plan began without any work of theirs."""
        self.tenancy = Tenancy()
        self._demands.clear()

    def _wait(self, seq: PlainSequence, status: SequenceStatus = SequenceStatus.WAITING) -> None:
        seq.status = status
        self.waiting.append(seq)
        self.policy.on_arrive(seq, self.now)

    def _stop_running(self, seq: PlainSequence) -> None:
        self.running.remove(seq)
        seq.flow.num_rows -= 1
        seq.flow.num_device_blocks -= seq.num_device_blocks
        seq.num_device_blocks = 0


def _demand(flow_id: int, denied: set[int], busy: set[int]) -> Demand:
    if flow_id in denied:
        return Demand.BACKLOGGED
    return Demand.SATISFIED if flow_id in busy else Demand.NONE


def flows(book: Book) -> tuple[FlowView, ...]:
    """Every flow that the book knows, in a fixed order."""
    return tuple[PlainFlow, ...](book.tenancy.flows.values())
