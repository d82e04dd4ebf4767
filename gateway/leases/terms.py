"""What the parts of a replica's quota share: the life of a lease, counters, and what waits to be reported."""

from dataclasses import dataclass, field

NS_PER_S = 1_000_000_000

LEASE_NS = 2 * NS_PER_S
"""The life of a lease, D: from before the turn was sent, on this process's monotonic clock."""

TURN_TIMEOUT_NS = 3 * NS_PER_S // 2
"""A turn that has not been taken by then never is."""
assert TURN_TIMEOUT_NS < LEASE_NS, "what is granted arrives while it may be spent"

HELD_NS = LEASE_NS + TURN_TIMEOUT_NS
"""So long after a turn the store counts what its replica holds: what is given back in time comes while it is counted.

Else the bucket would drain of tokens that nobody spent, and get them back as credit when others have taken their place.
"""

DEMAND_DECAY_NS = NS_PER_S
"""The memory of the demand that leases are sized by."""

LEASE_HEADROOM = 1.5
"""What is kept in store is this many times what the demand would use up in a lease's life."""

RENEW_NS = NS_PER_S // 2
"""A lease with less than this to live is renewed, or given back while it is worth something."""


@dataclass(slots=True)
class LeaseCounters:
    """Since the process began, in the units of the limits. Written by the leases of one book.

    missed   asked for while a request waited     granted   charged to the shared bucket and held here
    returned given back unspent                   expired   not spent in time, and lost
    overdrawn  spent on an emergency share while the database was away
    """

    granted: int = 0
    returned: int = 0
    expired: int = 0
    missed: int = 0
    overdrawn: int = 0


@dataclass(slots=True)
class Reports:
    """What one turn tells of one limit, for good; see `Ask`. Written by the lease that it belongs to.

    `returned` was granted and never used; it is worth something only while the store counts it as held.
    """

    refund: int = 0
    returned: int = 0
    debt: int = 0
    debt_since_ns: int = 0
    settled: int = 0

    def __bool__(self) -> bool:
        return bool(self.refund or self.returned or self.debt or self.settled)

    @property
    def num_free(self) -> int:
        """What the bucket gets back."""
        return self.refund + self.returned


@dataclass(slots=True)
class Outbox:
    """Reports that wait for a turn, and those of a turn that is not confirmed. Written by the lease it belongs to."""

    waiting: Reports = field(default_factory=Reports)
    sent: Reports = field(default_factory=Reports)

    def __bool__(self) -> bool:
        return bool(self.waiting) or bool(self.sent)

    def send(self) -> None:
        """What waits goes with the turn that is being made; nothing is unconfirmed."""
        assert not self.sent, "the last turn is not confirmed"
        self.waiting, self.sent = Reports(), self.waiting

    def confirm(self) -> None:
        """The turn was taken."""
        self.sent = Reports()

    def restore(self) -> None:
        """It was not and never will be: what it told waits again, but for what was returned, which came too late."""
        sent, waiting = self.sent, self.waiting
        if sent.debt:
            waiting.debt_since_ns = sent.debt_since_ns
        waiting.refund += sent.refund
        waiting.debt += sent.debt
        waiting.settled += sent.settled
        self.sent = Reports()
