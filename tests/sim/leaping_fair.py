"""`fair` with leaps: while nobody waits and nobody was denied anything, the floors rise by what the most served child
of each parent got, and every child with work stands at its parent's floor again."""

from collections import abc
from dataclasses import replace

from engine.core.policy import Demand, Service
from engine.core.types import Nanos
from policies.fair import Fair


class LeapingFair(Fair):
    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        start = self._start
        if start is None or len(self._trees) != 1:
            return 0
        (tree,) = self._trees.values()
        if tree.root.queued or tree.root.demand is not Demand.SATISFIED:
            return 0
        begin = replace(start, changed=())
        # The first and the last step are made: after the first each charged child is at its floor, and the last one
        # leaves everything as a step does.
        self._step(services, replace(begin, now=times[0]))
        if len(times) > 2:
            self._raise_floors(services, len(times) - 2)
        if len(times) > 1:
            self._step(services, replace(begin, now=times[-1]))
        return len(times)

    def _step(self, services, start):
        for service in services:
            self.charge(service)
        self.begin(start)

    def _raise_floors(self, services: abc.Sequence[Service], num_steps: int) -> None:
        """So many steps like the last. Each addition is made as a step would make it, so that nothing is rounded
        otherwise."""
        (tree,) = self._trees.values()
        increments: dict[object, dict[object, list[float]]] = {}
        for service in services:
            cost = self._quantities.cost(service.num_prefill_tokens, service.num_output_tokens)
            leaf = tree.leaf(service.flow)
            leaf.queue.num_served += (service.num_prefill_tokens + service.num_output_tokens) * num_steps
            for node, parent, view in leaf.chain:
                increments.setdefault(parent, {}).setdefault(node, []).append(cost / view.weight)
        for parent, by_child in increments.items():
            rises = sorted({tuple(each) for each in by_child.values()})
            floor = parent.floor
            for _ in range(num_steps):
                floor = max(_risen(floor, rise) for rise in rises)
            parent.floor = parent.peak = floor
            for child in by_child:
                child.counter = floor
        self._num_plans += num_steps


def _risen(floor: float, rise: tuple[float, ...]) -> float:
    for each in rise:
        floor += each
    return floor
