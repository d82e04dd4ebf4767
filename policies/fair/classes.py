"""The order of the classes in a plan (rule R9): by rank, but a class that is short of its share, or has been denied for
too long, comes first for that plan. Priority chooses between trees only; inside a tree nobody overtakes by age.
"""

from dataclasses import dataclass, field

from engine.core.policy import FlowView
from engine.core.types import NANOS_PER_MS, Nanos, PriorityClass
from policies.kept_share import KeptShare

WINDOW = 16_384.0  # cost units that a class may be behind or ahead of its kept share


@dataclass(slots=True)
class Standing:
    """A class with work. `denied_since` is when it was last served, or began to want something."""

    definition: PriorityClass
    kept: KeptShare = field(default_factory=lambda: KeptShare(WINDOW))
    denied_since: Nanos | None = None


class ClassOrder:
    """ageing_ms  that a backlogged class may go without service before one plan serves it first; 0 is for ever."""

    def __init__(self, ageing_ms: float) -> None:
        self._ageing_ns = ageing_ms * NANOS_PER_MS
        self._by_name: dict[str, Standing] = {}
        self._promoted: frozenset[str] = frozenset()
        self._wanting: frozenset[str] = frozenset()

    def learn(self, flow: FlowView) -> None:
        """The class of `flow` as it is defined now."""
        definition = flow.priority_class
        standing = self._by_name.get(definition.name)
        if standing is None:
            self._by_name[definition.name] = Standing(definition)
        else:
            standing.definition = definition

    def charge(self, flow: FlowView, cost: float, now: Nanos) -> None:
        """The class of `flow` was served `cost` in the plan that began `now`."""
        self.learn(flow)
        for name in self._wanting:
            standing = self._by_name[name]
            standing.kept.accrue(standing.definition, cost)
        served = self._by_name[flow.priority_class.name]
        served.kept.spend(cost)
        served.denied_since = now

    def order(self, backlogged: dict[str, bool], now: Nanos) -> tuple[str, ...]:
        """The classes in `backlogged`, each with whether it is, in the order in which they are served."""
        if self._wanting != backlogged.keys():
            for name in self._wanting.difference(backlogged):
                self._by_name[name].kept.forget_credit()
            self._wanting = frozenset(backlogged)
        promoted = set()
        for name, is_backlogged in backlogged.items():
            standing = self._by_name[name]
            if not is_backlogged or standing.denied_since is None:
                standing.denied_since = now
            is_old = self._ageing_ns > 0 and now - standing.denied_since >= self._ageing_ns
            if is_backlogged and (is_old or standing.kept.is_short(standing.definition)):
                promoted.add(name)
        self._promoted = frozenset(promoted)

        def place(name: str) -> tuple[bool, int, str]:
            return name not in promoted, self._by_name[name].definition.rank, name

        return tuple(sorted(backlogged, key=place))

    def is_promoted(self, name: str) -> bool:
        """True if the class is served before its rank's turn in this plan."""
        return name in self._promoted
