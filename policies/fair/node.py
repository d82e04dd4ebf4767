"""One node of the counter tree of one class: the class's root, an organization, or a team.

`counter` is the service charged to the node over its weight. A parent compares its children: its `floor` is a level
that no child which is owed something is below, its `peak` the highest that a child ever reached.
"""

from collections import abc
from dataclasses import dataclass, field

from engine.core.config import SchedulerConfig
from engine.core.light import holds_little
from engine.core.policy import Demand, FlowView, NodeView, SequenceView
from engine.core.ranking import Ranking
from policies.fair.queue import Queue


@dataclass(slots=True, eq=False)
class Node:
    """Written by Tree, and by Leaps for steps that repeat.

    view         weight and planned tokens; None for a root
    served_at    number of the last plan that served it, for ties
    serial       how many nodes were made before it, for the ties that are left
    demand       as a flow's: a parent wants, and is backlogged, if a child is
    backlogged   children that are, by counter (Q of rule R1)
    num_gone     children that were denied something in the last plan and want nothing now: they flag their parent
    queued       children with a sequence that waits, by what `Tree.rank` said when they were put there
    weights      how many wanting children have each weight; wanting_weight is the sum of them all
    theta        threshold Θ of the children, as of their weights and the last plan's prices
    num_queued   sequences that wait below the node
    is_gone      it is one of these of its parent
    is_owed      a snapshot says that it was backlogged, and it has wanted nothing since
    flow, queue  of a team only
    chain        of a team only: each node of its path, from the team up, with its parent and view
    """

    key: tuple[str, ...]
    parent: "Node | None" = None
    view: NodeView | None = None
    counter: float = 0.0
    served_at: int = 0
    serial: int = 0
    demand: Demand = Demand.NONE
    floor: float = 0.0
    peak: float = 0.0
    children: "dict[str, Node]" = field(default_factory=dict)
    backlogged: "Ranking[Node]" = field(default_factory=Ranking)
    queued: "Ranking[Node]" = field(default_factory=Ranking)
    idle: "Ranking[Node]" = field(default_factory=Ranking)
    weights: dict[float, int] = field(default_factory=dict)
    weight_counted: float = 0.0
    wanting_weight: float = 0.0
    theta: float = 0.0
    chain: "tuple[tuple[Node, Node, NodeView], ...]" = ()
    num_queued: int = 0
    num_gone: int = 0
    is_gone: bool = False
    is_owed: bool = False
    flow: FlowView | None = None
    queue: Queue = field(default_factory=Queue)

    @property
    def weight(self) -> float:
        return 1.0 if self.view is None else self.view.weight

    @property
    def lead(self) -> float:
        """Distance above the floor of the siblings; 0 for a root."""
        return 0.0 if self.parent is None else self.counter - self.parent.floor

    @property
    def least_weight(self) -> float:
        """Of the wanting children; 1 if there is none."""
        return min(self.weights, default=1.0)

    def path(self) -> "abc.Iterator[Node]":
        """This node and its ancestors, without the root."""
        node: Node | None = self
        while node is not None and node.parent is not None:
            yield node
            node = node.parent

    def least_backlogged(self) -> float | None:
        """The least counter of a backlogged child; None if there is none.

        Counters only rise, so a rank that is out of date is too low, and is put right when it comes first.
        """
        while (child := self.backlogged.first()) is not None:
            if self.backlogged.rank_of(child)[0] == child.counter:
                return child.counter
            self.backlogged.put(child, (child.counter,))
        return None


def downwards(leaf: Node) -> tuple[Node, ...]:
    """The path of a team, from the organization on."""
    return tuple(node for node, _, _ in reversed(leaf.chain))


def is_as_far_ahead(upper: Node, lower: Node) -> bool:
    """True if the lead of `upper` is at least that of `lower`, where their paths part."""
    for (first, parent, _), (second, _, _) in zip(reversed(upper.chain), reversed(lower.chain), strict=True):
        if first is not second:
            return first.counter - parent.floor >= second.counter - parent.floor
    return False


def is_least_ahead(node: Node) -> bool:
    """True if no sibling with a smaller lead has somebody waiting."""
    parent = node.parent
    first = None if parent is None else parent.queued.first()
    return first is None or first is node or first.counter >= node.counter


def share_of(leaf: Node) -> float:
    """The part of the whole that is the team's by weight, among those that want something."""
    share = 1.0
    for _, parent, view in leaf.chain:
        wanting_weight = parent.wanting_weight
        if wanting_weight:
            share *= view.weight / wanting_weight
    return share


def may_take_row(giver: FlowView, taker: FlowView, giver_share: float, taker_share: float, num_rows: int) -> bool:
    """Rule R4 for rows, which cost nothing to take: below its share of them, and from those above theirs."""
    return taker.num_rows + 1 <= taker_share * num_rows and giver.num_rows > giver_share * num_rows


def may_enter(
    victim: SequenceView, claimant: SequenceView, giver_share: float, taker_share: float, config: SchedulerConfig
) -> bool:
    """Rule R5(d): a flow that holds no block takes what is its share of the pool from those above theirs.

    One that holds some may do so, too, while it stays far below its share: the second short request of a light
    tenant should not wait where the first did not. Near its share it would only take turns with the others.
    """
    if victim.flow.num_device_blocks <= giver_share * config.num_device_blocks:
        return False
    num_needed = -(-claimant.num_tokens // config.block_size) - claimant.num_device_blocks
    return holds_little(claimant.flow.num_device_blocks, num_needed, taker_share * config.num_device_blocks)
