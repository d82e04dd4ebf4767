"""The policy `fair`, called plan by plan without a scheduler."""

from collections import abc

from engine.core.policy import Demand, PlanStart, Service, Terms
from engine.core.types import Nanos
from engine.sim.conformance.book import CONFIG
from engine.sim.conformance.views import PlainFlow, PlainSequence, Tenancy
from policies.fair import Fair
from tests.policies.views import NOW, Prices

THETA = 100.0
STEP = 80.0  # CONFIG: 64 prompt tokens, and 8 output tokens at twice the cost


class Desk:
    """A policy, its flows, and the calls of one plan. Flows are named after their teams; `prices` may be changed."""

    def __init__(self, **options: object) -> None:
        self.policy = Fair(**({"theta": THETA} | options))  # type: ignore[arg-type] # options of Fair
        self.tenancy = Tenancy()
        self.prices = Prices()
        self._demands: dict[PlainFlow, Demand] = {}
        self._num_arrivals = 0

    def flow(self, team: str, **fields: object) -> PlainFlow:
        return self.tenancy.flow(team, **fields)  # type: ignore[arg-type] # fields of Tenancy.flow

    def arrive(self, flow: PlainFlow, **fields: object) -> PlainSequence:
        seq = PlainSequence(self._num_arrivals, flow, **fields)  # type: ignore[arg-type] # fields of PlainSequence
        self._num_arrivals += 1
        self.policy.on_arrive(seq, NOW)
        return seq

    def begin(self, demands: abc.Mapping[PlainFlow, Demand] | None = None, now: int = 0) -> Terms:
        """A plan begins, from which on these flows have these demands."""
        changed = []
        for flow, demand in (demands or {}).items():
            flow.demand = demand
            changed.append(flow)
            self._demands[flow] = demand
        satisfied = [flow for flow, demand in self._demands.items() if demand is Demand.SATISFIED]
        return self.policy.begin(PlanStart(Nanos(now), CONFIG, self.prices, changed, satisfied))

    def serve(self, flow: PlainFlow, num_prefill_tokens: int, *, is_borrowed: bool = False) -> None:
        self.policy.charge(Service(flow, num_prefill_tokens, 0, 0, is_borrowed))

    def lead(self, flow: PlainFlow) -> float:
        return self.policy.standing(flow)[-1]

    def select(self, *passed: PlainSequence) -> int | None:
        seq = self.policy.select(passed)
        return None if seq is None else seq.arrival_index


def siblings(desk: Desk, *weights: float) -> list[PlainFlow]:
    """Teams of one organization, which all are backlogged."""
    flows = [desk.flow("abcdef"[i], organization="org", weight=weight) for i, weight in enumerate(weights)]
    desk.begin(dict.fromkeys(flows, Demand.BACKLOGGED))
    return flows
