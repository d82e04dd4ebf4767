"""The counters of `fair` as JSON values, so that a restart or a change of policy can carry them over."""

from collections import abc
from typing import Any

from engine.core.policy import Demand
from policies import snapshots
from policies.fair.tree import Tree

SEPARATOR = "/"  # no id holds one
NUM_VALUES = 6  # of a node


def dump(trees: abc.Mapping[str, Tree]) -> dict[str, object]:
    """`nodes`: path, counter, floor, peak, last plan that served it, whether it was denied something, in the order in
    which they were made.
    `counters`: per tenant, the most that any class has."""
    nodes: list[list[str | float]] = []
    counters: dict[str, float] = {}
    for tree in trees.values():
        for node in tree.nodes():
            is_owed = node.demand is Demand.BACKLOGGED or node.is_owed
            nodes.append([SEPARATOR.join(node.key), node.counter, node.floor, node.peak, node.served_at, int(is_owed)])
            if node.parent is not None and not node.children:
                tenant_id = SEPARATOR.join(node.key[1:])
                counters[tenant_id] = max(node.counter, counters.get(tenant_id, 0.0))
    return {"nodes": nodes, "counters": counters}


def class_names(saved: abc.Mapping[str, Any]) -> list[str]:  # parsed JSON, checked here
    """The classes of a snapshot. Raises ValueError if it holds no nodes."""
    nodes = saved.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(node, list) and len(node) == NUM_VALUES for node in nodes):
        raise ValueError("this is not a snapshot of fair")
    return sorted({str(node[0]).split(SEPARATOR)[0] for node in nodes})


def load(saved: abc.Mapping[str, Any], trees: abc.Mapping[str, Tree]) -> int:  # parsed JSON, checked here
    """The trees have the counters of the snapshot; returns the number of its last plan.

    Raises ValueError if one is not finite.
    """
    last_plan = 0
    for name, *values in saved["nodes"]:
        key = tuple(str(name).split(SEPARATOR))
        counter, floor, peak, served_at, is_owed = (snapshots.finite("fair", value) for value in values)
        trees[key[0]].carry(key, counter, floor, peak, int(served_at), is_owed=bool(is_owed))
        last_plan = max(last_plan, int(served_at))
    return last_plan


def carry(tree: Tree, counters: abc.Mapping[str, float]) -> None:
    """Counters of tenants by another policy become those of the teams, and their sum that of the organization."""
    totals: dict[str, float] = {}
    peaks: dict[str, float] = {}
    for tenant_id, counter in sorted(counters.items()):
        path = tuple(tenant_id.split(SEPARATOR))
        tree.carry((*tree.root.key, *path), counter, 0.0, 0.0)
        totals[path[0]] = totals.get(path[0], 0.0) + (counter if len(path) > 1 else 0.0)
        peaks[path[0]] = max(peaks.get(path[0], 0.0), counter)
    for organization, total in totals.items():
        tree.carry((*tree.root.key, organization), total, 0.0, peaks[organization])
    tree.carry(tree.root.key, 0.0, 0.0, max(totals.values(), default=0.0))
