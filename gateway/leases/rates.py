"""A replica's lease on one rate: spent here without asking, renewed in the background, given back when demand ends.

Knows no store and no clock: turns are made and answered by the book, `now_ns` is monotonic. The shared bucket charges
at grant; what is held here unspent is told at each turn, which renews all of it.
"""

from gateway.errors import StoreUnavailableError
from gateway.leases.claims import Outage
from gateway.leases.demand import Demand
from gateway.leases.emergency import Emergency
from gateway.leases.terms import LEASE_NS, RENEW_NS, LeaseCounters, Outbox
from gateway.quota_terms import Limit, Mode, Remaining, Violation, ViolationKind
from gateway.store.quota_buckets import Ask, Grant, StoreKey


class RateLease:
    """What this process holds of one bucket, what it owes it, and what it last heard of it."""

    def __init__(self, key: StoreKey, limit: Limit, counters: LeaseCounters) -> None:
        self.key = key
        self.limit = limit
        self.outbox = Outbox()
        self.asked_ns: int | None = None
        self._emergency = Emergency()
        self._counters = counters
        self._demand = Demand()
        self._unspent = 0
        self._pending = 0  # taken for a claim that is not decided: spent, or unspent again
        self._expires_ns = 0
        self._lead_ticks = 0
        self._asked = limit
        self._seen_ns: int | None = None

    @property
    def is_strict(self) -> bool:
        """Nothing is kept in store: every charge is the database's. A limit that refuses nobody need not be exact."""
        return self.limit.strict and self.limit.mode is not Mode.SHADOW

    def adopt(self, limit: Limit) -> None:
        """The limit is `limit` now. What was held under other numbers is given back at their worth."""
        old, self.limit = self.limit, limit
        is_same_worth = (old.limit, old.period_ns) == (limit.limit, limit.period_ns)
        if is_same_worth and not self.is_strict and self._unspent <= limit.burst:
            return
        self._counters.returned += self._unspent
        self.outbox.waiting.returned += self._unspent
        self._unspent = 0
        # A time to wait is the same under any numbers, as it is in the store.
        self._lead_ticks = -(-self._lead_ticks * limit.limit // old.limit)
        for reports in (self.outbox.waiting, self.outbox.sent):
            reports.refund = converted(reports.refund, old, limit)
            reports.returned = converted(reports.returned, old, limit)
            reports.debt = -converted(-reports.debt, old, limit)

    def available(self, now_ns: int) -> int:
        """What can be taken without asking. What was not spent in time is lost, as what a crashed process held."""
        if self._unspent and now_ns >= self._expires_ns:
            self._counters.expired += self._unspent
            self._unspent = 0
        return self._unspent

    def take(self, amount: int, now_ns: int) -> None:
        """`amount` of what is available is spent."""
        assert amount <= self.available(now_ns), "only what is held can be spent"
        self._unspent -= amount
        self._demand.add(amount, now_ns)

    def hold(self, amount: int, now_ns: int) -> None:
        """`amount` of what is available is spent if a claim elsewhere succeeds: `unhold` follows."""
        self.take(amount, now_ns)
        self._pending += amount

    def unhold(self, amount: int, *, is_spent: bool) -> None:
        self._pending -= amount
        if not is_spent:
            self._unspent += amount

    def note_claim(self, amount: int, now_ns: int) -> None:
        """A claim for `amount` is going to be made."""
        self._counters.missed += amount
        self._demand.add(min(amount, self.limit.burst), now_ns)

    def spend_claimed(self, amount: int) -> None:
        """The claim succeeded, and what it got is spent."""
        self._counters.granted += amount

    def settle(self, reserved: int, used: int, under: Limit, now_ns: int) -> None:
        """A reservation of `reserved` under that limit has ended with `used`. The difference goes to the store."""
        if used < reserved:
            self.outbox.waiting.refund += converted(reserved - used, under, self.limit)
        elif used > reserved:
            self._add_debt(-converted(reserved - used, under, self.limit), now_ns)

    def find_violation_alone(self, amount: int, outage: Outage, now_ns: int) -> Violation | None:
        """Why the emergency share does not give `amount` now. Raises StoreUnavailableError where it never will."""
        if self.is_strict:
            raise StoreUnavailableError
        return self._emergency.find_violation(self.limit, amount, outage.began_ns, outage.num_replicas, now_ns)

    def charge_alone(self, amount: int, outage: Outage, now_ns: int) -> None:
        """The emergency share has given `amount`."""
        self._emergency.take(self.limit, amount, outage.num_replicas, now_ns)
        self._counters.overdrawn += amount
        self._demand.add(amount, now_ns)
        self._add_debt(amount, now_ns)

    def is_due(self, now_ns: int) -> bool:
        """Whether the next turn should hold this one."""
        if self.outbox:
            return True
        unspent, target = self.available(now_ns), self._target(now_ns)
        if unspent and (now_ns + RENEW_NS >= self._expires_ns or unspent > 2 * target):
            return True
        # At half of what is worth keeping, if there is any to be had.
        return 2 * unspent < target and self.room(now_ns) > self._left_alone

    def is_idle(self, now_ns: int) -> bool:
        """Whether nothing would be lost by forgetting this."""
        held = self.available(now_ns) + self._pending
        return not self.outbox and not held and self._demand.has_ended(now_ns)

    def ask(self, now_ns: int, *, is_claimed: bool, is_last: bool) -> Ask:
        """Its part of the turn that is being made. A claim asks for all that it needs, so the rest goes back."""
        unspent = self.available(now_ns)
        target = 0 if is_last else self._target(now_ns)
        kept = 0 if is_claimed or is_last else min(unspent, target)
        waiting = self.outbox.waiting
        waiting.returned = 0 if now_ns >= self._expires_ns else waiting.returned + unspent - kept
        self._counters.returned += unspent - kept
        self._unspent = kept
        self._asked = self.limit
        self.outbox.send()
        sent = self.outbox.sent
        return Ask(
            key=self.key,
            limit=self.limit.limit,
            period_ns=self.limit.period_ns,
            burst=self.limit.burst,
            kept=self._unspent + self._pending,
            want=max(0, target - self._unspent),
            leave=self._left_alone,
            refund=sent.num_free,
            debt=sent.debt,
            debt_age_ns=now_ns - sent.debt_since_ns if sent.debt else 0,
        )

    def receive(self, grant: Grant, sent_ns: int, num_replicas: int, now_ns: int) -> None:
        """The turn that was sent at `sent_ns` has been taken: what is held here lives on from then."""
        self.outbox.confirm()
        # It was asked for under the numbers of that moment.
        self._lead_ticks = -(-grant.lead_ticks * self.limit.limit // self._asked.limit)
        self._seen_ns, self.asked_ns = now_ns, sent_ns
        self._counters.granted += grant.spare
        self._unspent += converted(grant.spare, self._asked, self.limit)
        self._expires_ns = sent_ns + LEASE_NS
        self._emergency.end()

    def room(self, now_ns: int) -> int:
        """What the store could grant, as far as is known here; of a bucket that was never seen, all of it."""
        return max(0, self.limit.burst * self.limit.period_ns - self._lead(now_ns)) // self.limit.period_ns

    def find_violation(self, amount: int, now_ns: int) -> Violation | None:
        """Why `amount` cannot be had, as far as is known here."""
        limit = self.limit
        if amount > limit.burst:
            return Violation(limit, ViolationKind.EXCEEDS_BURST, None)
        missing = amount - self.available(now_ns) - self.outbox.waiting.num_free - self.outbox.sent.num_free
        excess = self._lead(now_ns) + (missing - limit.burst) * limit.period_ns
        return Violation(limit, ViolationKind.RATE, -(-excess // limit.limit)) if missing > 0 and excess > 0 else None

    def seen_since(self, then_ns: int) -> bool:
        """Whether what is known here is as of `then_ns` or later."""
        return self._seen_ns is not None and self._seen_ns >= then_ns

    def remaining(self, now_ns: int) -> Remaining:
        """What one more request could take, as far as is known here, and the time until the bucket is full."""
        held = self.available(now_ns) + self.outbox.waiting.num_free
        lead = max(0, self._lead(now_ns) - held * self.limit.period_ns)
        return Remaining(min(self.limit.burst, self.room(now_ns) + held), -(-lead // self.limit.limit))

    def _add_debt(self, amount: int, now_ns: int) -> None:
        waiting = self.outbox.waiting
        waiting.debt_since_ns = waiting.debt_since_ns if waiting.debt else now_ns
        waiting.debt += amount

    @property
    def _left_alone(self) -> int:
        """Of what is scarce nothing is stored up, so that a client that waits as it was told finds it."""
        return self.limit.burst // 2

    def _target(self, now_ns: int) -> int:
        return 0 if self.is_strict else min(self.limit.burst, self._demand.per_lease(now_ns))

    def _lead(self, now_ns: int) -> int:
        """How far the shared bucket's tat is ahead, if nobody else has asked since, with what is owed to it from here.

        A debt lasts longer than it will by the store's count, which begins when it was made: no wait is too short.
        """
        owed = (self.outbox.waiting.debt + self.outbox.sent.debt) * self.limit.period_ns
        if self._seen_ns is None:
            return owed
        return max(0, self._lead_ticks - (now_ns - self._seen_ns) * self.limit.limit) + owed


def converted(amount: int, old: Limit, new: Limit) -> int:
    """The amount under `new` that is worth as much time as `amount` under `old`, rounded down."""
    if (old.limit, old.period_ns) == (new.limit, new.period_ns):
        return amount
    return amount * old.period_ns * new.limit // (old.limit * new.period_ns)
