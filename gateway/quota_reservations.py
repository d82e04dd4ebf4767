"""What one live reservation holds of each limit over it, through changes of the limits. Plain values.

A change ends a part and begins another one: each part of a charge counts under the numbers and prices that it was made
with, so that nothing that is given back is worth more than it was.
"""

from collections import abc
from dataclasses import dataclass, replace

from gateway.quota_terms import NOTHING, BucketKey, Charge, Limit, Mode


@dataclass(frozen=True, slots=True)
class Held:
    """`charge` came after `since` had been charged. What is used beyond the reservation is the open ones' alone."""

    limit: Limit
    since: Charge
    charge: Charge
    is_open: bool = True

    @property
    def reserved(self) -> int:
        """In the limit's unit."""
        return self.limit.amount(self.charge)

    def used(self, actual: Charge) -> int:
        """Its part of what the whole request used, in the limit's unit."""
        used = actual.beyond(self.since)
        return self.limit.amount(used if self.is_open else used.at_most(self.charge))


@dataclass(frozen=True, slots=True)
class Reservation:
    """`charge` is all of it. `passed_over`: limits in SHADOW that would have refused it, and have none of it."""

    charge: Charge
    held: tuple[Held, ...]
    passed_over: frozenset[BucketKey]

    @classmethod
    def of(cls, charged: abc.Iterable[Limit], limits: abc.Iterable[Limit], charge: Charge) -> "Reservation":
        """One that `charged` have taken, of the `limits` over it."""
        held = tuple(Held(limit, NOTHING, charge) for limit in charged)
        return cls(charge, held, frozenset({limit.key for limit in limits} - {part.limit.key for part in held}))

    def limits_of_more(self, current: abc.Iterable[Limit] | None) -> tuple[Limit, ...]:
        """Those that an extension has to pass, `current` being over it now; None: the same as before.

        Live requests were counted when it began.
        """
        if current is None:
            return tuple(part.limit for part in self.held if part.is_open and not part.limit.is_concurrency)
        return tuple(
            limit
            for limit in current
            if not limit.is_concurrency and not (limit.mode is Mode.SHADOW and limit.key in self.passed_over)
        )

    def extended(self, limits: abc.Iterable[Limit], more: Charge) -> "Reservation":
        """Those `limits` have taken `more`; whichever is not among them has nothing to do with it any more."""
        left = {limit.key: limit for limit in limits if not limit.is_concurrency}
        held = [self._with_more(part, left, more) for part in self.held]
        held += [Held(limit, self.charge, more) for limit in left.values()]
        return Reservation(self.charge.plus(more), tuple(held), self.passed_over)

    @staticmethod
    def _with_more(part: Held, left: dict[BucketKey, Limit], more: Charge) -> Held:
        if not part.is_open or part.limit.is_concurrency:
            return part
        if left.get(part.limit.key) != part.limit:
            return replace(part, is_open=False)
        del left[part.limit.key]
        return replace(part, charge=part.charge.plus(more))
