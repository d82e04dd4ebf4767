"""A replica's part of a limit that does not refill: slots for live requests, or a budget of one calendar window.

Knows no store and no clock, like `rates`. All that is held is told at each turn, so nothing is lost with an answer.
"""

from gateway.errors import StoreUnavailableError
from gateway.leases.claims import Outage
from gateway.leases.demand import Demand
from gateway.leases.terms import LEASE_NS, NS_PER_S, Outbox
from gateway.quota_terms import Limit, Mode, Remaining, Violation, ViolationKind
from gateway.store.quota_buckets import Ask, Grant, StoreKey

SLOTS_PER_SPARE = 4
"""One slot is kept in store per so many that are in use here, and in all at most one of so many that there are."""

BUDGET_END = 20
"""The last of so many parts of a budget is given out request by request, and all replicas keep no more than one such
part of it in store."""

RETURN_NS = LEASE_NS + NS_PER_S // 2
"""By then a replica that no longer needs what it keeps in store has given it back."""


class Holding:
    """What this process holds of one limit: `live` by reservations, and a little in store."""

    def __init__(self, key: StoreKey, limit: Limit) -> None:
        self.key = key
        self.limit = limit
        self.outbox = Outbox()
        self.asked_ns: int | None = None
        self._num_replicas = 1
        self._demand = Demand()
        self._live = 0
        self._spare = 0
        self._told = 0
        self._room: int | None = None
        self._seen_ns: int | None = None
        self._overdrawn = 0
        self._refused_ns: int | None = None  # the first refusal, and below the last one, with no grant in between
        self._refused_again_ns = 0

    @property
    def is_strict(self) -> bool:
        return self.limit.strict and self.limit.mode is not Mode.SHADOW

    def adopt(self, limit: Limit) -> None:
        """The limit is `limit` now. What is held stays held."""
        self.limit = limit

    def available(self, now_ns: int) -> int:
        """What can be taken without asking."""
        return 0 if self.is_strict else self._spare

    def take(self, amount: int, now_ns: int) -> None:
        """A reservation holds `amount` of what is available."""
        assert amount <= self._spare, "only what is held can be taken"
        self._spare -= amount
        self._live += amount
        self._demand.add(amount, now_ns)

    def hold(self, amount: int, now_ns: int) -> None:
        """The same, until a claim elsewhere is decided: `unhold` follows."""
        self.take(amount, now_ns)

    def unhold(self, amount: int, *, is_spent: bool) -> None:
        if not is_spent:
            self._live -= amount
            self._spare += amount

    def note_claim(self, amount: int, now_ns: int) -> None:
        """A claim for `amount` is going to be made."""
        self._demand.add(min(amount, self.limit.limit), now_ns)

    def spend_claimed(self, amount: int) -> None:
        """The claim succeeded: a reservation holds what it got."""
        self._live += amount
        self._told += amount
        self._refused_ns = None

    def settle(self, reserved: int, used: int, under: Limit, now_ns: int) -> None:
        """A reservation of `reserved` has ended; of a budget, `used` is gone for good."""
        self._live -= reserved
        gone = used if self.limit.is_budget else 0
        self.outbox.waiting.settled += gone
        self._spare += max(0, reserved - gone)

    def find_violation_alone(self, amount: int, outage: Outage, now_ns: int) -> Violation | None:
        """Why this replica cannot take `amount` on its own. Raises StoreUnavailableError where no waiting helps.

        Of slots it has its share, whatever the others hold; of a budget its share of the overdraft.
        """
        if self.is_strict:
            raise StoreUnavailableError
        if self.limit.is_budget:
            return self._find_budget_violation_alone(amount, outage)
        if (self._live + self._spare + amount) * outage.num_replicas <= self.limit.limit:
            return None
        return Violation(self.limit, ViolationKind.CONCURRENCY, None)

    def _find_budget_violation_alone(self, amount: int, outage: Outage) -> Violation | None:
        if self._room is not None and self._overdrawn + amount > self._room:
            # A budget that was seen spent stays so: the store cannot have more of it than it had.
            return Violation(self.limit, ViolationKind.BUDGET, None)
        if (self._overdrawn + amount) * outage.num_replicas > self.limit.max_overdraft:
            raise StoreUnavailableError
        return None

    def charge_alone(self, amount: int, outage: Outage, now_ns: int) -> None:
        """A reservation holds `amount` that nobody granted."""
        self._live += amount
        self._overdrawn += amount
        self._demand.add(amount, now_ns)

    def is_due(self, now_ns: int) -> bool:
        """Whether the next turn should hold this one."""
        target = self._target(now_ns)
        if self.outbox or self._spare > target or self._told != self._live + self._spare:
            return True
        return 2 * self._spare < target and self.room(now_ns) > self._left_alone

    def is_idle(self, now_ns: int) -> bool:
        """Whether nothing would be lost by forgetting this."""
        if self._refused_ns is not None and now_ns - self._refused_again_ns < 2 * RETURN_NS:
            return False
        return not self.outbox and not self._live + self._spare + self._told and self._demand.has_ended(now_ns)

    def ask(self, now_ns: int, *, is_claimed: bool, is_last: bool) -> Ask:
        """Its part of the turn that is being made."""
        target = 0 if is_last else self._target(now_ns)
        self.outbox.send()
        self._spare = 0 if is_claimed else min(self._spare, target)
        self._told = self._live + self._spare
        return Ask(
            key=self.key,
            limit=self.limit.limit,
            kept=self._told,
            want=max(0, target - self._spare),
            leave=self._left_alone,
            settled=self.outbox.sent.settled,
        )

    def receive(self, grant: Grant, sent_ns: int, num_replicas: int, now_ns: int) -> None:
        """The turn that was sent at `sent_ns` has been taken."""
        self.outbox.confirm()
        self._room, self._seen_ns, self.asked_ns = grant.room, now_ns, sent_ns
        self._num_replicas = num_replicas
        self._spare += grant.spare
        self._told += grant.spare
        self._overdrawn = 0

    def room(self, now_ns: int) -> int:
        """What the store could grant, as far as is known here."""
        return self.limit.limit if self._room is None else self._room

    def find_violation(self, amount: int, now_ns: int) -> Violation | None:
        """Why `amount` cannot be had, as far as is known here."""
        if amount <= self.room(now_ns) + self._spare:
            return None
        if not self.limit.is_budget:
            return Violation(self.limit, ViolationKind.CONCURRENCY, None)
        return Violation(self.limit, ViolationKind.BUDGET, self._wait_for_others_ns(amount, now_ns))

    def _wait_for_others_ns(self, amount: int, now_ns: int) -> int | None:
        """Until what others may keep in store of a budget is back; None if that has been waited for, or is too little.

        None comes back of a strict one, and none to a replica that is alone.
        """
        stored = self.limit.limit // BUDGET_END
        if self.is_strict or self._num_replicas == 1 or amount > self.room(now_ns) + self._spare + stored:
            return None
        if self._refused_ns is None or now_ns - self._refused_again_ns >= 2 * RETURN_NS:
            self._refused_ns = now_ns
        self._refused_again_ns = now_ns
        waited_ns = now_ns - self._refused_ns
        return RETURN_NS - waited_ns if waited_ns < RETURN_NS else None

    def seen_since(self, then_ns: int) -> bool:
        """Whether what is known here is as of `then_ns` or later."""
        return self._seen_ns is not None and self._seen_ns >= then_ns

    def remaining(self, now_ns: int) -> Remaining:
        """What one more request could take, as far as is known here."""
        return Remaining(max(0, self.room(now_ns) + self._spare), 0)

    @property
    def _left_alone(self) -> int:
        """Of what is scarce nothing is stored up: the last slots, the end of a budget."""
        return self.limit.limit // (BUDGET_END if self.limit.is_budget else 2)

    def _target(self, now_ns: int) -> int:
        if self.is_strict:
            return 0
        if self.limit.is_budget:
            return self._budget_target(now_ns)
        wanted = 0 if self._demand.has_ended(now_ns) else max(1, self._live // SLOTS_PER_SPARE)
        return min(wanted, self.limit.limit // (SLOTS_PER_SPARE * self._num_replicas))

    def _budget_target(self, now_ns: int) -> int:
        """What is kept here is refused elsewhere, so it is little, and nothing near the end."""
        if self.room(now_ns) <= self._left_alone:
            return 0
        return min(self.limit.limit // (BUDGET_END * self._num_replicas), self._demand.per_lease(now_ns))
