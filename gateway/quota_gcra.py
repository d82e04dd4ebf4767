"""An exact GCRA per (node, dimension, model): theoretical arrival times, and what they admit.

Knows nothing of reservations or the clock: limits and `now_ns` come in as arguments.

A tick is 1/limit of a nanosecond, which makes every quantity an integer and every rule exact: with whole nanoseconds a
limit of 7 per minute and burst 1 would admit nothing, because ceil(P/L) > floor(P/L).

    inc(c) = c · period      tol = burst · period      clock = now · limit                                      (ticks)
    admit(c)                 new = max(tat, clock) + inc(c)
        c > burst                -> refused for ever
        new - clock <= tol       -> tat = new
        otherwise                -> refused, retry after ceil((new - clock - tol) / limit) ns
    settle, actual < reserved    -> tat -= inc(reserved - actual); a tat behind the clock is a full bucket, never more
    settle, actual > reserved    -> tat = max(tat, clock) + inc(actual - reserved), whatever the limit says
    remaining = floor((tol - max(0, tat - clock)) / period)

In any window W that ends with an admission, reservations and debts minus refunds are <= burst + limit · W / period:
each moves tat by its inc, and an admission leaves tat at most tol ahead of the clock.
Source: ITU-T I.371, generic cell rate algorithm.
"""

from collections import OrderedDict
from dataclasses import dataclass

from gateway.quota_terms import BucketKey, Limit, Remaining, Violation, ViolationKind


@dataclass(slots=True)
class _Bucket:
    """Theoretical arrival time in ticks of 1/`ticks_per_ns` ns. Written by Buckets only."""

    tat: int
    ticks_per_ns: int


class Buckets:
    """The buckets of one process. Those that are full again are forgotten."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[BucketKey, _Bucket] = OrderedDict()

    def __len__(self) -> int:
        return len(self._buckets)

    def find_violation(self, limit: Limit, amount: int, now_ns: int) -> Violation | None:
        """Why `amount` is refused now, if it is."""
        if amount > limit.burst:
            return Violation(limit, ViolationKind.EXCEEDS_BURST, None)
        excess = self._lead(limit, now_ns) + (amount - limit.burst) * limit.period_ns
        return Violation(limit, ViolationKind.RATE, _ceil_div(excess, limit.limit)) if excess > 0 else None

    def add(self, limit: Limit, amount: int, now_ns: int) -> None:
        """`amount` is charged, whatever the limit says."""
        tat = now_ns * limit.limit + self._lead(limit, now_ns) + amount * limit.period_ns
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            self._buckets[limit.key] = _Bucket(tat, limit.limit)
        else:
            bucket.tat, bucket.ticks_per_ns = tat, limit.limit

    def refund(self, limit: Limit, amount: int) -> None:
        """`amount` was charged under `limit` and is not any more."""
        bucket = self._buckets.get(limit.key)
        if bucket is not None:
            # Rounded down where the limit has changed since: rounding never mints credit.
            bucket.tat -= amount * limit.period_ns * bucket.ticks_per_ns // limit.limit

    def remaining(self, limit: Limit, now_ns: int) -> Remaining:
        """The largest amount that would be admitted, and the time until the bucket is full."""
        lead = self._lead(limit, now_ns)
        tolerance = limit.burst * limit.period_ns
        return Remaining(max(0, tolerance - lead) // limit.period_ns, _ceil_div(lead, limit.limit))

    def forget_idle(self, num_buckets: int, now_ns: int) -> None:
        """Look at the buckets that were looked at longest ago; busy ones go to the back."""
        for _ in range(min(num_buckets, len(self._buckets))):
            key, bucket = self._buckets.popitem(last=False)
            if bucket.tat > now_ns * bucket.ticks_per_ns:
                self._buckets[key] = bucket

    def _lead(self, limit: Limit, now_ns: int) -> int:
        """How far the bucket's tat is ahead of the clock, in ticks of `limit`; 0 if it is full."""
        bucket = self._buckets.get(limit.key)
        if bucket is None:
            return 0
        return max(0, _rescale(bucket.tat, bucket.ticks_per_ns, limit.limit) - now_ns * limit.limit)


def _ceil_div(numerator: int, denominator: int) -> int:
    return -(-numerator // denominator)


def _rescale(ticks: int, old_ticks_per_ns: int, new_ticks_per_ns: int) -> int:
    """The same instant in other ticks, rounded up so that a changed limit never mints credit."""
    if old_ticks_per_ns == new_ticks_per_ns:
        return ticks
    return _ceil_div(ticks * new_ticks_per_ns, old_ticks_per_ns)
