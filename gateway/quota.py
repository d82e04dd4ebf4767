"""Reservations of one process: all or none over every limit of a path, settled once, and sets of live requests.

Knows nothing of Postgres, gRPC or the clock: limits and `now_ns` come in as arguments, and nothing here awaits, so that
a reservation over the whole path key → team → organization is atomic on one event loop. Rates are `quota_gcra`'s,
budgets are `quota_budgets`'. BORROW limits are as binding here as ENFORCE: who may go over them is the door's decision.

Limits in SHADOW run through the same code on their own state and refuse nobody: what a shadow refuses is not charged to
any shadow of the path, as if it had been enforced.
"""

from collections import abc

from gateway.quota_budgets import Budgets
from gateway.quota_gcra import Buckets
from gateway.quota_reservations import Reservation
from gateway.quota_terms import (
    NOTHING,
    BucketKey,
    Charge,
    Denied,
    Limit,
    Mode,
    Remaining,
    ReservationEndedError,
    Reserved,
    Violation,
    ViolationKind,
)

SWEEP_RATIO = 2
"""Buckets looked at for forgetting per bucket that a reservation may add; above 1 the idle ones cannot pile up."""


class QuotaBook:
    """The buckets, budgets and live requests of one process."""

    def __init__(self) -> None:
        self._buckets = Buckets()
        self._budgets = Budgets()
        self._live: dict[BucketKey, set[str]] = {}
        self._reservations: dict[str, Reservation] = {}

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    @property
    def num_reservations(self) -> int:
        return len(self._reservations)

    def reserve(
        self, reservation_id: str, limits: abc.Sequence[Limit], charge: Charge, now_ns: int
    ) -> Reserved | Denied:
        """Charge every limit or none. Raises ValueError if the id is live or two limits share a bucket."""
        if reservation_id in self._reservations:
            raise ValueError(f"reservation {reservation_id} is live")
        if len({limit.key for limit in limits}) != len(limits):
            raise ValueError("two limits share a node, a dimension and a model")
        binding, shadows = _split(limits)
        violations = self._violations(binding, charge, now_ns)
        if violations:
            return Denied(violations)
        shadow_violations = self._violations(shadows, charge, now_ns)
        charged = binding if shadow_violations else (*binding, *shadows)
        self._buckets.forget_idle(SWEEP_RATIO * len(limits), now_ns)
        for limit in charged:
            if limit.is_concurrency:
                self._live.setdefault(limit.key, set()).add(reservation_id)
            else:
                self._add(limit, limit.amount(charge), now_ns)
        self._reservations[reservation_id] = Reservation.of(charged, limits, charge)
        return Reserved(reservation_id, charge, shadow_violations)

    def extend(
        self, reservation_id: str, more: Charge, now_ns: int, limits: abc.Iterable[Limit] | None = None
    ) -> Reserved | Denied:
        """Charge `more` to every one of the limits that are over it now (None: its own), or to none.

        Limits that it takes nothing of have no say.

        What a shadow would refuse is charged to it all the same, as a debt. Raises ReservationEndedError.
        """
        reservation = self._reservations.get(reservation_id)
        if reservation is None:
            raise ReservationEndedError(reservation_id)
        current = reservation.limits_of_more(limits)
        taken = [limit for limit in current if limit.amount(more)]
        binding, shadows = _split(taken)
        violations = self._violations(binding, more, now_ns)
        if violations:
            return Denied(violations)
        shadow_violations = self._violations(shadows, more, now_ns)
        for limit in taken:
            self._add(limit, limit.amount(more), now_ns)
        extended = self._reservations[reservation_id] = reservation.extended(current, more)
        return Reserved(reservation_id, extended.charge, shadow_violations)

    def settle(self, reservation_id: str, actual: Charge, now_ns: int) -> bool:
        """Replace the reserved charge by the actual one and end the request; false, and nothing done, if it has ended.

        The difference counts at the limit under which it was reserved, also if that has changed since.
        """
        reservation = self._reservations.pop(reservation_id, None)
        if reservation is None:
            return False
        for held in reservation.held:
            if held.limit.is_concurrency:
                self._leave(held.limit.key, reservation_id)
                continue
            excess = held.used(actual) - held.reserved
            if excess > 0:
                self._add(held.limit, excess, now_ns)
            elif excess < 0:
                self._refund(held.limit, -excess)
        return True

    def release(self, reservation_id: str, now_ns: int) -> bool:
        """Settle with nothing used: the request never ran."""
        return self.settle(reservation_id, NOTHING, now_ns)

    def check(self, limits: abc.Iterable[Limit], charge: Charge, now_ns: int) -> tuple[Violation, ...]:
        """Every binding limit that refuses `charge` now."""
        return self._violations(_split(limits)[0], charge, now_ns)

    def remaining(self, limit: Limit, now_ns: int) -> Remaining:
        """What one more request could reserve of `limit`."""
        if limit.is_concurrency:
            return Remaining(max(0, limit.limit - len(self._live.get(limit.key, ()))), 0)
        return self._budgets.remaining(limit) if limit.is_budget else self._buckets.remaining(limit, now_ns)

    def _violations(self, limits: abc.Iterable[Limit], charge: Charge, now_ns: int) -> tuple[Violation, ...]:
        found = (self._find_violation(limit, charge, now_ns) for limit in limits)
        return tuple(violation for violation in found if violation is not None)

    def _find_violation(self, limit: Limit, charge: Charge, now_ns: int) -> Violation | None:
        if limit.is_concurrency:
            is_full = len(self._live.get(limit.key, ())) >= limit.limit
            return Violation(limit, ViolationKind.CONCURRENCY, None) if is_full else None
        amount = limit.amount(charge)
        if limit.is_budget:
            return self._budgets.find_violation(limit, amount)
        return self._buckets.find_violation(limit, amount, now_ns)

    def _add(self, limit: Limit, amount: int, now_ns: int) -> None:
        if limit.is_budget:
            self._budgets.add(limit, amount)
        else:
            self._buckets.add(limit, amount, now_ns)

    def _refund(self, limit: Limit, amount: int) -> None:
        if limit.is_budget:
            self._budgets.add(limit, -amount)
        else:
            self._buckets.refund(limit, amount)

    def _leave(self, key: BucketKey, reservation_id: str) -> None:
        live = self._live[key]
        live.discard(reservation_id)
        if not live:
            del self._live[key]


def _split(limits: abc.Iterable[Limit]) -> tuple[tuple[Limit, ...], tuple[Limit, ...]]:
    """Those that can refuse, and the shadows."""
    binding: list[Limit] = []
    shadows: list[Limit] = []
    for limit in limits:
        (shadows if limit.mode is Mode.SHADOW else binding).append(limit)
    return tuple(binding), tuple(shadows)
