"""What every policy must do, a stranger's included, as one suite: `check_policy(name)` runs it on an installed policy.

    book, views   a policy called as the scheduler calls it, beside a plain list of who waits
    queue_order   who is next
    leaping       several steps at once
    life_cycle    every state, takeover, snapshots, memory
    victims       who gives way
    traffic       the real scheduler in tiny pools, on a runner that notices every corrupted block

Seeded and pure: it reads no clock, and its report is the same each time.
"""

from engine.sim.conformance.report import Check, ConformanceError, Report
from engine.sim.conformance.suite import check_policy, check_preemption_policy, check_scheduling_policy

__all__ = [
    "Check",
    "ConformanceError",
    "Report",
    "check_policy",
    "check_preemption_policy",
    "check_scheduling_policy",
]
