"""What moves, as figures: who is denied something, the gap between tenants, how even it is. Pure, on reports."""

from collections import abc
from dataclasses import dataclass

from gateway.fair_shares import Path, Weights, fair_shares
from gateway.served import Served, Totals
from gateway.status import SystemReport, TenantStats


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of every tenant at every engine, at one moment of a clock that only goes forward; and who was
    denied something then."""

    taken_s: float
    by_engine: Totals
    denied: tuple[Path, ...] = ()


def counters_of(report: SystemReport, taken_s: float) -> Counters:
    """Those of the engines that answered."""
    return Counters(
        taken_s,
        {
            engine.address: {tenant.path: _counted(tenant) for tenant in engine.stats.tenants}
            for engine in report.engines
            if engine.stats is not None
        },
        tuple(dict.fromkeys(tenant.path for tenant in _tenants(report) if is_denied(tenant))),
    )


def jain_index(ratios: abc.Sequence[float]) -> float | None:
    """(sum x)^2 / (n sum x^2) of what each got over its share: 1 where all are alike, 1/n where one has all.

    None where nobody got anything. Source: Jain, Chiu and Hawe 1984.
    """
    squares = sum(ratio * ratio for ratio in ratios)
    return sum(ratios) ** 2 / (len(ratios) * squares) if squares > 0 else None


def is_denied(tenant: TenantStats) -> bool:
    """Whether some request of it could use more than it gets: only between such tenants is a difference unfair."""
    return any((tenant.num_waiting, tenant.num_paused, tenant.num_swapped, tenant.num_swapping))


def has_work(tenant: TenantStats) -> bool:
    """Whether any of its requests has not ended."""
    return bool(tenant.num_running) or is_denied(tenant)


def gap_of(report: SystemReport) -> float:
    """The largest lead of a tenant that has work over a sibling that has some, at any engine; 0 where there is none."""
    return max((tenant.lead for tenant in _tenants(report) if has_work(tenant)), default=0.0)


def bound_of(report: SystemReport) -> float | None:
    """What the gap may be at most: the largest of the engines' bounds; None if one of them has none."""
    bounds = [engine.stats.gap_bound for engine in report.engines if engine.stats is not None]
    known = [bound for bound in bounds if bound is not None]
    return max(known) if known and len(known) == len(bounds) else None


def denied_throughout(before: Counters, after: Counters) -> list[Path]:
    """The tenants that were denied something at both ends, as far as anybody looked. One that has just come was not: it
    cannot have been served as long as the others."""
    return list(filter(frozenset(before.denied).__contains__, after.denied))


def fairness_of(denied: abc.Sequence[Path], served: abc.Mapping[Path, Served], weights: Weights) -> float | None:
    """Jain's index of the work by fair share, over the tenants that were denied something; None below two of them."""
    if len(denied) <= 1:
        return None
    fair = fair_shares(denied, weights)
    return jain_index([served.get(path, Served()).work / fair[path] for path in denied])


def _tenants(report: SystemReport) -> abc.Iterator[TenantStats]:
    return (tenant for engine in report.engines if engine.stats is not None for tenant in engine.stats.tenants)


def _counted(tenant: TenantStats) -> Served:
    return Served(tenant.num_prefill_tokens, tenant.num_output_tokens, tenant.served_work)
