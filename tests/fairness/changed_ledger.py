"""The model's counters, with the lift that the changed rules ask for."""

from collections import abc

from tests.fairness.ledger import Bound, Key, Ledger, Node


class ChangedLedger(Ledger):
    """`changes` names the rules that are changed."""

    def __init__(self, weight: Bound, threshold: Bound, step_bound: Bound, changes: abc.Set[str]) -> None:
        if "step_bound_unweighted" in changes:
            super().__init__(weight, threshold, lambda key: step_bound(key) * weight(key))
        else:
            super().__init__(weight, threshold, step_bound)
        self.changes = changes
        self.old_floors: dict[int, float] = {}

    def begin(self, wanting: abc.Iterable[Key]) -> None:
        wanting = set(wanting)
        before = self.wanting
        self.leaves = [key for key, node in self.nodes.items() if not node.children]
        self.arrived = {leaf[:d] for leaf in wanting for d in range(1, len(leaf) + 1)} - before
        if "org_flag_recomputed" in self.changes:
            for node in self.nodes.values():
                node.is_flagged &= not node.children or any(
                    self.nodes[child].is_flagged and (child in wanting) for child in node.children
                )
        self.left = {key for key in before if key not in self.wanting_of(wanting)}
        super().begin(wanting)

    @staticmethod
    def wanting_of(leaves: abc.Iterable[Key]) -> set[Key]:
        return {leaf[:depth] for leaf in leaves for depth in range(1, len(leaf) + 1)}

    def lift(self, parent: Node) -> None:
        """R1 and R2 as asked for. With an empty queue the changed ones gate nobody, but lift to an older floor."""
        wanting = [key for key in parent.children if key in self.wanting]
        backlogged = [self.nodes[key].counter for key in wanting if self.nodes[key].is_flagged]
        lifts_to_old = bool({"empty_takes_last", "empty_keeps_floor"} & self.changes)
        if backlogged:
            floor = self.old_floors[id(parent)] = min(backlogged)
        else:
            floor = parent.peak
        if "global_lift" in self.changes and parent.children and parent.children[0] in self.leaves:
            flagged = [
                self.nodes[key].counter for key in self.leaves if self.nodes[key].is_flagged and key in self.wanting
            ]
            floor = min(flagged, default=floor)
        parent.floor = floor if lifts_to_old or "global_lift" in self.changes else max(parent.floor, floor)
        level = self.old_floors.get(id(parent), 0.0) if lifts_to_old else parent.floor
        for key in wanting:
            node = self.nodes[key]
            if node.is_flagged or ("lift_on_activation" in self.changes and key not in self.arrived):
                continue
            node.counter = max(node.counter, level)
            parent.peak = max(parent.peak, node.counter)

    def max_lead(self, leaf: Key) -> float:
        return max(self.leads(leaf))

    def compare(self, first: Key, second: Key) -> float:
        """By how much `first` leads more than `second`, where their paths part."""
        depth = next(d for d in range(2, len(first) + 1) if first[:d] != second[:d])
        return self.lead(first[:depth]) - self.lead(second[:depth])
