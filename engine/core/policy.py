"""The two seams of the scheduler. A policy ranks and vetoes; blocks, rows, budgets and states stay with the core.

A policy keeps its own index of waiting sequences, so that asking for the next one costs O(log n) and takes no list.
It reads no clock, no environment and no global randomness: the same calls give the same answers. In each step:

    begin    at the start of a plan           lift, age, decide who yields; again if the plan comes to nothing
    key      per unfinished prompt            order of the chunks
    select   per admission                    who of those that wait comes next
    concede  per candidate victim             whose rows and blocks a head that finds none may take
    charge   once per flow, at the commit

`on_arrive` and `on_leave` may come between any two of them. A policy that raises, or names a sequence that it was not
offered, is replaced by the order of arrival; the engine goes on and says whose fault it was.
"""

from collections import abc
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from engine.core.config import SchedulerConfig
from engine.core.costs import Prices
from engine.core.quick_enum import quick
from engine.core.types import Nanos, PriorityClass, SequenceKey, SequenceStatus, TenantId


class NodeView(Protocol):
    """A node of the tenancy tree of one class: an organization, or a team below it.

    The planned tokens are what the plan in the making, or open, gives to all sequences below the node: they are
    not charged yet.
    """

    @property
    def key(self) -> tuple[str, ...]:
        """The class's name, then the ids from the organization to this node."""

    @property
    def weight(self) -> float:
        """Share against the siblings, above 0; of the newest policy revision."""

    @property
    def num_planned_prefill_tokens(self) -> int: ...
    @property
    def num_planned_output_tokens(self) -> int: ...


@quick
class Demand(Enum):
    """What a flow's sequences want at the start of a plan. Held ones (quota, reader) want nothing.

    NONE        no sequence that is not held
    SATISFIED   in the last plan each of them got all that it could use, or all have arrived since
    BACKLOGGED  in the last plan at least one could have used more tokens or memory and did not get them
    """

    NONE = "none"
    SATISFIED = "satisfied"
    BACKLOGGED = "backlogged"


class FlowView(Protocol):
    """The sequences of one tenant in one class: the unit that is served, charged and compared."""

    @property
    def tenant_id(self) -> TenantId: ...
    @property
    def priority_class(self) -> PriorityClass: ...
    @property
    def nodes(self) -> tuple[NodeView, ...]:
        """The path from organization to team; flows of one organization share its node."""

    @property
    def demand(self) -> Demand: ...
    @property
    def is_flagged(self) -> bool:
        """True if one of its sequences was denied something in the last plan, even if all of them left meanwhile."""

    @property
    def num_device_blocks(self) -> int:
        """Blocks of its sequences in the device pool; those on their way out are not counted."""

    @property
    def num_rows(self) -> int:
        """Rows of the batch that its sequences have."""


class SequenceView(Protocol):
    """What a policy may read of a sequence. Nothing here can be written."""

    @property
    def key(self) -> SequenceKey: ...
    @property
    def flow(self) -> FlowView: ...
    @property
    def tenant_id(self) -> TenantId: ...
    @property
    def priority_class(self) -> PriorityClass: ...
    @property
    def status(self) -> SequenceStatus: ...
    @property
    def arrival_index(self) -> int: ...
    @property
    def arrived_at(self) -> Nanos: ...
    @property
    def deadline(self) -> Nanos | None: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_output_tokens(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def max_num_tokens(self) -> int: ...
    @property
    def num_computed_tokens(self) -> int: ...
    @property
    def num_device_blocks(self) -> int: ...
    @property
    def num_cached_prompt_tokens(self) -> int:
        """Prompt tokens that a prefix cache holds, so that they need not be computed."""

    @property
    def num_preemptions(self) -> int: ...


@quick
class LeaveReason(Enum):
    """Why a sequence waits no longer. FINISHED comes once for every sequence, also for one that was not waiting.

    ADMITTED: it gets device blocks, from now on if it is new or recomputed, or by a copy if it was swapped out.
    WITHDRAWN: its output is not granted or its reader is blocked, or it is about to wait in another place, because its
    class has changed or what it had kept on the device was dropped.
    """

    ADMITTED = "admitted"
    FINISHED = "finished"
    WITHDRAWN = "withdrawn"


class Service(NamedTuple):
    """What one flow got in one step, tokens computed for the first time; recomputed ones are lost work, nobody's debt.

    `is_borrowed`: the flow yielded in that plan, and got this because nobody else could use it. `num_prefill_keys` are
    those that its prompt tokens attended to, each its own included.
    """

    flow: FlowView
    num_prefill_tokens: int
    num_output_tokens: int
    num_recomputed_tokens: int
    is_borrowed: bool = False
    num_prefill_keys: int = 0


@dataclass(frozen=True, slots=True)
class PlanStart:
    """What a policy is told when a plan begins.

    changed    flows whose `demand`, or a weight on whose path, is another than when the last plan began, in a fixed
               order; a flow may be named twice
    satisfied  every flow whose demand is SATISFIED, in a fixed order
    """

    now: Nanos
    config: SchedulerConfig
    prices: Prices
    changed: abc.Sequence[FlowView]
    satisfied: abc.Sequence[FlowView]


@dataclass(frozen=True, slots=True)
class Terms:
    """How the core is to hand out this plan. The defaults are those of a policy that only orders.

    yielding         flows that get what the others of their class leave, and whose sequences give way to them
    lends            False: flows that yield get nothing, even if the device idles
    class_order      names of the classes in the order in which they are served; classes that are not named come
                     after them by rank. None: classes mean nothing
    paces_prefill    while other flows decode, a flow's prompts take at most its share of the time
    protects_yielding  residency and the cap on preemptions protect flows that yield, too
    concedes_by_share  in its own class, a flow that neither yields nor holds more than its share of the pool concedes
                     no blocks: the core need not ask
    share            the part of the machine that is a flow's among those that want something; None: by the product of
                     the weights on its path. For rows, blocks and the time of prompts, where they are short
    """

    yielding: abc.Set[FlowView] = frozenset()
    lends: bool = True
    class_order: tuple[str, ...] | None = None
    paces_prefill: bool = False
    protects_yielding: bool = True
    share: abc.Callable[[FlowView], float] | None = None
    concedes_by_share: bool = False


@quick
class Concession(Enum):
    """What a resident sequence gives up for a head that finds no row or no blocks."""

    NOTHING = "nothing"
    ROW = "row"  # the row only: it is paused in place
    SWAP = "swap"  # row, and blocks if no computed token is lost
    ANYTHING = "anything"


class SchedulingPolicy(Protocol):
    """Decides who is served next. Called by the scheduler only."""

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        """`seq` has begun to wait: it is new (`num_preemptions` 0), was preempted, is swapped out completely, or is no
        longer held. O(log n)."""

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        """`seq` waits no longer. ADMITTED is the selection of the published policies. With FINISHED nothing follows,
        and what was committed before has been charged. O(log n)."""

    def begin(self, start: PlanStart) -> Terms:
        """A plan begins; the flows' demands are those of this moment and do not change until the next one.
        O(flows that changed, are satisfied or were served)."""

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        """The waiting (or swapped) sequence to admit next, or None. `passed` were selected in this plan and found no
        room: None stops behind them, else the next one that may pass them. Changes nothing that the caller could
        see; asked again after each grant. O(log n + passed)."""

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        """Rank of any unfinished sequence at this moment, lower first. Ties are broken by `arrival_index`. O(1)."""

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        """What `victim`, which is resident, gives up for `claimant`, a head that found no row or too few blocks. Held
        sequences give way without being asked about, and for a row only some residents are asked about. O(1)."""

    def charge(self, service: Service) -> None:
        """A step was committed. Once per flow and step, in a fixed order. O(log n)."""

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        """How over-served a flow is: one number per node of its path, compared from the organization on, higher is
        more; () where the policy does not count. For victims, statistics and tests. O(1)."""

    def snapshot(self) -> bytes:
        """The counters, so that a restart or a change of policy can carry them over."""

    def restore(self, snapshot: bytes) -> None:
        """Take over counters, before the first sequence arrives. ValueError if they are not this policy's."""


@runtime_checkable
class BoundedPolicy(Protocol):
    """A scheduling policy that promises something, for the statistics."""

    def gap_bound(self) -> float:
        """By how much the service over weight of two siblings may differ in any interval throughout which both were
        denied something, at this moment's weights and prices. O(nodes)."""


Standing = abc.Callable[[FlowView], tuple[float, ...]]


class PreemptionPolicy(Protocol):
    """Decides in which order sequences give up their blocks."""

    def victims(
        self, resident: abc.Sequence[SequenceView], claimant: SequenceView, standing: Standing, now: Nanos
    ) -> abc.Iterator[SequenceView]:
        """Yield sequences of `resident` in the order in which they may lose blocks to `claimant`.

        The core offers only those that may be preempted now, takes as many as it needs of those that it is given, and
        moves or drops their blocks as it finds cheaper. An empty iterator is a veto: the claimant waits. `claimant`
        itself may be offered and yielded; it then loses its own blocks. O(resident log resident).
        """
