"""What the metrics are told of quotas: refusals, reservations, and what is left of the limits that are in use."""

from gateway.leases import LeasedQuota
from gateway.quota_denials import QuotaCounts, level_of
from gateway.quota_terms import Limit
from gateway.status import QuotaReport

KEY_LEVEL = "key"
MAX_LIMITS = 2_000
"""That are looked at: each takes microseconds, on the event loop."""


def quota_report(counts: QuotaCounts, quota: LeasedQuota) -> QuotaReport:
    """As of now."""
    counted = counts.report()
    left: dict[tuple[str, str, str], float] = {}
    for limit, part in quota.parts_left(_is_shown, MAX_LIMITS):
        key = ("/".join(limit.node.split("/")[1::2]), level_of(limit.node), limit.dimension.lower())
        left[key] = min(part, left.get(key, 1.0))
    return QuotaReport(counted.denials, counted.shadow_denials, quota.num_reservations, left)


def _is_shown(limit: Limit) -> bool:
    """Keys are no labels, so their limits are in the refusals only."""
    return level_of(limit.node) != KEY_LEVEL
