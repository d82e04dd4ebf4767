"""Who got how much: work, share, what the weights give, and lead, from the scheduler's statistics. Pure arithmetic.

Work is counted in the cost units that the policies charge by default, so that shares can be compared across policies.
"""

from collections import abc
from dataclasses import dataclass

from engine.core.costs import OUTPUT_COST, PREFILL_COST
from engine.core.stats import TenantStats
from engine.core.types import TenantId

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Share:
    """One tenant among all that the engine knows.

    served_work  cost units since the engine began; work done again is not counted
    share        part of everybody's `served_work`, 0 to 1
    lead         how far its counter is ahead of the least served sibling that has work, on the level where it is
                 furthest; 0 where the policy does not count or nobody else has work
    """

    served_work: float
    share: float
    lead: float


def shares(tenants: abc.Sequence[TenantStats]) -> list[Share]:
    """One for each of `tenants`, in their order. O(tenants)."""
    works, floors = list(map(work_of, tenants)), _floors(tenants)
    total = sum(works)
    return [
        Share(work, work / total if total else 0.0, _lead(tenant, floors))
        for tenant, work in zip(tenants, works, strict=True)
    ]


def weight_shares(tenants: abc.Sequence[TenantStats]) -> dict[TenantId, float]:
    """What the weights give each of `tenants`, level by level, where they alone share; 1 together."""
    weights = _weights_below(tenants)
    return {tenant.tenant_id: _weight_share(tenant, weights) for tenant in tenants}


def work_of(tenant: TenantStats) -> float:
    """What it was served since it was first seen, in cost units."""
    return PREFILL_COST * tenant.num_prefill_tokens + OUTPUT_COST * tenant.num_output_tokens


def has_work(tenant: TenantStats) -> bool:
    """Whether any of its requests has not ended."""
    nums = tenant.num_running, tenant.num_waiting, tenant.num_paused, tenant.num_swapped, tenant.num_swapping
    return any(nums)


def is_denied(tenant: TenantStats) -> bool:
    """Whether some request of it could use more than it gets: only between such tenants is a difference unfair."""
    return any((tenant.num_waiting, tenant.num_paused, tenant.num_swapped, tenant.num_swapping))


def _ids(tenant: TenantStats) -> Path:
    return tuple(node.id for node in tenant.path)


def _weights_below(tenants: abc.Iterable[TenantStats]) -> dict[Path, float]:
    """The weights of all children of each inner node together."""
    weight_by_node = {
        _ids(tenant)[: level + 1]: node.weight for tenant in tenants for level, node in enumerate(tenant.path)
    }
    below: dict[Path, float] = {}
    for path, weight in weight_by_node.items():
        below[path[:-1]] = below.get(path[:-1], 0.0) + weight
    return below


def _weight_share(tenant: TenantStats, weights_below: abc.Mapping[Path, float]) -> float:
    share, ids = 1.0, _ids(tenant)
    for level, node in enumerate(tenant.path):
        share *= node.weight / weights_below[ids[:level]]
    return share


def _lifted(tenant: TenantStats) -> tuple[float, ...]:
    """Its counters. Who comes back stands where the next plan lifts it to, which is 0, not where it left."""
    return tuple(max(0.0, standing) for standing in tenant.standing)


def _floors(tenants: abc.Iterable[TenantStats]) -> dict[Path, float]:
    """The smallest counter among the children of each inner node that have work."""
    floors: dict[Path, float] = {}
    for tenant in filter(has_work, tenants):
        ids = _ids(tenant)
        for level, standing in enumerate(_lifted(tenant)):
            floors[ids[:level]] = min(standing, floors.get(ids[:level], standing))
    return floors


def _lead(tenant: TenantStats, floors: abc.Mapping[Path, float]) -> float:
    ids = _ids(tenant)
    levels = enumerate(_lifted(tenant))
    leads = [standing - floors[ids[:level]] for level, standing in levels if ids[:level] in floors]
    return max(0.0, *leads) if leads else 0.0
