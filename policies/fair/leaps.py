"""Many steps of `fair` at once, while nobody waits and nobody was denied anything: for the simulator.

Then the floors rise by what the most served child of each parent got, and every child with work stands at its parent's
floor again. Each addition is made as a step would make it, so that nothing is rounded otherwise.
"""

from collections import abc

from engine.core.policy import Service
from policies.fair.node import Node
from policies.fair.tree import Tree

Rise = tuple[float, ...]  # what one step adds to a counter, one addition after the other


def raise_floors(tree: Tree, services: abc.Iterable[Service], num_steps: int) -> None:
    """So many steps, each with `services`, were charged, and a plan began after each. The children that are served are
    at their floors, as they are after one such step."""
    rises: dict[Node, dict[Node, Rise]] = {}
    for service in services:
        num_tokens = service.num_prefill_tokens + service.num_output_tokens
        cost = tree.quantities.cost(service.num_prefill_tokens, service.num_output_tokens)
        leaf = tree.leaf(service.flow)
        leaf.queue.num_served += num_tokens * num_steps
        for node, parent, view in leaf.chain:
            by_child = rises.setdefault(parent, {})
            by_child[node] = (*by_child.get(node, ()), cost / view.weight)
    for parent, by_child in rises.items():
        parent.floor = parent.peak = _risen(parent.floor, set(by_child.values()), num_steps)
        for child in by_child:
            child.counter = parent.floor


def _risen(floor: float, rises: abc.Collection[Rise], num_steps: int) -> float:
    """The floor after so many steps, each of which lifts it to the highest of its children."""
    for _ in range(num_steps):
        highest = floor
        for rise in rises:
            counter = floor
            for each in rise:
                counter += each
            highest = max(highest, counter)
        floor = highest
    return floor
