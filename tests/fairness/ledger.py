"""Counters, floors and flags of one tree of siblings, written from the rules R1, R2, R7 and R8 alone.

The oracle that a policy's own counters are compared with. A node's key is the name of the class, then the ids from the
organization down; the root of a class is the key of length one. Nothing here calls the policy or the scheduler.
"""

from collections import abc
from dataclasses import dataclass, field

Key = tuple[str, ...]
Bound = abc.Callable[[Key], float]


@dataclass(slots=True)
class Node:
    """`floor` and `peak` are those of its children, `counter` and `is_flagged` its own."""

    counter: float = 0.0
    floor: float = 0.0
    peak: float = 0.0
    is_flagged: bool = False
    children: list[Key] = field(default_factory=list)


class Ledger:
    """What every node was charged, and how far it is ahead of the floor of its parent."""

    def __init__(self, weight: Bound, threshold: Bound, step_bound: Bound) -> None:
        self._weight = weight
        self._threshold = threshold
        self._step_bound = step_bound
        self.nodes: dict[Key, Node] = {}
        self.wanting: set[Key] = set()

    def join(self, leaf: Key) -> None:
        """The leaf and all nodes above it exist."""
        for depth in range(1, len(leaf) + 1):
            key = leaf[:depth]
            if key not in self.nodes:
                self.nodes[key] = Node()
                if depth > 1:
                    self.nodes[key[:-1]].children.append(key)

    def begin(self, wanting: abc.Iterable[Key]) -> None:
        """A plan begins: R1 for every parent, then R2 for its children."""
        self.wanting = {leaf[:depth] for leaf in wanting for depth in range(1, len(leaf) + 1)}
        for parent in self.nodes.values():
            if parent.children:
                self.lift(parent)

    def lift(self, parent: Node) -> None:
        wanting = [key for key in parent.children if key in self.wanting]
        backlogged = [self.nodes[key].counter for key in wanting if self.nodes[key].is_flagged]
        parent.floor = max(parent.floor, min(backlogged) if backlogged else parent.peak)
        for key in wanting:
            node = self.nodes[key]
            if not node.is_flagged:
                node.counter = max(node.counter, parent.floor)
                parent.peak = max(parent.peak, node.counter)

    def flag(self, denied: abc.Iterable[Key]) -> None:
        """The plan is made: the leaves that got less than they could use, and all nodes above them, are flagged."""
        flagged = {leaf[:depth] for leaf in denied for depth in range(1, len(leaf) + 1)}
        for key, node in self.nodes.items():
            node.is_flagged = key in flagged

    def charge(self, leaf: Key, cost: float, *, is_borrowed: bool) -> None:
        """The plan is committed: R8 on every node of the path."""
        for depth in range(2, len(leaf) + 1):
            key = leaf[:depth]
            node, parent = self.nodes[key], self.nodes[key[:-1]]
            charged = node.counter + cost / self._weight(key)
            if is_borrowed:
                cap = parent.floor + self._threshold(key) + self._step_bound(key)
                charged = max(node.counter, min(charged, cap))
            node.counter = charged
            parent.peak = max(parent.peak, charged)

    def lead(self, key: Key) -> float:
        return self.nodes[key].counter - self.nodes[key[:-1]].floor

    def leads(self, leaf: Key) -> tuple[float, ...]:
        return tuple(self.lead(leaf[:depth]) for depth in range(2, len(leaf) + 1))

    def yields(self, leaf: Key) -> bool:
        """R3: the leaf, or a node above it, is ahead of its siblings by more than the threshold."""
        return any(self.lead(leaf[:depth]) > self._threshold(leaf[:depth]) for depth in range(2, len(leaf) + 1))
