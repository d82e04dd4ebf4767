"""How fast a limit is used here, as an exponentially weighted rate. Sizes leases; decides nothing."""

import math

from gateway.leases.terms import DEMAND_DECAY_NS, LEASE_HEADROOM, LEASE_NS


class Demand:
    """Amounts over time. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._level = 0.0  # what would be left of all amounts, each decaying since its time
        self._seen_ns = 0
        self._last_amount = 0

    def add(self, amount: int, now_ns: int) -> None:
        """`amount` was used, or would have been."""
        self._level = self._decayed(now_ns) + amount
        self._seen_ns, self._last_amount = now_ns, amount

    def has_ended(self, now_ns: int) -> bool:
        """Whether a lease would have expired since anything was used."""
        return now_ns - self._seen_ns >= LEASE_NS or not self._last_amount

    def per_lease(self, now_ns: int) -> int:
        """What is worth keeping in store: what a lease's life will use, one request at least, nothing after the end."""
        if self.has_ended(now_ns):
            return 0
        expected = LEASE_HEADROOM * self._decayed(now_ns) * LEASE_NS / DEMAND_DECAY_NS
        return max(self._last_amount, math.ceil(expected))

    def _decayed(self, now_ns: int) -> float:
        return self._level * math.exp((self._seen_ns - now_ns) / DEMAND_DECAY_NS)
