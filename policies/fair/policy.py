"""The policy `fair`: which flow comes next, who yields, and who gives way to whom. Counters and rules are in `tree`.

Options choose between two modes. `work_conserving`: a flow that yields goes on with what nobody else can use; it is
charged for that up to the lead cap, and the rest is exported as borrowed. `strict`: it gets nothing while it is ahead,
even if the device idles. The bound on charged service is the same in both.
"""

from collections import abc
from dataclasses import replace

from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.core.policy import Concession, Demand, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.types import Nanos, SequenceStatus
from policies import snapshots
from policies.fair import state
from policies.fair.classes import ClassOrder
from policies.fair.leaps import is_closed, num_steps_to_yield, raise_floors
from policies.fair.locality import most_local
from policies.fair.node import (
    Node,
    downwards,
    is_as_far_ahead,
    is_least_ahead,
    may_enter,
    may_take_row,
    share_of,
)
from policies.fair.quantities import Quantities
from policies.fair.tree import Tree
from policies.options import at_least

MODES = ("work_conserving", "strict")


class Fair:
    """Shares by weight, level by level of the tenancy tree, inside each priority class.

    mode            work_conserving or strict
    theta           lead at which a flow yields, in cost units over weight; 0 is automatic: a step's worth, or what
                    keeps the price of swapping at 5 % of the service exchanged
    theta_low       lead at which a swapped sequence comes back; 0 is half of theta
    slack           lead within which the longest cached prefix comes first; 0 is strict order. There is no prefix cache
                    yet: until then it only widens theta
    prefill_cost    of a prompt token computed for the first time
    output_cost     of an emitted token
    pace_prefill    prompts take at most their share of the time beside others' decodes, and pay for what they read
    class_ageing_ms time after which a denied class is served first once; 0 is never

    Raises ValueError, naming the option, where a value is out of range.
    """

    def __init__(
        self,
        *,
        mode: str = "work_conserving",
        theta: float = 0.0,
        theta_low: float = 0.0,
        slack: float = 0.0,
        prefill_cost: float = PREFILL_COST,
        output_cost: float = OUTPUT_COST,
        pace_prefill: bool = True,
        class_ageing_ms: float = 10_000.0,
    ) -> None:
        if mode not in MODES:
            raise ValueError(f"mode must be {' or '.join(MODES)}, not {mode!r}")
        at_least(0, theta=theta, theta_low=theta_low, slack=slack, class_ageing_ms=class_ageing_ms)
        at_least(0, prefill_cost=prefill_cost, output_cost=output_cost)
        if theta and theta_low > theta:
            raise ValueError(f"theta_low must be at most theta ({theta}), not {theta_low}")
        self.requires_preemption = is_strict = mode == "strict"
        self._theta_low = theta_low
        self._quantities = Quantities(prefill_cost, output_cost, theta, slack, pace_prefill)
        self._classes = ClassOrder(class_ageing_ms)
        self._trees: dict[str, Tree] = {}
        self._start: PlanStart | None = None
        self._order: dict[str, int] = {}
        self._terms = Terms(  # of a plan in which nobody yields
            lends=not is_strict, protects_yielding=not is_strict, paces_prefill=pace_prefill, concedes_by_share=True
        )
        self._num_plans = 0
        self._carried: dict[str, float] = {}

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        self._classes.learn(seq.flow)
        self._tree(seq.flow).enqueue(seq)

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        is_admitted, has_ended = reason is LeaveReason.ADMITTED, reason is LeaveReason.FINISHED
        self._tree(seq.flow).dequeue(seq, is_admitted=is_admitted, has_ended=has_ended)

    def begin(self, start: PlanStart) -> Terms:
        self._start = start
        self._num_plans += 1
        self._quantities.learn(start.config, start.prices)
        for flow in [next(iter(tree.leaves)) for tree in self._trees.values() if tree.leaves]:
            self._classes.learn(flow)
        for name, (changed, satisfied) in self._by_class(start).items():
            self._trees[name].begin(changed, satisfied)
        demands = {name: tree.root.demand for name, tree in self._trees.items()}
        wanting = {name: demand is Demand.BACKLOGGED for name, demand in demands.items() if demand is not Demand.NONE}
        order = self._classes.order(wanting, start.now)
        self._order = {name: place for place, name in enumerate(order)}
        yielding = [tree.yielding for tree in self._trees.values() if tree.yielding]
        if order != self._terms.class_order:
            self._terms = replace(self._terms, class_order=order, share=self._share)
        if not yielding:
            return self._terms
        return replace(self._terms, yielding=yielding[0] if len(yielding) == 1 else frozenset().union(*yielding))

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        names = [name for name, tree in self._trees.items() if tree.root.queued]
        if not names:
            return None
        excluded = {self._tree(seq.flow).leaf(seq.flow) for seq in passed}
        for name in sorted(names, key=self._place):
            tree = self._trees[name]
            for yields in (False, True) if tree.yielding else (False,):
                leaf = self._walk(tree, tree.root, set(excluded), yields=yields)
                if leaf is not None:
                    return most_local(tree, leaf, excluded).queue.head()
        return None

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        flow = seq.flow
        name = flow.priority_class.name
        tree = self._trees.get(name) or self._tree(flow)
        leaf = tree.leaves.get(flow) or tree.leaf(flow)
        key: tuple[float, ...] = (self._place(name), 1.0 if flow in tree.yielding else 0.0)
        for node, _, _ in reversed(leaf.chain):
            key += tree.rank(node)
        return key + leaf.queue.key(seq)

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        giving, taking = victim.flow, claimant.flow
        if giving is taking:
            return Concession.NOTHING
        if giving.priority_class.name != taking.priority_class.name:
            return self._concede_to_class(victim, claimant)
        tree = self._tree(giving)
        if taking in tree.yielding:
            return Concession.NOTHING
        if giving in tree.yielding:
            return Concession.ANYTHING
        taker, giver = tree.leaf(taking), tree.leaf(giving)
        if not is_as_far_ahead(giver, taker):
            return Concession.NOTHING
        assert self._start is not None
        config, giver_share, taker_share = self._start.config, share_of(giver), share_of(taker)
        if may_enter(victim, claimant, giver_share, taker_share, config):
            return Concession.SWAP
        takes_row = may_take_row(giving, taking, giver_share, taker_share, config.max_num_seqs)
        return Concession.ROW if takes_row else Concession.NOTHING

    def charge(self, service: Service) -> None:
        flow, num_prefill_tokens, num_output_tokens, _, is_borrowed, num_keys = service
        cost = self._quantities.cost(num_prefill_tokens, num_output_tokens, num_keys)
        tree = self._trees.get(flow.priority_class.name) or self._tree(flow)
        leaf = tree.leaves.get(flow) or tree.leaf(flow)
        tree.charge(leaf, cost, self._num_plans, is_borrowed=is_borrowed)
        leaf.queue.num_served += num_prefill_tokens + num_output_tokens
        if self._start is not None and len(self._trees) > 1:
            self._classes.charge(flow, cost, self._start.now)

    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        """Optional, for the simulator: see LeapingPolicy, and `leaps`."""
        start = self._start
        if start is None or len(self._trees) != 1:
            return 0
        (tree,) = self._trees.values()
        if not tree.root.queued:
            return self._leap_alone(tree, services, times) if tree.root.demand is Demand.SATISFIED else 0
        if tree.yielding or not is_closed(tree, start.config.max_num_seqs):
            return 0
        num_steps = int(max(0.0, min(len(times), num_steps_to_yield(tree, services))))
        for at in times[:num_steps]:
            self._step(services, at)
        return num_steps

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        tree = self._trees.get(flow.priority_class.name)
        nodes = [None if tree is None else tree.find(view.key) for view in flow.nodes]
        return tuple(0.0 if node is None else node.lead for node in nodes)  # who was forgotten owes nothing

    def threshold(self, flow: FlowView) -> tuple[float, ...]:
        """Θ at each node of the path of a flow, as of the last plan."""
        leaf = self._tree(flow).leaf(flow)
        return tuple(parent.theta for _, parent, _ in reversed(leaf.chain))

    def step_bound(self, flow: FlowView) -> tuple[float, ...]:
        """δ at each node of the path of a flow, as of the last plan."""
        leaf = self._tree(flow).leaf(flow)
        return tuple(self._quantities.step_bound(node) for node in downwards(leaf))

    def gap_bound(self) -> float:
        """Optional, for the statistics: 2Θ + 2δ where that is most."""
        return max((tree.gap_bound() for tree in self._trees.values()), default=0.0)

    def snapshot(self) -> bytes:
        return snapshots.dump("fair", **state.dump(self._trees))

    def restore(self, snapshot: bytes) -> None:
        """From another policy that counts, its counters per tenant become those of the teams of the first class that
        each is seen in, and an organization begins with the sum of its teams'."""
        counters, saved = snapshots.load_counters("fair", snapshot)
        if saved.get("policy") == "fair":
            for name in state.class_names(saved):
                self._trees[name] = Tree(name, self._quantities)
            self._num_plans = state.load(saved, self._trees)
        else:
            self._carried = {str(tenant_id): counter for tenant_id, counter in counters.items()}

    def _leap_alone(self, tree: Tree, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        """Nobody waits. After the first step each served child is at its floor; the last one is made, too."""
        self._step(services, times[0])
        if len(times) > 2:
            raise_floors(tree, services, len(times) - 2)
            self._num_plans += len(times) - 2
        if len(times) > 1:
            self._step(services, times[-1])
        return len(times)

    def _step(self, services: abc.Iterable[Service], now: Nanos) -> None:
        """A step was committed, and the next plan begins, with the demands of the last one."""
        for service in services:
            self.charge(service)
        start = self._start
        assert start is not None
        self.begin(PlanStart(now, start.config, start.prices, (), start.satisfied))

    def _share(self, flow: FlowView) -> float:
        tree = self._trees.get(flow.priority_class.name) or self._tree(flow)
        return share_of(tree.leaves.get(flow) or tree.leaf(flow))

    def _tree(self, flow: FlowView) -> Tree:
        name = flow.priority_class.name
        tree = self._trees.get(name)
        if tree is None:
            tree = self._trees[name] = Tree(name, self._quantities)
            self._classes.learn(flow)
            if self._carried:
                state.carry(tree, self._carried)
                self._carried = {}
        return tree

    def _by_class(self, start: PlanStart) -> dict[str, tuple[list[FlowView], list[FlowView]]]:
        """The changed and the satisfied flows of each tree, those without either included."""
        by_class: dict[str, tuple[list[FlowView], list[FlowView]]] = {name: ([], []) for name in self._trees}
        for flow in start.changed:
            self._classes.learn(flow)
        for index, flows in enumerate((start.changed, start.satisfied)):
            for flow in flows:
                name = flow.priority_class.name
                if name not in by_class:
                    self._tree(flow)
                    by_class[name] = ([], [])
                by_class[name][index].append(flow)
        return by_class

    def _place(self, name: str) -> int:
        return self._order.get(name, len(self._order))

    def _walk(self, tree: Tree, parent: Node, excluded: set[Node], *, yields: bool) -> Node | None:
        """The team whose head comes first below `parent`, among those that yield, or those that do not."""
        while (child := tree.first_queued(parent, excluded)) is not None:
            if child.flow is None:
                leaf = self._walk(tree, child, excluded, yields=yields)
                if leaf is not None:
                    return leaf
            elif (child.flow in tree.yielding) is yields and self._may_return(child):
                return child
            excluded.add(child)
        return None

    def _may_return(self, leaf: Node) -> bool:
        """Rule R5(g): bytes move back only once the lead has fallen, or nobody with less of a lead waits."""
        head = leaf.queue.started.first()  # only one that has run can be on the host
        if head is None or head.status is not SequenceStatus.SWAPPED:
            return True
        return all(self._is_low(node) or is_least_ahead(node) for node in leaf.path())

    def _is_low(self, node: Node) -> bool:
        assert node.parent is not None
        low = self._theta_low or node.parent.theta / 2
        return node.lead <= low

    def _concede_to_class(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        if victim.priority_class.rank > claimant.priority_class.rank:
            return Concession.ANYTHING if victim.priority_class.preemptible else Concession.NOTHING
        if victim.priority_class.rank == claimant.priority_class.rank and self._stands_still(victim.flow):
            return Concession.ANYTHING  # or two classes of one rank that are held wait for each other's blocks for ever
        is_entrant = not claimant.flow.num_device_blocks
        is_promoted = self._classes.is_promoted(claimant.priority_class.name)
        return Concession.SWAP if is_entrant and is_promoted else Concession.NOTHING

    def _stands_still(self, flow: FlowView) -> bool:
        return not self._terms.lends and flow in self._tree(flow).yielding
