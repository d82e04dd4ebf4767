"""Deficit round robin: each tenant spends a quantum per round, in turn. Source: Shreedhar and Varghese 1995; with
deficits below 0, because a request's cost is known only when it has ended: Cao et al. 2025 (DLPM, arXiv 2501.14312).

A tenant with a deficit above 0 may be admitted. A prompt, less what is cached, is charged at admission, an output token
when it is emitted, both over the weight. When nobody that waits has a deficit above 0 a new round begins: who has none
left gets a quantum. A tenant's *ready round* is the first in which its deficit is above 0, in closed form, so that the
next tenant is found without playing the rounds, however long a prompt is beside the quantum. An idle tenant keeps no
deficit above 0, and what it owes is forgiven at a quantum per round, as if it waited.

Bound: two tenants that wait throughout an interval differ by at most 2(U + quantum) in service per weight, U as for
`vtc`; as the quantum goes to 0 this is `vtc`. A tenant that comes waits for what is left of the round and a quantum of
each other. A head that does not fit is passed by other tenants' heads only. O(log tenants) per call; idle tenants
without debt are forgotten.
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

DEFAULT_QUANTUM = 512.0  # a twentieth of a pool of 10,000 tokens, as in the artifact of Sheng et al. 2024


@dataclass(slots=True, eq=False)
class _Tenant:
    """`deficit` is per weight and was true in `round`; `ready` is the round in which it is above 0; `turn` breaks ties
    between tenants that are ready in the same round."""

    turn: int
    deficit: float
    round: int
    ready: int
    waiting: Ranking[SequenceView] = field(default_factory=Ranking)
    unfinished: set[int] = field(default_factory=set)


class Drr:
    """Tenants in turn, arrivals within a tenant; a tenant is one flow whatever the classes of its requests.

    quantum       cost units that a tenant of weight 1 may spend per round, >= 1
    prefill_cost  of a prompt token, >= 0
    output_cost   of an emitted token, >= 0

    Raises ValueError, naming the option, where a value is out of range.
    """

    def __init__(
        self,
        *,
        quantum: float = DEFAULT_QUANTUM,
        prefill_cost: float = PREFILL_COST,
        output_cost: float = OUTPUT_COST,
    ) -> None:
        at_least(1, quantum=quantum)
        at_least(0, prefill_cost=prefill_cost, output_cost=output_cost)
        self._quantum = quantum
        self._prefill_cost = prefill_cost
        self._output_cost = output_cost
        self._round = 0
        self._num_turns = 0
        self._tenants: dict[TenantId, _Tenant] = {}
        self._waiting: Ranking[TenantId] = Ranking()  # by ready round and turn
        self._idle: Ranking[TenantId] = Ranking()  # by the round in which nothing is owed any more

    def on_arrive(self, seq: SequenceView, now: Nanos) -> None:
        tenant = self._tenants.get(seq.tenant_id)
        if tenant is None:
            tenant = self._tenants[seq.tenant_id] = _Tenant(0, 0.0, self._round, self._round)
        if not tenant.unfinished:
            self._activate(seq.tenant_id, tenant)
        tenant.unfinished.add(seq.arrival_index)
        tenant.waiting.put(seq, (_is_new(seq), seq.arrival_index))
        self._waiting.put(seq.tenant_id, (tenant.ready, tenant.turn))

    def on_leave(self, seq: SequenceView, reason: LeaveReason, now: Nanos) -> None:
        tenant = self._tenants.get(seq.tenant_id)
        if tenant is None:
            return  # it ran before this policy took over
        if seq in tenant.waiting:
            tenant.waiting.discard(seq)
            if not tenant.waiting:
                self._waiting.discard(seq.tenant_id)
        if reason is LeaveReason.ADMITTED:
            self._round = max(self._round, tenant.ready)
            if not has_run(seq):
                num_uncached = seq.num_prompt_tokens - seq.num_cached_prompt_tokens
                self._spend(seq.tenant_id, tenant, self._prefill_cost * num_uncached / weight_of(seq.flow))
        elif reason is LeaveReason.FINISHED:
            tenant.unfinished.discard(seq.arrival_index)
            if not tenant.unfinished:
                self._deactivate(seq.tenant_id, tenant)
        self._forget()

    def begin(self, start: PlanStart) -> Terms:
        return Terms()

    def select(self, passed: abc.Collection[SequenceView]) -> SequenceView | None:
        tenant_id = first_except(self._waiting, {seq.tenant_id for seq in passed})
        return None if tenant_id is None else self._tenants[tenant_id].waiting.first()

    def key(self, seq: SequenceView) -> tuple[float, ...]:
        tenant = self._tenants.get(seq.tenant_id)
        turn = (self._round, 0) if tenant is None else (tenant.ready, tenant.turn)
        return (*turn, _is_new(seq))

    def concede(self, victim: SequenceView, claimant: SequenceView) -> Concession:
        return Concession.NOTHING

    def charge(self, service: Service) -> None:
        tenant_id = service.flow.tenant_id
        tenant = self._tenants.get(tenant_id)
        if tenant is None:  # it ran before this policy took over
            tenant = self._tenants[tenant_id] = _Tenant(0, 0.0, self._round, self._round)
        self._spend(tenant_id, tenant, self._output_cost * service.num_output_tokens / weight_of(service.flow))

    def standing(self, flow: FlowView) -> tuple[float, ...]:
        tenant = self._tenants.get(flow.tenant_id)
        return (0.0 if tenant is None else -self._deficit_now(tenant),)

    def snapshot(self) -> bytes:
        counters = {tenant_id: -self._deficit_now(tenant) for tenant_id, tenant in self._tenants.items()}
        return snapshots.dump("drr", counters=counters)

    def restore(self, snapshot: bytes) -> None:
        """Any counting policy's counters will do: whoever was served least owes nothing, the others the difference."""
        counters, state = snapshots.load_counters("drr", snapshot)
        least = 0.0 if state.get("policy") == "drr" else min(counters.values(), default=0.0)
        for tenant_id, counter in counters.items():
            tenant = self._tenants[tenant_id] = _Tenant(0, min(0.0, least - counter), self._round, self._round)
            self._deactivate(tenant_id, tenant)
        self._forget()

    def _activate(self, tenant_id: TenantId, tenant: _Tenant) -> None:
        """The tenant joins the round at its end, with what it still owes."""
        self._idle.discard(tenant_id)
        tenant.deficit = self._deficit_now(tenant)
        tenant.round = self._round
        tenant.ready = self._ready_round(tenant)
        self._num_turns += 1
        tenant.turn = self._num_turns

    def _deactivate(self, tenant_id: TenantId, tenant: _Tenant) -> None:
        tenant.deficit = min(0.0, self._deficit_now(tenant))
        tenant.round = self._round
        self._idle.put(tenant_id, (self._round + math.ceil(-tenant.deficit / self._quantum),))

    def _spend(self, tenant_id: TenantId, tenant: _Tenant, cost: float) -> None:
        tenant.deficit = self._deficit_now(tenant) - cost
        tenant.round = self._round
        if tenant.deficit <= 0:
            tenant.ready = self._ready_round(tenant)
        if tenant.waiting:
            self._waiting.put(tenant_id, (tenant.ready, tenant.turn))
        if not tenant.unfinished:
            self._deactivate(tenant_id, tenant)

    def _deficit_now(self, tenant: _Tenant) -> float:
        """Its deficit in the current round: who had none left got a quantum in each round until it had."""
        num_rounds = self._round - tenant.round
        if not tenant.unfinished:
            return min(0.0, tenant.deficit + num_rounds * self._quantum)
        num_refills = min(num_rounds, self._ready_round(tenant) - tenant.round)
        return tenant.deficit + num_refills * self._quantum

    def _ready_round(self, tenant: _Tenant) -> int:
        if tenant.deficit > 0:
            return tenant.round
        return tenant.round + math.floor(-tenant.deficit / self._quantum) + 1

    def _forget(self) -> None:
        while (tenant_id := self._idle.first()) is not None and self._idle.rank_of(tenant_id)[0] <= self._round:
            self._idle.discard(tenant_id)
            del self._tenants[tenant_id]


def _is_new(seq: SequenceView) -> float:
    return 0.0 if has_run(seq) else 1.0
