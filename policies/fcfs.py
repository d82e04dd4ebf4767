"""First come, first served. Preempted requests re-enter ahead of those that never ran. Knows no tenants.

No bound on anyone's share: one tenant's burst delays all, and a head that does not fit leaves memory idle, for nobody
passes it. O(log n) per call.
"""

from engine.core.arrival_order import ArrivalOrder


class Fcfs(ArrivalOrder):
    """Order of arrival, whoever asks. The core has it already, to fall back on."""
