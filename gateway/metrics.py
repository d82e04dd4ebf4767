"""What Prometheus is told: a report of the whole gateway as metric families, with a bounded number of tenants.

Tenants beyond MAX_TENANTS are one label, OTHER_TENANTS. Which tenants have a label of their own changes with their
service; so counters grow here by what was added since the last scrape, under the label that the tenant has now, and
none falls because the engine started again from zero. A tenant that lost its own label and gets it back begins anew,
which Prometheus reads as a reset. The engine's own counters are those that it tells.
"""

from collections import abc
from heapq import nlargest

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway import telemetry
from gateway.status import (
    EngineReport,
    EngineStats,
    LeaseReport,
    LedgerReport,
    Prices,
    QuotaReport,
    SystemReport,
    TenantStats,
)
from gateway.store.snapshot import TenancySnapshot
from gateway.telemetry import OTHER_TENANTS

MAX_TENANTS = 100

Path = tuple[str, ...]
Totals = tuple[float, ...]
"""A tenant's counters, in the order of `_totals`."""

# (metric, help, further labels): the counters of `_totals`, in its order.
TENANT_COUNTERS: tuple[tuple[str, str, abc.Mapping[str, str]], ...] = (
    (telemetry.METRIC_TENANT_TOKENS, "Tokens by kind; borrowed ones are among the others.", {"kind": "prefill"}),
    (telemetry.METRIC_TENANT_TOKENS, "", {"kind": "output"}),
    (telemetry.METRIC_TENANT_TOKENS, "", {"kind": "recomputed"}),
    (telemetry.METRIC_TENANT_TOKENS, "", {"kind": "borrowed"}),
    (telemetry.METRIC_TENANT_WORK, "Cost units: a prompt token is one, an output token two.", {}),
    (telemetry.METRIC_TENANT_WAIT, "Waits of its requests together, from arrival to the first step.", {}),
    (telemetry.METRIC_TENANT_PAUSES, "Times that one of its requests kept its blocks and got no tokens.", {}),
    (telemetry.METRIC_TENANT_SWAPS, "Times that one of its requests changed pools.", {"direction": "out"}),
    (telemetry.METRIC_TENANT_SWAPS, "", {"direction": "in"}),
    (telemetry.METRIC_TENANT_COPIED, "KV cache copied between the pools.", {}),
)


class Metrics:
    """Turns reports into metrics, and remembers what the last one said."""

    def __init__(self, max_tenants: int = MAX_TENANTS) -> None:
        self._max_tenants = max_tenants
        self._seen: dict[str, dict[Path, Totals]] = {}
        self._sums: dict[str, dict[str, Totals]] = {}

    def families(self, report: SystemReport, snapshot: TenancySnapshot) -> list[Metric]:
        """Everything, as of `report`. One thread at a time."""
        families = Families()
        families.gauge(telemetry.METRIC_LIVE_REQUESTS, "Generations in progress.", report.num_live_requests)
        families.gauge(telemetry.METRIC_POLICY_REVISION, "Policy revision in force here.", report.policy_revision)
        families.gauge(telemetry.METRIC_STORE_UP, "Whether Postgres answers.", report.is_store_reachable)
        families.gauge(telemetry.METRIC_UPTIME, "Time since the gateway began.", report.uptime_s)
        if report.ledger is not None:
            add_ledger(families, report.ledger)
        if report.quota is not None:
            add_quota(families, report.quota)
        if report.leases is not None:
            add_leases(families, report.leases)
        for engine in report.engines:
            self._add_engine(families, engine, snapshot)
        return families.all

    def _add_engine(self, families: "Families", engine: EngineReport, snapshot: TenancySnapshot) -> None:
        labels = {"engine": engine.address}
        families.gauge(telemetry.METRIC_ENGINE_UP, "Whether the engine answers.", engine.stats is not None, labels)
        if engine.stats is None:
            return
        add_engine(families, engine.stats, labels)
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
    name = snapshot.team_name(path)
    return "/".join(name.split("/")[1::2]) if name.startswith("organizations/") else name


def add_ledger(families: Families, report: LedgerReport) -> None:
    """Usage on its way to Postgres."""
    families.gauge(telemetry.METRIC_SPOOL_RECORDS, "Usage events that wait for Postgres.", report.num_records)
    families.gauge(telemetry.METRIC_SPOOL_BYTES, "Size of the spool's files.", report.num_bytes)
    families.gauge(telemetry.METRIC_SPOOL_OLDEST, "How long the oldest of them waits.", report.oldest_s)
    text = "Usage events that were in the ledger already when they were written."
    families.counter(telemetry.METRIC_LEDGER_DUPLICATES, text, report.num_duplicates, {})
    text = "Usage events that nothing could write: refused by Postgres, unreadable, or too old."
    families.counter(telemetry.METRIC_LEDGER_DROPPED, text, report.num_dropped, {})
    text = "What could not be read of the spool's files."
    families.counter(telemetry.METRIC_SPOOL_DAMAGED, text, report.num_damaged_bytes, {})


def add_quota(families: Families, quota: QuotaReport) -> None:
    """How often limits refused, or would have."""
    counters = (
        (telemetry.METRIC_QUOTA_DENIALS, "Limits that refused a request.", quota.denials),
        (telemetry.METRIC_QUOTA_SHADOW_DENIALS, "Limits in SHADOW that would have.", quota.shadow_denials),
    )
    for name, text, counts in counters:
        for (tenant, level, dimension), count in sorted(counts.items()):
            families.counter(name, text, count, {"tenant": tenant, "level": level, "dimension": dimension})


def add_leases(families: Families, report: LeaseReport) -> None:
    """The plumbing of quotas that several gateways share."""
    counters = (
        (telemetry.METRIC_LEASE_GRANTED, "Charged to shared limits, and held here.", report.granted),
        (telemetry.METRIC_LEASE_RETURNED, "Given back unspent.", report.returned),
        (telemetry.METRIC_LEASE_EXPIRED, "Not spent in time.", report.expired),
        (telemetry.METRIC_LEASE_MISSED, "Asked for while a request waited.", report.missed),
        (telemetry.METRIC_LEASE_OVERDRAWN, "Spent on an emergency share while Postgres was away.", report.overdrawn),
    )
    for name, text, count in counters:
        families.counter(name, text, count, {})
    families.gauge(telemetry.METRIC_LEASE_REFRESH, "The last turn at the shared limits.", report.refresh_s)


def add_engine(families: Families, stats: EngineStats, labels: abc.Mapping[str, str]) -> None:
    """What one engine says of itself."""
    policies = {"scheduling_policy": stats.scheduling_policy, "preemption_policy": stats.preemption_policy}
    families.gauge(telemetry.METRIC_ENGINE_POLICY, "1; the labels name the policies.", 1, {**labels, **policies})
    text = "Whether a policy was replaced by the order of arrival."
    families.gauge(telemetry.METRIC_ENGINE_POLICY_FAULT, text, bool(stats.policy_fault), labels)
    states = {
        "running": stats.num_running,
        "waiting": stats.num_waiting,
        "paused": stats.num_paused,
        "swapped": stats.num_swapped,
        "swapping": stats.num_swapping,
    }
    for state, number in states.items():
        families.gauge(telemetry.METRIC_ENGINE_REQUESTS, "Requests by state.", number, {**labels, "state": state})
    add_pools(families, stats, labels)
    families.gauge(telemetry.METRIC_ENGINE_STEP, "Mean of the last steps.", stats.mean_step_ms / 1e3, labels)
    families.counter(telemetry.METRIC_ENGINE_STEPS, "Steps.", stats.num_steps, labels)
    families.counter(telemetry.METRIC_ENGINE_PREEMPTIONS, "Requests that lost blocks.", stats.num_preemptions, labels)
    families.counter(telemetry.METRIC_ENGINE_SWAPS, "Requests that were swapped out.", stats.num_swaps, labels)
    families.counter(telemetry.METRIC_ENGINE_PAUSES, "Requests that were paused in place.", stats.num_pauses, labels)
    text = "Ended requests whose usage no ledger has acknowledged."
    families.gauge(telemetry.METRIC_ENGINE_USAGE_WAITING, text, stats.num_unacknowledged_usage, labels)
    text = "Ended requests whose usage was forgotten before a ledger had it."
    families.counter(telemetry.METRIC_ENGINE_USAGE_DROPPED, text, stats.num_dropped_usage, labels)
    for of, price_ns in _prices(stats.prices).items():
        text = "What a step and a copy take, by measurement."
        families.gauge(telemetry.METRIC_ENGINE_PRICE, text, price_ns / 1e9, {**labels, "of": of})


def add_pools(families: Families, stats: EngineStats, labels: abc.Mapping[str, str]) -> None:
    """Blocks of the device and of the host."""
    pools = {
        "device": (stats.num_device_blocks, stats.num_free_device_blocks),
        "host": (stats.num_host_blocks, stats.num_free_host_blocks),
    }
    for pool, (num_blocks, num_free) in pools.items():
        families.gauge(telemetry.METRIC_ENGINE_BLOCKS, "KV blocks.", num_blocks, {**labels, "pool": pool})
        families.gauge(telemetry.METRIC_ENGINE_FREE_BLOCKS, "Free KV blocks.", num_free, {**labels, "pool": pool})
    text = "Device blocks that a copy under way keeps from use."
    families.gauge(telemetry.METRIC_ENGINE_FENCED_BLOCKS, text, stats.num_fenced_device_blocks, labels)


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
        families.gauge(telemetry.METRIC_TENANT_REQUESTS, "Requests by state.", number, {**labels, "state": state})
    text = "Of the work that all tenants were served."
    families.gauge(telemetry.METRIC_TENANT_SHARE, text, sum(tenant.share for tenant in tenants), labels)
    text = "Of that work, what the weights give."
    families.gauge(telemetry.METRIC_TENANT_WEIGHT_SHARE, text, sum(tenant.weight_share for tenant in tenants), labels)
    text = "Cost units by weight ahead of the least served sibling that has work."
    families.gauge(telemetry.METRIC_TENANT_LEAD, text, max(tenant.lead for tenant in tenants), labels)
    num_blocks = sum(tenant.num_device_blocks for tenant in tenants)
    families.gauge(telemetry.METRIC_TENANT_BLOCKS, "KV blocks in the device pool.", num_blocks, labels)


def _prices(prices: Prices) -> dict[str, float]:
    return {
        "copy_out_block": prices.copy_out_block_ns,
        "copy_in_block": prices.copy_in_block_ns,
        "copy_launch": prices.copy_launch_ns,
        "step": prices.base_ns,
        "prefill_token": prices.prefill_token_ns,
        "prefill_key": prices.prefill_key_ns,
        "decode": prices.decode_ns,
        "decode_key": prices.decode_key_ns,
        "copied_block": prices.copied_block_ns,
    }


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
