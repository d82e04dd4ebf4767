"""Virtual token counter: the tenant that was served least comes first. Source: Sheng et al. 2024 (OSDI), Algorithm 2.

As published: a request's whole prompt is charged when it is selected, each output token when it is emitted, both over
the tenant's weight; nothing that runs is preempted for fairness, and where the first request of the least-served
tenant does not fit, nobody passes it. A tenant that begins to wait is *lifted* to the smallest counter among the
waiting tenants, or, if none waits, to that of the tenant that was the last to stop waiting: so an idle tenant saves up
nothing, and what it owed before it still owes.

Bound (Theorem 4.4): of two tenants that wait throughout an interval one gets at most 2U more service per weight than
the other, U = max(prefill_cost · longest prompt, output_cost · tokens in the pool), over the smallest weight. It grows
with the pool. O(log tenants) per call; idle tenants at or below the floor are forgotten.
"""

import math
from collections import abc
from dataclasses import dataclass, field

from engine.core.arrival_order import has_run
from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.core.policy import Concession, FlowView, LeaveReason, PlanStart, SequenceView, Service, Terms
from engine.core.ranking import Ranking
from engine.core.types import Nanos, TenantId
from policies import snapshots
from policies.costs import weight_of
from policies.options import at_least
from policies.waiting import first_except


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
        at_least(0, prefill_cost=prefill_cost, output_cost=output_cost)
        self._prefill_cost = prefill_cost
        self._output_cost = output_cost
        self._tenants: dict[TenantId, _Tenant] = {}
        self._waiting: Ranking[TenantId] = Ranking()  # by counter and first sequence
        self._idle: Ranking[TenantId] = Ranking()
        self._last_left = _Tenant(0.0)
        self._carried_floor: float | None = None  # from `restore` to the next plan

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        tenant = self._tenants.get(seq.tenant_id)
        if tenant is None:
            tenant = self._tenants[seq.tenant_id] = _Tenant(0.0)
        self._idle.discard(seq.tenant_id)
        if not tenant.waiting:
            floor = self._floor() if self._carried_floor is None else self._carried_floor
            tenant.counter = max(tenant.counter, floor)
        tenant.unfinished.add(seq.arrival_index)
        tenant.waiting.put(seq, (_is_new(seq), seq.arrival_index))
        self._rank(seq.tenant_id, tenant)

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        tenant = self._tenants.get(seq.tenant_id)
        if tenant is None:
            return  # it ran before this policy took over
        if reason is LeaveReason.ADMITTED and not has_run(seq):
            num_uncached = seq.num_prompt_tokens - seq.num_cached_prompt_tokens
            tenant.counter += self._prefill_cost * num_uncached / weight_of(seq.flow)
        if seq in tenant.waiting:
            tenant.waiting.discard(seq)
            self._rank(seq.tenant_id, tenant)
        if reason is LeaveReason.FINISHED:
            tenant.unfinished.discard(seq.arrival_index)
            if not tenant.unfinished:
                self._idle.put(seq.tenant_id, (tenant.counter,))
        self._forget()

    def begin(self, start: PlanStart) -> Terms:
        self._carried_floor = None
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        tenant_id = None if passed else self._least_served()
        return None if tenant_id is None else self._tenants[tenant_id].waiting.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        return (*self.standing(seq.flow), _is_new(seq))

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        return Concession.NOTHING

    def charge(self, service: Service) -> None:
        tenant_id = service.flow.tenant_id
        tenant = self._tenants.get(tenant_id)
        if tenant is None:  # it ran before this policy took over
            tenant = self._tenants[tenant_id] = _Tenant(self._floor())
        tenant.counter += self._output_cost * service.num_output_tokens / weight_of(service.flow)
        if not tenant.unfinished:
            self._idle.put(tenant_id, (tenant.counter,))

    def leap(self, services: abc.Sequence[Service], times: abc.Sequence[Nanos]) -> int:
        """Optional, for the simulator: see LeapingPolicy. Until the head's tenant may have passed the next one."""
        limit = self._limit_of_head()
        for num_taken in range(len(times)):
            if limit is not None and self._passes(services, *limit):
                return num_taken
            for service in services:
                self.charge(service)
        return len(times)

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        tenant = self._tenants.get(flow.tenant_id)
        return (self._floor() if tenant is None else tenant.counter,)

    def snapshot(self) -> bytes:
        counters = {tenant_id: tenant.counter for tenant_id, tenant in self._tenants.items()}
        return snapshots.dump("vtc", counters=counters, floor=self._floor())

    def restore(self, snapshot: bytes) -> None:
        """Any counting policy's counters will do: only their differences matter here.

        Who arrives before the next plan waited under the old policy already, and is not lifted among the others.
        """
        counters, state = snapshots.load_counters("vtc", snapshot)
        self._carried_floor = snapshots.finite("vtc", state.get("floor", min(counters.values(), default=0.0)))
        self._last_left = _Tenant(self._carried_floor)
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

    def _limit_of_head(self) -> tuple[TenantId, float] | None:
        """The tenant that comes first, and the least that the counters of the others may be; None if nobody waits."""
        first = self._least_served()
        if first is None:
            return None
        second = first_except(self._waiting, {first})
        # Counters only rise, so an outdated rank is too low, and stops a leap too early at worst.
        return first, math.inf if second is None else self._waiting.rank_of(second)[0]

    def _passes(self, services: abc.Iterable[Service], first: TenantId, limit: float) -> bool:
        """True if `services` may bring the tenant that comes first up to `limit`."""
        served = [each for each in services if each.flow.tenant_id == first]
        cost = math.fsum(self._output_cost * each.num_output_tokens / weight_of(each.flow) for each in served)
        return bool(served) and self._tenants[first].counter + cost >= limit

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


def _is_new(seq: SequenceView) -> float:
    return 0.0 if has_run(seq) else 1.0
