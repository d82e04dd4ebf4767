"""What Prometheus is told: what was measured, and a report of the gateway, with a bounded number of tenants.

Tenants beyond MAX_TENANTS are one label, OTHER_TENANTS. Which tenants have a label of their own changes with their
service; so counters grow here by what was added since the last scrape, under the label that the tenant has now, and
none falls because the engine started again from zero. A tenant that lost its own label and gets it back begins anew,
which Prometheus reads as a reset. Of an engine there is only what it says of tenants, which have names here alone: all
else is on its own page, so that several gateways before one engine do not count it twice.
"""

from collections import abc
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway import metric_names as names
from gateway.meters import Meters
from gateway.metric_names import OTHER_TENANTS
from gateway.status import (
    EngineReport,
    LeaseReport,
    LedgerReport,
    PoolReport,
    QuotaReport,
    SystemReport,
    TenantStats,
)
from gateway.store.snapshot import TenancySnapshot
from gateway.tenant_labels import MAX_TENANTS
from gateway.words import short_name

Path = tuple[str, ...]
Totals = tuple[float, ...]
"""A tenant's counters, in the order of `_totals`."""

# (metric, help, further labels): the counters of `_totals`, in its order.
TENANT_COUNTERS: tuple[tuple[str, str, abc.Mapping[str, str]], ...] = (
    (names.METRIC_TENANT_TOKENS, "Tokens by kind; borrowed ones are among the others.", {"kind": "prefill"}),
    (names.METRIC_TENANT_TOKENS, "", {"kind": "output"}),
    (names.METRIC_TENANT_TOKENS, "", {"kind": "recomputed"}),
    (names.METRIC_TENANT_TOKENS, "", {"kind": "borrowed"}),
    (names.METRIC_TENANT_WORK, "Cost units: a prompt token is one, an output token two.", {}),
    (names.METRIC_TENANT_WAIT, "Waits of its requests together, from arrival to the first step.", {}),
    (names.METRIC_TENANT_PAUSES, "Times that one of its requests kept its blocks and got no tokens.", {}),
    (names.METRIC_TENANT_SWAPS, "Times that one of its requests changed pools.", {"direction": "out"}),
    (names.METRIC_TENANT_SWAPS, "", {"direction": "in"}),
    (names.METRIC_TENANT_COPIED, "KV cache copied between the pools.", {}),
)


class Metrics:
    """Turns reports into metrics, and remembers what the last one said. `meters` is what was measured meanwhile."""

    def __init__(self, meters: Meters | None = None, max_tenants: int = MAX_TENANTS) -> None:
        self._meters = meters or Meters(max_tenants)
        self._max_tenants = max_tenants
        self._seen: dict[str, dict[Path, Totals]] = {}
        self._sums: dict[str, dict[str, Totals]] = {}

    def families(self, report: SystemReport, snapshot: TenancySnapshot) -> list[Metric]:
        """Everything, as of `report`. One thread at a time."""
        families = Families()
        families.gauge(names.METRIC_LIVE_REQUESTS, "Generations in progress.", report.num_live_requests)
        families.gauge(names.METRIC_POLICY_REVISION, "Policy revision in force here.", report.policy_revision)
        families.gauge(names.METRIC_STORE_UP, "Whether Postgres answers.", report.is_store_reachable)
        families.gauge(names.METRIC_UPTIME, "Time since the gateway began.", report.uptime_s)
        text = "Time since the tenancy here was known to be the newest; +Inf before it was read."
        families.gauge(names.METRIC_POLICY_STALENESS, text, report.staleness_s)
        text = "Spans that no collector has got, and none will."
        families.counter(names.METRIC_DROPPED_SPANS, text, report.num_dropped_spans, {})
        if report.pool is not None:
            add_pool(families, report.pool)
        if report.ledger is not None:
            add_ledger(families, report.ledger)
        if report.quota is not None:
            add_quota(families, report.quota)
            self._add_quota_left(families, report.quota)
        if report.leases is not None:
            add_leases(families, report.leases)
        for engine in report.engines:
            self._add_engine(families, engine, snapshot)
        return [*self._meters.families(), *families.all]

    def _add_quota_left(self, families: "Families", quota: QuotaReport) -> None:
        """The least that is left of any limit of a tenant or its organization; that of all others is one."""
        tenants = set(self._meters.tenants)
        named = tenants | {tenant.partition("/")[0] for tenant in tenants}
        least: dict[tuple[str, str, str], float] = {}
        for (node, level, dimension), ratio in quota.left.items():
            key = (node if node in named else OTHER_TENANTS, level, dimension)
            least[key] = min(ratio, least.get(key, 1.0))
        text = "What is left of a limit's burst, slots or budget, as known here; of several limits the least."
        for (tenant, level, dimension), ratio in sorted(least.items()):
            labels = {"tenant": tenant, "level": level, "dimension": dimension}
            families.gauge(names.METRIC_QUOTA_REMAINING, text, ratio, labels)

    def _add_engine(self, families: "Families", engine: EngineReport, snapshot: TenancySnapshot) -> None:
        labels = {"engine": engine.address}
        families.gauge(names.METRIC_ENGINE_UP, "Whether the engine answers.", engine.stats is not None, labels)
        if engine.stats is None:
            return
        groups = self._groups(engine.stats.tenants, snapshot)
        self._count(engine.address, groups)
        for tenant, sums in self._sums[engine.address].items():
            for (name, text, further), value in zip(TENANT_COUNTERS, sums, strict=True):
                families.counter(name, text, value, {**labels, "tenant": tenant, **further})
        for tenant, members in groups.items():
            add_tenant(families, members, {**labels, "tenant": tenant})

    def _groups(
        self, tenants: abc.Sequence[TenantStats], snapshot: TenancySnapshot
    ) -> dict[str, abc.Sequence[TenantStats]]:
        """Tenants by label: those that were served most alone, all others together."""
        largest = nlargest(self._max_tenants, tenants, key=lambda tenant: tenant.served_work)
        groups: dict[str, abc.Sequence[TenantStats]] = {label(tenant.path, snapshot): (tenant,) for tenant in largest}
        if len(tenants) > len(largest):
            alone = {tenant.path for tenant in largest}
            groups[OTHER_TENANTS] = [tenant for tenant in tenants if tenant.path not in alone]
        return groups

    def _count(self, address: str, groups: abc.Mapping[str, abc.Sequence[TenantStats]]) -> None:
        seen, sums = self._seen.get(address, {}), self._sums.get(address, {})
        zero = (0.0,) * len(TENANT_COUNTERS)
        # The sum of the others stays while there are none; of tenants, only those that have a label now.
        new_sums = {OTHER_TENANTS: sums[OTHER_TENANTS]} if OTHER_TENANTS in sums else {}
        new_seen: dict[Path, Totals] = {}
        for name, members in groups.items():
            total = sums.get(name, zero)
            for tenant in members:
                new_seen[tenant.path] = now = _totals(tenant)
                total = tuple(map(sum, zip(total, _added(seen.get(tenant.path, zero), now), strict=True)))
            new_sums[name] = total
        self._seen[address], self._sums[address] = new_seen, new_sums


class Families:
    """Metric families under construction, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, Metric] = {}

    @property
    def all(self) -> list[Metric]:
        return list(self._by_name.values())

    def gauge(self, name: str, text: str, value: float, labels: abc.Mapping[str, str] | None = None) -> None:
        """The gauge has one more sample. All samples of a name have the same labels."""
        if name not in self._by_name:
            self._by_name[name] = GaugeMetricFamily(name, text)
        self._by_name[name].add_sample(name, dict(labels or {}), float(value))

    def counter(self, name: str, text: str, value: float, labels: abc.Mapping[str, str]) -> None:
        """The counter has one more sample."""
        if name not in self._by_name:
            self._by_name[name] = CounterMetricFamily(name, text)
        self._by_name[name].add_sample(f"{name}_total", dict(labels), float(value))


def label(path: Path, snapshot: TenancySnapshot) -> str:
    """`acme/search`; ids where the team is not known here."""
    return short_name(snapshot.team_name(path))


def add_ledger(families: Families, report: LedgerReport) -> None:
    """Usage on its way to Postgres."""
    families.gauge(names.METRIC_SPOOL_RECORDS, "Usage events that wait for Postgres.", report.num_records)
    families.gauge(names.METRIC_SPOOL_BYTES, "Size of the spool's files.", report.num_bytes)
    families.gauge(names.METRIC_SPOOL_OLDEST, "How long the oldest of them waits.", report.oldest_s)
    text = "Usage events that were in the ledger already when they were written."
    families.counter(names.METRIC_LEDGER_DUPLICATES, text, report.num_duplicates, {})
    text = "Usage events that nothing could write: refused by Postgres, unreadable, or too old."
    families.counter(names.METRIC_LEDGER_DROPPED, text, report.num_dropped, {})
    text = "What could not be read of the spool's files."
    families.counter(names.METRIC_SPOOL_DAMAGED, text, report.num_damaged_bytes, {})


def add_pool(families: Families, pool: PoolReport) -> None:
    """Connections to Postgres."""
    for state, number in {"in_use": pool.num_in_use, "idle": pool.num_idle}.items():
        families.gauge(names.METRIC_DB_POOL, "Connections of the pool.", number, {"state": state})
    families.gauge(names.METRIC_DB_POOL_SIZE, "Connections that the pool may have.", pool.max_connections)


def add_quota(families: Families, quota: QuotaReport) -> None:
    """How often limits refused, or would have."""
    counters = (
        (names.METRIC_QUOTA_DENIALS, "Limits that refused a request.", quota.denials),
        (names.METRIC_QUOTA_SHADOW_DENIALS, "Limits in SHADOW that would have.", quota.shadow_denials),
    )
    text = "Requests that hold quota."
    families.gauge(names.METRIC_QUOTA_RESERVATIONS, text, quota.num_reservations)
    for name, text, counts in counters:
        for (tenant, level, dimension), count in sorted(counts.items()):
            families.counter(name, text, count, {"tenant": tenant, "level": level, "dimension": dimension})


def add_leases(families: Families, report: LeaseReport) -> None:
    """The plumbing of quotas that several gateways share."""
    counters = (
        (names.METRIC_LEASE_GRANTED, "Charged to shared limits, and held here.", report.granted),
        (names.METRIC_LEASE_RETURNED, "Given back unspent.", report.returned),
        (names.METRIC_LEASE_EXPIRED, "Not spent in time.", report.expired),
        (names.METRIC_LEASE_MISSED, "Asked for while a request waited.", report.missed),
        (names.METRIC_LEASE_OVERDRAWN, "Spent on an emergency share while Postgres was away.", report.overdrawn),
    )
    for name, text, count in counters:
        families.counter(name, text, count, {})
    families.gauge(names.METRIC_LEASE_REFRESH, "The last turn at the shared limits.", report.refresh_s)


def add_tenant(families: Families, tenants: abc.Sequence[TenantStats], labels: abc.Mapping[str, str]) -> None:
    """What tenants that share a label have now: sums, and the largest lead."""
    states = {
        "running": sum(tenant.num_running for tenant in tenants),
        "waiting": sum(tenant.num_waiting for tenant in tenants),
        "paused": sum(tenant.num_paused for tenant in tenants),
        "swapped": sum(tenant.num_swapped for tenant in tenants),
        "swapping": sum(tenant.num_swapping for tenant in tenants),
    }
    for state, number in states.items():
        families.gauge(names.METRIC_TENANT_REQUESTS, "Requests by state.", number, {**labels, "state": state})
    text = "Of the work that all tenants were served."
    families.gauge(names.METRIC_TENANT_SHARE, text, sum(tenant.share for tenant in tenants), labels)
    text = "What the weights give among tenants that have work or were served in the last five minutes."
    families.gauge(names.METRIC_TENANT_WEIGHT_SHARE, text, sum(tenant.weight_share for tenant in tenants), labels)
    text = "Cost units by weight ahead of the least served sibling that has work."
    families.gauge(names.METRIC_TENANT_LEAD, text, max(tenant.lead for tenant in tenants), labels)
    num_blocks = sum(tenant.num_device_blocks for tenant in tenants)
    families.gauge(names.METRIC_TENANT_BLOCKS, "KV blocks in the device pool.", num_blocks, labels)


def _totals(tenant: TenantStats) -> Totals:
    return (
        tenant.num_prefill_tokens,
        tenant.num_output_tokens,
        tenant.num_recomputed_tokens,
        tenant.num_borrowed_tokens,
        tenant.served_work,
        tenant.wait_s,
        tenant.num_pauses,
        tenant.num_swaps_out,
        tenant.num_swaps_in,
        tenant.copied_bytes,
    )


def _added(before: Totals, now: Totals) -> Totals:
    """What was counted between the two; all of `now` where the counting began anew."""
    if any(later < earlier for earlier, later in zip(before, now, strict=True)):
        return now
    return tuple(later - earlier for earlier, later in zip(before, now, strict=True))
