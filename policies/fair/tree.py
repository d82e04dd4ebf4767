"""The counters of one class, and the rules R1, R2, R3 and R8 that write them.

R1 floor   at plan start, for each parent: V = max(V, least counter of a backlogged child), or max(V, peak) if no child
           is backlogged: nobody was denied anything, so no debt remains
R2 lift    right after: a wanting child that is not backlogged is at V at least, so idling earns no credit
R3 yield   a node yields while its lead c - V is above the threshold Θ; a team yields if its organization does
R8 charge  c += cost / weight on each node of the path; what was borrowed only up to V + Θ + δ

Then V never falls, every wanting child has c >= V and every child c <= V + Θ + δ, so two backlogged siblings differ
by 2Θ + δ_f + δ_g at most in any interval, whatever the size of the pool. (The published rule lifts to the counter of
the tenant that left last, and lets the gap grow with the pool: Sheng et al. 2024 (OSDI), Algorithm 2.) Only the nodes
that something happened to are looked at: O(flows that changed, are satisfied or were served), times log n.
"""

import math
from collections import abc

from engine.core.policy import Demand, FlowView, SequenceView
from policies.fair.node import Node
from policies.fair.quantities import Quantities


class Tree:
    """One class. `quantities` gives costs, Θ and δ."""

    def __init__(self, name: str, quantities: Quantities) -> None:
        self.root = Node((name,))
        self.quantities = quantities
        self.root.theta = quantities.threshold(self.root)
        self.leaves: dict[FlowView, Node] = {}
        self.yielding: set[FlowView] = set()
        self._nodes: dict[tuple[str, ...], Node] = {(name,): self.root}
        self._dirty: dict[Node, None] = {}  # parents whose floor may have changed
        self._ahead: dict[Node, None] = {}  # nodes that may yield
        self._provisional: dict[Node, None] = {}  # nodes whose rank among the queued counts planned tokens
        self._owed: list[Node] = []  # taken as backlogged in the last plan because a snapshot said so
        self._num_made = 0

    def leaf(self, flow: FlowView) -> Node:
        """The node of a flow, made if need be."""
        leaf = self.leaves.get(flow)
        if leaf is None:
            parent = self.root
            for view in flow.nodes:
                parent = self._child(parent, view.key)
                parent.view = view
            leaf = self.leaves[flow] = parent
            if leaf.flow is not None:
                del self.leaves[leaf.flow]  # the tenant was forgotten and came back
            leaf.flow = flow
            leaf.chain = tuple((node, node.parent, node.view) for node in leaf.path() if node.parent and node.view)
        return leaf

    def begin(self, changed: abc.Iterable[FlowView], satisfied: abc.Iterable[FlowView]) -> None:
        """A plan begins: floors, lifts, and who yields."""
        if self.quantities.has_changed:
            self._learn_thresholds()
        for node in self._provisional:
            self._rank_queued(node)
        self._provisional.clear()
        owed, self._owed = self._owed, []
        for flow in (*(leaf.flow for leaf in owed if leaf.flow is not None), *changed):
            leaf = self.leaf(flow)
            for node, parent, _ in leaf.chain:
                if node.demand is not Demand.NONE and node.weight_counted != node.weight:
                    self._count_weight(node, parent, node.demand)
            self._set_demand(leaf, self._demand(leaf, flow), is_flagged=flow.is_flagged)
        dirty, self._dirty = self._dirty, {}
        for parent in dirty:
            self._raise_floor(parent)
        for flow in satisfied:
            for node, _, _ in self.leaf(flow).chain:
                if node.demand is Demand.SATISFIED:
                    self._lift(node)
        self._find_yielding()

    def charge(self, leaf: Node, cost: float, plan: int, *, is_borrowed: bool) -> None:
        """The flow of `leaf` was served `cost` in that plan."""
        dirty = self._dirty
        for node, parent, view in leaf.chain:
            counter = node.counter + cost / view.weight
            if is_borrowed:
                cap = parent.floor + parent.theta + self.quantities.step_bound(node)
                counter = max(node.counter, min(counter, cap))
            node.counter, node.served_at = counter, plan
            if counter >= parent.peak:
                parent.peak = counter
                if len(parent.children) == 1:
                    if counter > parent.floor:
                        parent.floor = counter  # whatever is flagged, the next plan would begin so
                    continue
            dirty[parent] = None
            if counter - parent.floor > parent.theta:
                self._ahead[node] = None

    def enqueue(self, seq: SequenceView) -> None:
        """`seq` waits."""
        leaf = self.leaf(seq.flow)
        leaf.queue.put(seq)
        self._count_queued(leaf, 1)

    def dequeue(self, seq: SequenceView, *, is_admitted: bool, has_ended: bool) -> None:
        """`seq` waits no longer, whether it did or not."""
        leaf = self.leaves.get(seq.flow)
        if leaf is None:
            return
        if leaf.queue.discard(seq, is_admitted=is_admitted):
            self._count_queued(leaf, -1)
        if has_ended:
            leaf.queue.forget(seq)

    def rank(self, node: Node) -> tuple[float, float, float]:
        """Order among siblings: counters with what the plan has given already, then who was served longest ago, then
        who came first."""
        view = node.view
        assert view is not None
        planned = self.quantities.cost(view.num_planned_prefill_tokens, view.num_planned_output_tokens)
        return node.counter + planned / view.weight, node.served_at, node.serial

    def first_queued(self, parent: Node, excluded: abc.Set[Node]) -> Node | None:
        """The child with somebody waiting that comes first, of those not excluded."""
        skipped: list[tuple[Node, tuple[float, ...]]] = []
        found = None
        while (child := parent.queued.first()) is not None:
            rank = self.rank(child)
            if parent.queued.rank_of(child) < rank:
                self._provisional[child] = None
                parent.queued.put(child, rank)
            elif child in excluded:
                skipped.append((child, rank))
                parent.queued.discard(child)
            else:
                found = child
                break
        for child, place in skipped:
            parent.queued.put(child, place)
        return found

    def find(self, key: tuple[str, ...]) -> Node | None:
        """The node of a path, if it is known."""
        return self._nodes.get(key)

    def gap_bound(self) -> float:
        """2Θ + 2δ of the lightest wanting child, at the parent where that is most; 0 where nobody has a sibling."""
        step_cost = self.quantities.step_cost
        parents = (node for node in self._nodes.values() if len(node.children) > 1)
        return max((2 * (node.theta + step_cost / node.least_weight) for node in parents), default=0.0)

    def nodes(self) -> abc.Iterator[Node]:
        """Every node, the root included."""
        return iter(self._nodes.values())

    def carry(
        self,
        key: tuple[str, ...],
        counter: float,
        floor: float,
        peak: float,
        served_at: int = 0,
        *,
        is_owed: bool = False,
    ) -> None:
        """A node as it was when a snapshot was taken; nodes come in the order in which they were made."""
        node = self.root
        for length in range(2, len(key) + 1):
            node = self._child(node, key[:length])
        node.counter, node.floor, node.peak, node.served_at = counter, floor, peak, served_at
        node.is_owed = is_owed
        if node.parent is not None:
            self._ahead[node] = None
            node.parent.idle.put(node, (counter,))
            self._dirty[node.parent] = None

    def _child(self, parent: Node, key: tuple[str, ...]) -> Node:
        child = self._nodes.get(key)
        if child is None:
            self._num_made += 1
            child = self._nodes[key] = Node(key, parent, serial=self._num_made)
            child.theta = self.quantities.threshold(child)
            parent.children[key[-1]] = child
        return child

    def _demand(self, leaf: Node, flow: FlowView) -> Demand:
        """That of the flow; one that was owed something when a snapshot was taken still is when it comes back."""
        if not leaf.is_owed or flow.demand is Demand.NONE:
            return flow.demand
        leaf.is_owed = False
        self._owed.append(leaf)
        if leaf.parent is not None and leaf.counter < leaf.parent.floor:
            self._lift(leaf)  # the floor has passed it meanwhile
        return Demand.BACKLOGGED

    def _set_demand(self, node: Node, demand: Demand, *, is_flagged: bool) -> None:
        """The node's demand is `demand`, and that of its ancestors follows: each wants something if a child does, and
        is flagged if a child is."""
        parent = node.parent
        is_gone = demand is Demand.NONE and is_flagged
        if parent is None or (node.demand is demand and node.is_gone is is_gone):
            node.demand = demand
            return
        parent.num_gone += is_gone - node.is_gone
        node.is_gone = is_gone
        if node.demand is not demand:
            self._move(node, parent, demand)
        parent_is_flagged = bool(parent.backlogged) or parent.num_gone > 0
        wants = Demand.BACKLOGGED if parent_is_flagged else Demand.SATISFIED
        self._set_demand(parent, wants if parent.weights else Demand.NONE, is_flagged=parent_is_flagged)

    def _move(self, node: Node, parent: Node, demand: Demand) -> None:
        """The node is where its new demand puts it among its siblings."""
        self._count_weight(node, parent, demand)
        node.demand = demand
        if demand is Demand.BACKLOGGED:
            parent.backlogged.put(node, (node.counter,))
        else:
            parent.backlogged.discard(node)
        if demand is Demand.NONE:
            parent.idle.put(node, (node.counter,))
        else:
            parent.idle.discard(node)
        self._dirty[parent] = None

    def _count_weight(self, node: Node, parent: Node, demand: Demand) -> None:
        least = parent.least_weight
        weights = parent.weights
        if node.demand is not Demand.NONE:
            weights[node.weight_counted] -= 1
            if not weights[node.weight_counted]:
                del weights[node.weight_counted]
        if demand is not Demand.NONE:
            node.weight_counted = node.weight
            weights[node.weight] = weights.get(node.weight, 0) + 1
        parent.wanting_weight = math.fsum(weight * count for weight, count in weights.items())
        if parent.least_weight != least:
            self._learn_threshold(parent)

    def _learn_thresholds(self) -> None:
        for node in self._nodes.values():
            self._learn_threshold(node)

    def _learn_threshold(self, parent: Node) -> None:
        before, parent.theta = parent.theta, self.quantities.threshold(parent)
        if parent.theta < before:  # some that did not yield may yield now
            self._ahead.update(dict.fromkeys(parent.children.values()))

    def _raise_floor(self, parent: Node) -> None:
        least = parent.least_backlogged()
        parent.floor = max(parent.floor, parent.peak if least is None else least)
        while (node := parent.idle.first()) is not None and node.counter <= parent.floor:
            parent.idle.discard(node)  # if it came back it would be lifted: its counter says nothing
            self._forget(node)

    def _forget(self, node: Node) -> None:
        if node.children or node.num_queued or node.is_gone or node.parent is None:
            return
        if node.flow is not None:
            del self.leaves[node.flow]
        self._ahead.pop(node, None)
        self._provisional.pop(node, None)
        parent = node.parent
        del parent.children[node.key[-1]], self._nodes[node.key]
        if not parent.children and parent.demand is Demand.NONE and parent.parent is not None:
            parent.parent.idle.put(parent, (parent.counter,))
            self._dirty[parent.parent] = None

    def _lift(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        if node.counter < parent.floor:
            node.counter = parent.floor
            parent.peak = max(parent.peak, node.counter)
            self._rank_queued(node)

    def _find_yielding(self) -> None:
        self.yielding = set()
        for node in list(self._ahead):
            parent = node.parent
            assert parent is not None
            if node.lead <= parent.theta:
                del self._ahead[node]
                continue
            leaves = [node] if node.flow is not None else node.children.values()
            flows = (leaf.flow for leaf in leaves)
            self.yielding.update(flow for flow in flows if flow is not None and flow.demand is not Demand.NONE)

    def _count_queued(self, leaf: Node, change: int) -> None:
        for node, _, _ in leaf.chain:
            node.num_queued += change
            self._rank_queued(node)

    def _rank_queued(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        if node.num_queued:
            parent.queued.put(node, self.rank(node))
        else:
            parent.queued.discard(node)
