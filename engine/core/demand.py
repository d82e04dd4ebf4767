"""Who wants service, and who was denied it: the demand of every flow, from plan to plan (rule R7 of docs/fairness.md).

A flow is flagged after a plan if one of its unfinished, not held sequences could have used more tokens or memory than
it got. The flag lives until the next plan's replaces it, even if the denied request left meanwhile; whether the flow
still wants anything is judged when the next plan begins. Costs O(flows that were served, are satisfied or changed).
"""

from collections import abc

from engine.core.flow import Flow
from engine.core.policy import Demand


class Demands:
    """The flows whose demand may have changed since the last plan began. `num_wanting` sequences of
    `num_flows` flows want service."""

    def __init__(self) -> None:
        self._touched: dict[Flow, None] = {}  # a dict, as the order of a set of objects is that of their addresses
        self._satisfied: dict[Flow, None] = {}
        self._gone: dict[Flow, None] = {}  # flagged after the last plan, and want nothing now
        self.num_wanting = 0
        self.num_flows = 0

    def change(self, flow: Flow, num_sequences: int) -> None:
        """So many more sequences of `flow` want service."""
        self.num_flows += (flow.num_wanting + num_sequences > 0) - (flow.num_wanting > 0)
        flow.num_wanting += num_sequences
        self.num_wanting += num_sequences
        self._touched[flow] = None

    def touch_all(self, flows: abc.Iterable[Flow]) -> None:
        """A new policy knows no flow: each one that wants service is reported as changed."""
        self._satisfied.clear()
        for flow in flows:
            flow.demand = Demand.NONE
            self._touched[flow] = None

    def begin(self, reweighted: abc.Iterable[Flow] = ()) -> tuple[list[Flow], list[Flow]]:
        """Every demand is that of this moment. Returns the flows whose demand or weight has changed, and those
        satisfied."""
        changed = [*reweighted, *self._gone]
        for flow in self._gone:
            flow.is_flagged = False  # nobody was denied anything in the plan that followed
        self._gone.clear()
        none, satisfied = Demand.NONE, Demand.SATISFIED
        for flow in self._touched:
            demand = _demand_of(flow)
            if demand is none and flow.is_flagged:
                self._gone[flow] = None
            if demand is not flow.demand:
                flow.demand = demand
                changed.append(flow)
                if demand is satisfied:
                    self._satisfied[flow] = None
                else:
                    self._satisfied.pop(flow, None)
        self._touched = {}
        return changed, list(self._satisfied)

    def are_settled(self) -> bool:
        """True if no flow's demand will be another when the next plan begins."""
        return all(flow.num_wanting and _demand_of(flow) is flow.demand for flow in self._touched)

    def end(self, served: abc.Iterable[Flow]) -> None:
        """A plan is made that grants tokens to the flows in `served`, each with its `num_satisfied` counted."""
        touched = self._touched
        for flow in self._satisfied:
            flow.is_flagged = flow.num_satisfied < flow.num_wanting
            if flow.is_flagged:
                touched[flow] = None
        for flow in served:
            is_flagged = flow.num_satisfied < flow.num_wanting
            if is_flagged is not flow.is_flagged:
                flow.is_flagged = is_flagged
                touched[flow] = None
            flow.num_satisfied = 0


def _demand_of(flow: Flow) -> Demand:
    """What its flag and those that want service make of it."""
    if not flow.num_wanting:
        return Demand.NONE
    return Demand.BACKLOGGED if flow.is_flagged else Demand.SATISFIED
