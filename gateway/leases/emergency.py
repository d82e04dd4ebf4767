"""A replica's share of a rate while the database is away: L/R from the moment that it was missed, and nothing at once.

What R replicas spend so stays within L together, and what k of them spend that are cut off while the others go on is
over the limit by at most k · L/R · the time. `max_overdraft` is shared in the same way, and is the end of it.
"""

from dataclasses import replace

from gateway.errors import StoreUnavailableError
from gateway.quota_gcra import Buckets
from gateway.quota_terms import Limit, Violation


class Emergency:
    """One bucket's, of one outage at a time. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._buckets: Buckets | None = None
        self._spent = 0

    def find_violation(
        self, limit: Limit, amount: int, began_ns: int, num_replicas: int, now_ns: int
    ) -> Violation | None:
        """Why `amount` has to wait, if it has. Raises StoreUnavailableError where no waiting helps before the end."""
        if (self._spent + amount) * num_replicas > limit.max_overdraft:
            raise StoreUnavailableError
        share = _share(limit, num_replicas)
        if self._buckets is None:
            self._buckets = Buckets()
            # It begins empty: what the shared bucket had left is for those who can ask it.
            self._buckets.add(share, share.burst, began_ns)
        violation = self._buckets.find_violation(share, amount, now_ns)
        return violation and replace(violation, limit=limit)

    def take(self, limit: Limit, amount: int, num_replicas: int, now_ns: int) -> None:
        """`amount`, which was found to violate nothing, is spent."""
        assert self._buckets is not None, "asked before it is taken"
        self._buckets.add(_share(limit, num_replicas), amount, now_ns)
        self._spent += amount

    def end(self) -> None:
        """The database is back."""
        self._buckets, self._spent = None, 0


def _share(limit: Limit, num_replicas: int) -> Limit:
    return replace(limit, period_ns=limit.period_ns * num_replicas)
