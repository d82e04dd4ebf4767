"""Virtual token counter: the tenant that was served least comes first. Source: Sheng et al. 2024 (OSDI), Algorithm 2.

As published: a request's whole prompt is charged when it is selected, each output token when it is emitted, both over
the tenant's weight; nothing that runs is preempted for fairness. A tenant that begins to wait is *lifted* to the
smallest counter among the waiting tenants, or, if none waits, to that of the tenant that was the last to stop waiting:
so an idle tenant saves up nothing, and what it owed before it still owes.
"""

import json
import math
from collections import abc
from dataclasses import dataclass, field

from engine.core.policy import LeaveReason, SequenceView, Service
from engine.core.ranking import Ranking
from engine.core.types import Nanos, PathNode, TenantId

# The weights of the paper's evaluation, w_p and w_q.
PREFILL_COST = 1.0
OUTPUT_COST = 2.0


@dataclass(slots=True, eq=False)
class _Tenant:
    """A counter, the waiting sequences in order, and the arrival indexes of all that have not ended."""

    counter: float
    waiting: Ranking[SequenceView] = field(default_factory=Ranking)
    unfinished: set[int] = field(default_factory=set)


class Vtc:
    """Tenants by counter, arrivals within a tenant. A tenant's weight is the product of the weights on its path.

    prefill_cost  of a prompt token, >= 0
    output_cost   of an emitted token, >= 0

    Raises ValueError, naming the option, where a cost is negative or not finite.
    """

    def __init__(self, *, prefill_cost: float = PREFILL_COST, output_cost: float = OUTPUT_COST) -> None:
        for name, cost in (("prefill_cost", prefill_cost), ("output_cost", output_cost)):
            if not 0 <= cost < math.inf:
                raise ValueError(f"{name} must be finite and at least 0, not {cost}")
        self._prefill_cost = prefill_cost
        self._output_cost = output_cost
        self._tenants: dict[TenantId, _Tenant] = {}
        self._waiting: Ranking[TenantId] = Ranking()  # by counter and first sequence
        self._idle: Ranking[TenantId] = Ranking()
        self._last_left = _Tenant(0.0)

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        tenant = self._tenants.get(seq.tenant_id)
        if tenant is None:
            tenant = self._tenants[seq.tenant_id] = _Tenant(0.0)
        self._idle.discard(seq.tenant_id)
        if not tenant.waiting:
            tenant.counter = max(tenant.counter, self._floor())
        tenant.unfinished.add(seq.arrival_index)
        tenant.waiting.put(seq, (0.0 if seq.num_preemptions else 1.0, seq.arrival_index))
        self._rank(seq.tenant_id, tenant)

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        tenant = self._tenants[seq.tenant_id]
        if reason is LeaveReason.ADMITTED and not seq.num_preemptions:
            tenant.counter += self._prefill_cost * seq.num_prompt_tokens / _weight(seq.path)
        if seq in tenant.waiting:
            tenant.waiting.discard(seq)
            self._rank(seq.tenant_id, tenant)
        if reason is LeaveReason.FINISHED:
            tenant.unfinished.discard(seq.arrival_index)
            if not tenant.unfinished:
                self._idle.put(seq.tenant_id, (tenant.counter,))
        self._forget()

    def select(self, now: Nanos) -> SequenceView | None:
        tenant_id = self._least_served()
        return None if tenant_id is None else self._tenants[tenant_id].waiting.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (self._tenants[seq.tenant_id].counter, 0.0 if seq.num_preemptions else 1.0)

    def charge(self, service: Service) -> None:
        cost = self._output_cost * service.num_output_tokens
        self._tenants[service.tenant_id].counter += cost / _weight(service.path)

    def standing(self) -> abc.Mapping[TenantId, float]:
        return {tenant_id: tenant.counter for tenant_id, tenant in self._tenants.items()}

    def snapshot(self) -> bytes:
        return json.dumps({"vtc": self.standing(), "floor": self._floor()}, sort_keys=True).encode()

    def restore(self, snapshot: bytes) -> None:
        try:
            state = json.loads(snapshot)
            counters = {TenantId(str(tenant_id)): float(counter) for tenant_id, counter in state["vtc"].items()}
            floor = float(state["floor"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError("this is not a snapshot of vtc") from error
        if not all(map(math.isfinite, (floor, *counters.values()))):
            raise ValueError("a snapshot of vtc holds finite counters")
        self._last_left = _Tenant(floor)
        for tenant_id, counter in counters.items():
            self._tenants[tenant_id] = _Tenant(counter)
            self._idle.put(tenant_id, (counter,))

    def _least_served(self) -> TenantId | None:
        # Counters only rise, so an outdated rank is too low: it is put right when it comes first.
        while (tenant_id := self._waiting.first()) is not None:
            tenant = self._tenants[tenant_id]
            if self._waiting.rank_of(tenant_id)[0] == tenant.counter:
                return tenant_id
            self._rank(tenant_id, tenant)
        return None

    def _floor(self) -> float:
        """No tenant that waits is below it, and it never falls."""
        tenant_id = self._least_served()
        return (self._last_left if tenant_id is None else self._tenants[tenant_id]).counter

    def _rank(self, tenant_id: TenantId, tenant: _Tenant) -> None:
        """The tenant is where its counter and its first sequence put it, or has stopped waiting."""
        head = tenant.waiting.first()
        if head is None:
            self._waiting.discard(tenant_id)
            self._last_left = tenant
        else:
            self._waiting.put(tenant_id, (tenant.counter, *tenant.waiting.rank_of(head)))

    def _forget(self) -> None:
        """An idle tenant at or below the floor would be lifted if it came back, so its counter says nothing."""
        while (tenant_id := self._idle.first()) is not None and self._tenants[tenant_id].counter <= self._floor():
            self._idle.discard(tenant_id)
            del self._tenants[tenant_id]


def _weight(path: tuple[PathNode, ...]) -> float:
    weight = 1.0
    for node in path:
        weight *= node.weight
    return weight
