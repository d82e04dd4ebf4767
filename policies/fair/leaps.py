"""Many steps of `fair` at once, where each is like the one before: for the simulator.

While nobody waits and nobody was denied anything, the floors rise by what the most served child of each parent got, and
every child with work stands at its parent's floor again. Where some wait, the engine must be *closed* to them, whatever
the counters say, and no leap may reach the step in which somebody has to yield. Each addition is made as a step would
make it, so that nothing is rounded otherwise.
"""

import math
from collections import abc

from engine.core.policy import Service
from policies.fair.node import Node, share_of
from policies.fair.tree import Tree

MAX_FLOWS = 256  # that are looked at for one leap
MARGIN = 0.01  # of a step, for what is rounded

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
        parent.floor = parent.peak = _risen(parent.floor, dict.fromkeys(by_child.values()), num_steps)
        for child in by_child:
            child.counter = parent.floor


def _risen(floor: float, rises: abc.Collection[Rise], num_steps: int) -> float:
    """The floor after so many steps, each of which lifts it to the highest of its children."""
    if max(map(len, rises), default=0) == 1:
        most = max([rise[0] for rise in rises])  # rounding keeps the order of sums, so this child is the highest
        for _ in range(num_steps):
            floor += most
        return floor
    for _ in range(num_steps):
        highest = floor
        for rise in rises:
            counter = floor
            for each in rise:
                counter += each
            highest = max(highest, counter)
        floor = highest
    return floor


def is_closed(tree: Tree, num_rows: int) -> bool:
    """True if all rows are taken, and no flow that waits may take a row or blocks from another by its share of them.

    The questions of `Fair.concede`, with the leads left out. False where that would take long to find out.
    """
    if len(tree.leaves) > MAX_FLOWS:
        return False
    num_taken = 0
    has_taker = has_giver = False
    for flow, leaf in tree.leaves.items():
        if leaf.num_queued and not flow.num_device_blocks:
            return False  # it may enter
        entitled = share_of(leaf) * num_rows
        num_taken += flow.num_rows
        has_taker = has_taker or (leaf.num_queued > 0 and flow.num_rows + 1 <= entitled)
        has_giver = has_giver or flow.num_rows > entitled
    return num_taken == num_rows and not (has_taker and has_giver)


def num_steps_to_yield(tree: Tree, services: abc.Iterable[Service]) -> float:
    """A number of steps with `services` after which nobody yields who does not yield now. Floors only rise."""
    rises: dict[Node, float] = {}
    for service in services:
        cost = tree.quantities.cost(service.num_prefill_tokens, service.num_output_tokens)
        for node, _, view in tree.leaf(service.flow).chain:
            rises[node] = rises.get(node, 0.0) + cost / view.weight
    lengths = [(node.parent.theta - node.lead) / rise for node, rise in rises.items() if node.parent and rise > 0]
    return min(lengths, default=math.inf) - MARGIN
