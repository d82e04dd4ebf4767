"""Tenants as the scheduler sees them: their path, how many sequences they have, and what they were served.

Knows no policy and no order. Of tenants without work only the latest are remembered, so that memory stays bounded.
"""

from collections import OrderedDict, abc
from dataclasses import dataclass, field

from engine.core.stats import TenantStats
from engine.core.types import PathNode, Request, SequenceStatus, TenantId

MAX_IDLE_TENANTS = 4096


@dataclass(slots=True, eq=False)
class Tenant:
    """One tenant. The path is that of the highest policy revision seen. Written by Tenants, Lifecycle and Scheduler."""

    id: TenantId
    path: tuple[PathNode, ...]
    policy_revision: int
    num_sequences: dict[SequenceStatus, int] = field(default_factory=lambda: dict.fromkeys(SequenceStatus, 0))
    num_prefill_tokens: int = 0
    num_output_tokens: int = 0
    num_recomputed_tokens: int = 0

    @property
    def is_idle(self) -> bool:
        return not any(self.num_sequences[status] for status in SequenceStatus if status is not SequenceStatus.FINISHED)

    def stats(self, standing: float) -> TenantStats:
        """What is told of this tenant."""
        return TenantStats(
            tenant_id=self.id,
            path=self.path,
            num_running=self.num_sequences[SequenceStatus.RUNNING],
            num_waiting=self.num_sequences[SequenceStatus.WAITING],
            num_paused=self.num_sequences[SequenceStatus.PAUSED],
            num_prefill_tokens=self.num_prefill_tokens,
            num_output_tokens=self.num_output_tokens,
            num_recomputed_tokens=self.num_recomputed_tokens,
            standing=standing,
        )


class Tenants:
    """Every tenant with an unfinished sequence, and the `MAX_IDLE_TENANTS` that became idle last."""

    def __init__(self) -> None:
        self._by_id: dict[TenantId, Tenant] = {}
        self._idle: OrderedDict[TenantId, None] = OrderedDict()  # in the order in which they became idle

    def join(self, request: Request) -> Tenant:
        """The tenant of `request`, which is about to have an unfinished sequence more."""
        tenant_id = request.tenant_id
        tenant = self._by_id.get(tenant_id)
        if tenant is None:
            tenant = self._by_id[tenant_id] = Tenant(tenant_id, request.path, request.policy_revision)
        elif request.policy_revision >= tenant.policy_revision:
            tenant.path, tenant.policy_revision = request.path, request.policy_revision
        self._idle.pop(tenant_id, None)
        return tenant

    def leave(self, tenant: Tenant) -> None:
        """A sequence of `tenant` has ended."""
        if tenant.is_idle:
            self._idle[tenant.id] = None
            if len(self._idle) > MAX_IDLE_TENANTS:
                oldest, _ = self._idle.popitem(last=False)
                del self._by_id[oldest]

    def stats(self, standing: abc.Mapping[TenantId, float]) -> tuple[TenantStats, ...]:
        """In order of tenant id."""
        return tuple(self._by_id[key].stats(standing.get(key, 0.0)) for key in sorted(self._by_id))
