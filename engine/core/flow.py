"""Tenants as the scheduler sees them: accounts, the tree of weighted nodes of each class, and flows.

A *flow* is the sequences of one tenant in one class: what is served, charged and compared. Knows no policy and no
order. Of tenants without work only the latest are remembered, so that memory stays bounded.
"""

import math
from collections import OrderedDict, abc
from dataclasses import dataclass, field

from engine.core.policy import Demand, Service
from engine.core.stats import TenantStats, Totals
from engine.core.types import BlockId, PathNode, PriorityClass, Request, SequenceStatus, TenantId

MAX_IDLE_TENANTS = 4096

Path = tuple[str, ...]


@dataclass(slots=True, eq=False)
class Node:
    """A node of one class's tree; see NodeView. Written by Flows (weight) and Step (planned tokens)."""

    key: tuple[str, ...]
    weight: float
    num_planned_prefill_tokens: int = 0
    num_planned_output_tokens: int = 0
    num_flows: int = 0


@dataclass(slots=True, eq=False)
class Account:
    """What one tenant has, and what it was served since it was first seen.

    Written by Lifecycle, Preemptions and Committer.
    """

    id: TenantId
    path: Path
    num_sequences: dict[SequenceStatus, int] = field(default_factory=lambda: dict.fromkeys(SequenceStatus, 0))
    flows: "dict[str, Flow]" = field(default_factory=dict)
    num_prefill_tokens: int = 0
    num_found_tokens: int = 0
    num_output_tokens: int = 0
    num_recomputed_tokens: int = 0
    num_borrowed_tokens: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    num_pauses: int = 0
    num_swaps_out: int = 0
    num_swaps_in: int = 0
    num_copied_blocks: int = 0
    num_preemptions: int = 0
    wait_ns: int = 0

    @property
    def num_unfinished(self) -> int:
        return sum(self.num_sequences.values()) - self.num_sequences[SequenceStatus.FINISHED]


@dataclass(slots=True, eq=False)
class Flow:
    """One tenant in one class; see FlowView.

    weight         the product of the weights of its nodes
    num_wanting    unfinished sequences that are not held
    num_satisfied  of them, those that got all that they could use in the plan being made
    block_refs     of blocks that may be shared, in how many tables of its sequences each one is
    last_decodes   what the flow got in the latest step that only decoded for it
    is_flagged     after the last plan some sequence could have used more tokens or memory (rule R7 of docs/fairness.md)

    Written by Lifecycle, BlockManager, Step and Demands.
    """

    account: Account
    priority_class: PriorityClass
    nodes: tuple[Node, ...]
    weight: float
    demand: Demand = Demand.NONE
    num_wanting: int = 0
    num_satisfied: int = 0
    num_device_blocks: int = 0
    num_rows: int = 0
    is_flagged: bool = False
    block_refs: dict[BlockId, int] = field(default_factory=dict)
    last_decodes: Service | None = None

    @property
    def tenant_id(self) -> TenantId:
        return self.account.id

    def decodes(self, num_tokens: int) -> Service:
        """Service of a step that only decoded for the flow: mostly the same as in the step before."""
        service = self.last_decodes
        if service is None or service.num_output_tokens != num_tokens:
            service = self.last_decodes = Service(self, 0, num_tokens, 0)
        return service


class Flows:
    """Every tenant with an unfinished sequence, and the `MAX_IDLE_TENANTS` that became idle last.

    The weight of a node is that of the highest policy revision seen, in all classes and for queued and running work
    alike; so are the settings of a class.
    """

    def __init__(self) -> None:
        self._accounts: dict[TenantId, Account] = {}
        self._idle: OrderedDict[TenantId, None] = OrderedDict()  # in the order in which they became idle
        self._nodes: dict[tuple[str, ...], Node] = {}
        self._weights: dict[Path, tuple[float, int]] = {}  # with the revision that said so
        self._classes: dict[str, tuple[PriorityClass, int]] = {}
        self._reweighted: dict[Flow, None] = {}
        self._forgotten = Totals()

    def join(self, request: Request) -> Flow:
        """The flow of `request`, which is about to have an unfinished sequence more."""
        tenant_id = request.tenant_id
        account = self._accounts.get(tenant_id)
        if account is None:
            account = self._accounts[tenant_id] = Account(tenant_id, tuple(node.id for node in request.path))
        self._idle.pop(tenant_id, None)
        self._learn_weights(request.path, request.policy_revision)
        return self.flow(account, request.priority_class, request.policy_revision)

    def flow(self, account: Account, priority_class: PriorityClass, revision: int = 0) -> Flow:
        """The flow of this tenant in this class, which is known from now on."""
        priority_class = self._learn_class(priority_class, revision)
        flow = account.flows.get(priority_class.name)
        if flow is None:
            nodes = tuple(self._node(priority_class.name, path) for path in _prefixes(account.path))
            flow = account.flows[priority_class.name] = Flow(account, priority_class, nodes, _weight(nodes))
            for node in nodes:
                node.num_flows += 1
        return flow

    def leave(self, account: Account) -> None:
        """A sequence of the tenant has ended."""
        if not account.num_unfinished:
            self._idle[account.id] = None
            if len(self._idle) > MAX_IDLE_TENANTS:
                self._forget(self._idle.popitem(last=False)[0])

    def update_weights(self, updates: abc.Iterable[tuple[Path, float, int]]) -> None:
        """Path, weight and revision of nodes; older revisions and unknown nodes change nothing."""
        changed = [update[0] for update in updates if update[0] in self._weights and self._set_weight(*update)]
        self._reweigh(set(changed))

    def update_classes(self, classes: abc.Iterable[PriorityClass], revision: int) -> None:
        """Settings of classes; unknown ones change nothing."""
        for priority_class in classes:
            if priority_class.name in self._classes:
                self._learn_class(priority_class, revision)

    def take_reweighted(self) -> list[Flow]:
        """The flows on whose path a weight has changed since the last call."""
        flows, self._reweighted = list(self._reweighted), {}
        return flows

    def class_ranks(self) -> dict[str, int]:
        """The rank of each class that was ever asked for."""
        return {name: priority_class.rank for name, (priority_class, _) in self._classes.items()}

    def all(self) -> abc.Iterator[Flow]:
        for account in self._accounts.values():
            yield from account.flows.values()

    def stats(
        self, standing: abc.Callable[[Flow], tuple[float, ...]], num_kept_of: abc.Callable[[TenantId], int]
    ) -> tuple[TenantStats, ...]:
        """In order of tenant id."""
        return tuple(self._stats(self._accounts[key], standing, num_kept_of(key)) for key in sorted(self._accounts))

    def totals(self) -> Totals:
        """What all tenants were served, those included that are forgotten."""
        totals = self._forgotten
        for account in self._accounts.values():
            totals = _with(totals, account)
        return totals

    def _learn_weights(self, path: tuple[PathNode, ...], revision: int) -> None:
        ids: Path = ()
        changed = set()
        for node in path:
            ids = (*ids, node.id)
            if self._set_weight(ids, node.weight, revision):
                changed.add(ids)
        self._reweigh(changed)

    def _set_weight(self, path: Path, weight: float, revision: int) -> bool:
        """True if the node has another weight than it had; then the flows below it are to be weighed anew."""
        known = self._weights.get(path)
        if known is not None and (revision < known[1] or known == (weight, revision)):
            return False
        self._weights[path] = (weight, revision)
        if known is not None and known[0] == weight:
            return False  # only its revision has risen
        for name in self._classes:
            node = self._nodes.get((name, *path))
            if node is not None:
                node.weight = weight
        return known is not None

    def _reweigh(self, changed: set[Path]) -> None:
        """The flows below the nodes in `changed` have their new weights: all flows are looked at, once."""
        for flow in self.all() if changed else ():
            if any(path in changed for path in _prefixes(flow.account.path)):
                flow.weight = _weight(flow.nodes)
                self._reweighted[flow] = None

    def _learn_class(self, priority_class: PriorityClass, revision: int) -> PriorityClass:
        known = self._classes.get(priority_class.name)
        if known is not None and (revision < known[1] or known == (priority_class, revision)):
            return known[0]
        self._classes[priority_class.name] = (priority_class, revision)
        if known is not None:
            for account in self._accounts.values():
                if priority_class.name in account.flows:
                    account.flows[priority_class.name].priority_class = priority_class
        return priority_class

    def _node(self, class_name: str, path: Path) -> Node:
        key = (class_name, *path)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = Node(key, self._weights[path][0])
        return node

    def _forget(self, tenant_id: TenantId) -> None:
        account = self._accounts.pop(tenant_id)
        self._forgotten = _with(self._forgotten, account)
        for flow in account.flows.values():
            for node in flow.nodes:
                node.num_flows -= 1
                if not node.num_flows:
                    del self._nodes[node.key]
                    path = node.key[1:]
                    if not any((name, *path) in self._nodes for name in self._classes):
                        del self._weights[path]

    def _stats(
        self, account: Account, standing: abc.Callable[[Flow], tuple[float, ...]], num_kept_blocks: int
    ) -> TenantStats:
        flows = account.flows.values()
        count = account.num_sequences
        return TenantStats(
            tenant_id=account.id,
            path=tuple(PathNode(path[-1], self._weights[path][0]) for path in _prefixes(account.path)),
            num_running=count[SequenceStatus.RUNNING],
            num_waiting=count[SequenceStatus.WAITING],
            num_paused=count[SequenceStatus.PAUSED],
            num_swapped=count[SequenceStatus.SWAPPED],
            num_swapping=count[SequenceStatus.SWAPPING_OUT] + count[SequenceStatus.SWAPPING_IN],
            num_prefill_tokens=account.num_prefill_tokens,
            num_output_tokens=account.num_output_tokens,
            num_recomputed_tokens=account.num_recomputed_tokens,
            num_borrowed_tokens=account.num_borrowed_tokens,
            num_preemptions=account.num_preemptions,
            num_pauses=account.num_pauses,
            num_swaps_out=account.num_swaps_out,
            num_swaps_in=account.num_swaps_in,
            num_copied_blocks=account.num_copied_blocks,
            num_device_blocks=sum(flow.num_device_blocks for flow in flows),
            wait_ns=account.wait_ns,
            standing=max((standing(flow) for flow in flows), default=()),
            num_found_tokens=account.num_found_tokens,
            num_kept_blocks=num_kept_blocks,
            num_drafted_tokens=account.num_drafted_tokens,
            num_accepted_tokens=account.num_accepted_tokens,
        )


def _with(totals: Totals, account: Account) -> Totals:
    return Totals(
        totals.num_prefill_tokens + account.num_prefill_tokens,
        totals.num_output_tokens + account.num_output_tokens,
        totals.num_recomputed_tokens + account.num_recomputed_tokens,
        totals.num_borrowed_tokens + account.num_borrowed_tokens,
        totals.num_drafted_tokens + account.num_drafted_tokens,
        totals.num_accepted_tokens + account.num_accepted_tokens,
        totals.num_found_tokens + account.num_found_tokens,
    )


def _weight(nodes: abc.Iterable[Node]) -> float:
    return math.prod(node.weight for node in nodes)


def _prefixes(path: Path) -> abc.Iterator[Path]:
    return (path[:length] for length in range(1, len(path) + 1))
